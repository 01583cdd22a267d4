"""How a rank takes its place: it says who it is, takes its device, and forms the group."""

import atexit
import logging
import os
import socket
from typing import Any

import msgspec
import torch
from torch import distributed as dist
from torch.distributed import PrefixStore, Store

from harness.beginning import start_ticks
from harness.events import AttemptStarted, GroupFormed, RankJoined, RunStarted
from harness.membership import Membership, another_client
from harness.points import Point, reach
from harness.recorder import boot_id
from harness.replace import replace_file
from harness.rundir import RunDir
from harness.session import Session
from harness.voice import Voice

LOG = logging.getLogger("harness")
SCHEMA = 1


def device_of(local_rank: int) -> torch.device:
    """The device of this rank, made current: the one place that tells CUDA from CPU.

    Raises `ValueError` where there are fewer GPUs than ranks.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ValueError(
            f"local rank {local_rank} has no GPU of its own, for {count} are visible:"
            " start fewer ranks, or set CUDA_VISIBLE_DEVICES= to train on CPU"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def gpu_uuid_of(device: torch.device) -> str:
    """How NVIDIA's tools and exporters call the device; empty for a CPU."""
    if device.type != "cuda":
        return ""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def enrol(voice: Voice, member: Membership, agreed: Session, device: torch.device) -> None:
    """Say who this process is: in the log, and in a file that an injector can check.

    Where no launcher of ours speaks for the run, rank 0 says that it and its attempt started.
    """
    run_dir = RunDir.at(agreed.run_dir)
    if not launched_by_us():
        if agreed.attempt == agreed.first_attempt:
            started = RunStarted(agreed.run_id, member.world_size, tool="torchrun")
            voice.tell(started, at_ns=agreed.began_ns)
        voice.tell(AttemptStarted(member.world_size))
    ticks = start_ticks(os.getpid())
    node, gpu_uuid = socket.gethostname(), gpu_uuid_of(device)
    voice.write(RankJoined(os.getpid(), ticks, member.local_rank, node, gpu_uuid))
    worker = {
        "schema": SCHEMA,
        "rank": member.rank,
        "local_rank": member.local_rank,
        "pid": os.getpid(),
        "start_ticks": ticks,
        "boot_id": boot_id(),
        "attempt": agreed.attempt,
        "first_attempt": agreed.first_attempt,
        "event_file": voice.event_file,
    }
    try:
        replace_file(run_dir.worker(member.rank), msgspec.json.encode(worker))
    except OSError as error:  # a full disk: training goes on, and nobody can prove who this is
        LOG.warning("harness: rank %d cannot say who it is: %s", member.rank, error)


def form_group(voice: Voice, member: Membership, messages: Store, device: torch.device) -> None:
    """Form the default process group, unless the script has formed it."""
    reach(Point.GROUP)
    if not dist.is_initialized():
        cuda = device.type == "cuda"
        options: dict[str, Any] = {"device_id": device} if cuda else {}
        dist.init_process_group(
            "cuda:nccl,cpu:gloo" if cuda else "gloo",
            store=PrefixStore("group", another_client(messages)),
            rank=member.rank,
            world_size=member.world_size,
            **options,
        )
        atexit.register(_leave_group)
    voice.tell(GroupFormed(member.world_size))


def launched_by_us() -> bool:
    """True under `harness run`, whose launcher speaks for the run itself."""
    return bool(os.environ.get("HARNESS_ATTEMPT"))


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
