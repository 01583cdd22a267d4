"""Two processes, forked from a warm parent as ranks are: they ask a store and form a group.

A program of its own, so that whatever hangs or dies here can be told and killed. Prints one JSON object.
"""

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from harness.parent import die_with
from launch import warm

RANKS = 2
PATIENCE_S = 60.0
ADDRESS = "127.0.0.1"

Result = dict[str, Any]


def main() -> None:
    """Try it, and print what came of it."""
    die_with(os.getppid(), signal.SIGKILL)
    warm.keep_to_one_thread()
    try:
        warm.load()
    except Exception as error:  # noqa: BLE001 - whatever an import raises is what is wrong here
        told: Result = {"error": f"{type(error).__name__}: {error}"}
    else:
        told = _tried()
    print(json.dumps(told))  # noqa: T201


def _tried() -> Result:
    import torch

    told: Result = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "obstacle": warm.obstacle(),
    }
    children = [_forked(rank) for rank in range(RANKS)]
    try:
        store = torch.distributed.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
        for child in children:
            os.write(child.orders, f"{store.port}\n".encode())
        answers = [_answer(child) for child in children]
    except Exception as error:  # noqa: BLE001 - a store that cannot be hosted is what is wrong here
        answers = [{"error": f"no store can be hosted: {type(error).__name__}: {error}"}]
    finally:
        for child in children:
            child.end()
    errors = [answer["error"] for answer in answers if "error" in answer]
    return told | answers[0] | ({"error": errors[0]} if errors else {})


class _Child:
    """A forked rank: what it is told, and what it says."""

    def __init__(self, pid: int, orders: int, answers: int) -> None:
        self.pid, self.orders, self.answers = pid, orders, answers

    def end(self) -> None:
        """Kill it if it lives."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.orders)
        os.close(self.answers)


def _forked(rank: int) -> _Child:
    told, orders = os.pipe()
    answers, tell = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with(parent, signal.SIGKILL)
        os.close(orders)
        os.close(answers)
        _be_rank(rank, told, lambda result: os.write(tell, json.dumps(result).encode() + b"\n"))
        os._exit(0)
    os.close(told)
    os.close(tell)
    return _Child(pid, orders, answers)


def _answer(child: _Child) -> Result:
    data, deadline = b"", time.monotonic() + PATIENCE_S
    while not data.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([child.answers], [], [], left_s)[0]:
            return {"error": f"two processes formed no group within {PATIENCE_S:g} s"}
        part = os.read(child.answers, 1 << 16)
        if not part:
            return {"error": "a process that was to form a group died"}
        data += part
    answer: Result = json.loads(data)
    return answer


# ── a rank ──────────────────────────────────────────────────────────────────────────────────────


def _be_rank(rank: int, told: int, tell: Callable[[Result], object]) -> None:
    answer: Result = {}
    try:
        port = int(os.read(told, 16))
        store = _store(port)
        _ask_store(answer, rank, store)
        _form_group(answer, rank, store)
    except Exception as error:  # noqa: BLE001 - whatever torch raises is what is wrong here
        answer["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    tell(answer)


def _store(port: int) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(ADDRESS, port, is_master=False, timeout=timedelta(seconds=PATIENCE_S / 2))


def _ask_store(answer: Result, rank: int, store: Any) -> None:
    began_s = time.monotonic()
    store.set(f"asked-{rank}", "x")
    store.get(f"asked-{rank}")
    answer["store_s"] = time.monotonic() - began_s


def _form_group(answer: Result, rank: int, store: Any) -> None:
    import torch
    from torch import distributed as dist

    # A group of NCCL's wants a GPU for each; where there is one alone, it is a group of one.
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    world = RANKS if count != 1 else 1
    answer["backend"] = backend = "cuda:nccl,cpu:gloo" if count else "gloo"
    if rank >= world:
        return
    device = torch.device("cuda", rank) if count else torch.device("cpu")
    options: Result = {"device_id": device} if count else {}
    began_s = time.monotonic()
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=PATIENCE_S / 2),
        **options,
    )
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones)
    assert int(ones.item()) == world
    answer["group_s"] = time.monotonic() - began_s
    answer["gpus"] = [_gpu(number) for number in range(count)]


def _gpu(number: int) -> Result:
    import torch

    properties = torch.cuda.get_device_properties(number)
    return {"name": properties.name, "memory_bytes": properties.total_memory}


if __name__ == "__main__":
    main()
