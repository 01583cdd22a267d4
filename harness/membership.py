"""Who this process is among the ranks, and the store through which they talk.

Works under `harness run`, under plain `torchrun`, and for a script started alone.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore

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

    def launcher(self) -> int:
        """Pid of what started the ranks, seen from one of them: itself if it is alone."""
        return os.getppid() if self.elastic else os.getpid()


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


def another_client(store: Store) -> Any:
    """A connection of its own to the same store: one that waits holds up whoever shares it.

    Typed by whoever takes it, since torch's stubs know neither this nor that values may be bytes.
    """
    return store.clone()  # type: ignore[attr-defined]


def without_prefix(store: Store) -> Store:
    """The store that the launcher sees."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
