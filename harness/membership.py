"""Who this process is among the ranks, and how rank 0 tells the others what it decided.

Works under `harness run`, under plain `torchrun`, and for a script started alone.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
from torch.distributed import PrefixStore, Store, TCPStore

from harness.settings import Setting

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for what rank 0 has to say before it gives up."""


@dataclass(frozen=True, slots=True)
class Membership:
    """This process' place in the job, as its launcher told it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    restart_count: int
    """Restarts that torch's agent counts; equal on the ranks of one attempt on one node."""
    elastic: bool
    """An elastic agent started this process."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Membership":
        """From the variables that `torchrun` sets; a lone process is rank 0 of 1."""
        return cls(
            rank=int(environ.get("RANK", "0")),
            world_size=int(environ.get("WORLD_SIZE", "1")),
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
            restart_count=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            elastic="TORCHELASTIC_RUN_ID" in environ,
        )


@dataclass(frozen=True, slots=True)
class Session:
    """What rank 0 settles for all ranks of an attempt."""

    run_dir: str
    run_id: str
    attempt: int
    settings: Mapping[str, Setting]


def connect(member: Membership, environ: Mapping[str, str]) -> Store:
    """A store that all ranks of this attempt share, and no rank of an earlier one.

    The prefix by restart matters under plain `torchrun`: one store serves all its restarts, and
    without it new ranks read the addresses of dead ones.
    """
    address, port = environ.get("MASTER_ADDR", "127.0.0.1"), int(environ.get("MASTER_PORT", "0"))
    agent_hosts = environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True"
    store = TCPStore(
        host_name=address,
        port=port,
        world_size=member.world_size,
        is_master=member.rank == 0 and not agent_hosts,
        timeout=PATIENCE,
        wait_for_workers=False,
        multi_tenant=True,
    )
    return PrefixStore(f"harness/{member.restart_count}", store)


def agree(messages: Store, rank: int, settle: Callable[[], Session]) -> Session:
    """What rank 0 settled, on every rank; its mistake is every rank's `ValueError`."""
    if rank == 0:
        try:
            session = settle()
        except ValueError as error:
            messages.set("session", msgspec.json.encode({"error": str(error)}))
            raise
        messages.set("session", msgspec.json.encode(session))
        return session
    answer = bytes(messages.get("session"))
    error = msgspec.json.decode(answer).get("error")
    if error is not None:
        raise ValueError(f"rank 0 refused to start: {error}")
    return msgspec.json.decode(answer, type=Session)


def default_run_dir(member: Membership) -> Path:
    """`runs/<script>-<start of its launcher>`: the same through all restarts of one `torchrun`."""
    process = os.getppid() if member.elastic else os.getpid()
    return Path("runs") / f"{Path(sys.argv[0]).stem or 'run'}-{start_ticks(process)}-{process}"


def start_ticks(process: int) -> int:
    """When a process started, in clock ticks since boot: with its pid it names it for ever."""
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])  # the name before it may hold anything
