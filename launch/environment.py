"""What a rank is told through its environment: all that torchrun tells, and where its run is."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.rundir import RunDir
from harness.settings import Setting
from launch import flightrecorder

ADDRESS = "127.0.0.1"
LAYERS = ("flag", "environment")
"""Origins of settings that stand above what a script asks for in `join`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands in its attempt."""

    rank: int
    world_size: int
    role: str
    attempt: int
    """Job-wide, and rising for as long as the run lives."""
    first_attempt: int
    """The first one of this launch."""
    restarts: int
    """Restarts in this launcher's life, as torchrun counts them."""
    max_restarts: int
    port: int
    """Of the attempt's own store, which the launcher hosts."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all ranks of all attempts are told alike."""

    run_dir: RunDir
    run_id: str
    elastic_id: str
    """What torchrun calls the run id: `--rdzv-id`, or ours."""
    settings: Mapping[str, Setting]
    threads: int
    saver: str = ""
    """Where the node's saver listens; empty if ranks are to save by themselves."""


def environment(place: Place, shared: Shared) -> dict[str, str]:
    """The variables to set for one rank, on one node."""
    rank, world_size = str(place.rank), str(place.world_size)
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "ROLE_NAME": place.role,
        "GROUP_RANK": "0",
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "ROLE_WORLD_SIZE": world_size,
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(place.port),
        "TORCHELASTIC_RESTART_COUNT": str(place.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(place.max_restarts),
        "TORCHELASTIC_RUN_ID": shared.elastic_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(shared.run_dir.error(place.attempt, place.rank)),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "OMP_NUM_THREADS": str(shared.threads),
        "HARNESS_RUN_DIR": str(shared.run_dir.path),
        "HARNESS_RUN_ID": shared.run_id,
        "HARNESS_ATTEMPT": str(place.attempt),
        "HARNESS_FIRST_ATTEMPT": str(place.first_attempt),
        "HARNESS_SETTINGS": json.dumps(_passed_on(shared.settings)),
        "HARNESS_SAVER": shared.saver,
        **flightrecorder.variables(shared.run_dir.incident(place.attempt), os.environ),
    }


def _passed_on(settings: Mapping[str, Setting]) -> dict[str, tuple[Any, str]]:
    """Settings that flags and environment decide; a rank reads the rest from `run.toml`."""
    return {
        key: (setting.value, setting.origin)
        for key, setting in settings.items()
        if setting.origin in LAYERS
    }
