"""What a benchmark starts: ranks that meet in a store, led by a function of its module, and a saver; how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness import settings
from harness.checkpoint.save import Checkpointer
from harness.checkpoint.store import Store
from harness.events import Event
from harness.rundir import RunDir
from harness.settings import Record
from harness.storage import checkpoint_store
from launch import companions

RUN_ID = "benchmark"


class Silent:
    """Keeps no events."""

    def write(self, event: Event, /) -> None:
        """See `Records`."""


@contextmanager
def saver(folder: Path) -> Iterator[tuple[str, int]]:
    """A saver for a run in `folder`: its address, and its pid."""
    run_dir = RunDir.at(folder / "run")
    run_dir.create()
    settings.write(run_dir.settings, Record(RUN_ID, ("benchmark",), settings.resolve([]), {}))
    address = f"harness-benchmark-{uuid.uuid4().hex}"
    command = [sys.executable, "-m", *companions.saver(run_dir.path, address, 0.0)]
    with subprocess.Popen(command) as process:
        try:
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def end(*processes: subprocess.Popen[Any], within_s: float) -> None:
    """Ask all of them to end, as Ctrl-C does; those that have not within so many seconds are killed."""
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_ranks(module: str, ranks: int, told: Mapping[str, Any]) -> None:
    """Have `python -m module --as-rank` led by what is told, on all ranks, until all have ended well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                module,
                "--as-rank",
                json.dumps({**told, "rank": rank, "ranks": ranks, "port": port}),
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(ranks)
    ]
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(codes), f"ranks ended with {codes}"


@contextmanager
def group(told: Mapping[str, Any]) -> Iterator[dist.TCPStore]:
    """This rank's place among those of `run_ranks`."""
    torch.set_num_threads(1)
    rank, ranks = told["rank"], told["ranks"]
    store = dist.TCPStore("127.0.0.1", told["port"], ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    yield store
    dist.barrier()
    dist.destroy_process_group()


def messages(rank: int) -> dist.Store:
    """A store for messages, hosted by rank 0 of the group that there is."""
    hosted = None
    if rank == 0:
        hosted = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = torch.tensor([0 if hosted is None else hosted.port])
    dist.broadcast(port, 0)
    return hosted or dist.TCPStore("127.0.0.1", int(port), wait_for_workers=False)


def opened(told: Mapping[str, Any]) -> Store:
    """The storage of the run that `saver` serves."""
    asked = settings.values(settings.resolve([]))
    return checkpoint_store(RunDir.at(Path(told["folder"]) / "run"), RUN_ID, asked)


def checkpointer(
    told: Mapping[str, Any], store: Store, messages: dist.Store, **more: Any
) -> Checkpointer:
    """This rank's saves in a first attempt of the run."""
    number = torch.tensor([store.claim_attempt() if told["rank"] == 0 else 0])
    dist.broadcast(number, 0)
    attempt = int(number)
    if told["rank"] == 0:
        store.record_lineage(attempt, None, 0)
    dist.barrier()
    place = (told["rank"], told["ranks"], attempt)
    return Checkpointer(store, messages, *place, Silent(), saver=told["address"], **more)
