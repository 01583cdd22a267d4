"""What was found on a machine, as plain values: whoever judges them looks at nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from launch import watchdog


class Level(StrEnum):
    """How good a finding is."""

    OK = "ok"
    WARN = "warn"
    """A run starts, and something about it will be worse than it need be."""
    FAIL = "fail"
    """A run does not start, or breaks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    check: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty where nothing needs to be done."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The run that is planned."""

    ranks: int
    state_bytes: int | None
    """Model, optimizer and all else that is saved, of the whole job; None if nobody said."""
    keep: int
    """Checkpoints that are kept."""
    limits: watchdog.Limits | None
    """When a rank counts as hung; None if never."""
    slowest_step_s: float | None
    """Of a normal step; None if nobody said."""
    metrics_port: int | None
    """None for the usual one."""
    memory: bool = True
    """Whether copies are kept in memory between saves to storage."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that ranks can use."""

    name: str
    memory_bytes: int
    peak_flops: float | None
    """In bfloat16, without sparsity; None where nobody published it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of two processes that were forked and formed a group, as ranks do."""

    error: str = ""
    """What went wrong first; empty if nothing did."""
    torch: str = ""
    """Its version; empty where it cannot be imported."""
    cuda: str = ""
    """The CUDA that it was built for; empty for a build without."""
    obstacle: str = ""
    """Why ranks cannot be forked from a warm parent."""
    gpus: tuple[Gpu, ...] = ()
    backend: str = ""
    store_s: float | None = None
    """For a value to come back from the store."""
    group_s: float | None = None
    """For the group to form and to add up one tensor."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the machine, or of the container that we are in."""

    available_bytes: int
    limit_bytes: int | None
    """Of the container; None without one."""
    shared_bytes: int | None
    """Free in /dev/shm; None where there is none."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Where runs will be kept."""

    path: Path
    kind: str = ""
    """Of file system, as /proc/mounts has it."""
    free_bytes: int = 0
    sync_s: float = 0.0
    """For a megabyte to be on the disk for certain."""
    error: str = ""
    """What cannot be done there that a run has to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a process of this user may have; None for no limit."""

    files: int | None
    processes_left: int | None
    locked_bytes: int | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the kernel lets a launcher do."""

    missing: tuple[str, ...] = ()
    """Calls that it refuses."""
    nvidia_devices: int = 0
    """Device files of GPUs, whatever torch makes of them."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What tells the time."""

    synchronised: bool | None
    """None where the kernel does not say."""
    has_boot_id: bool


@dataclass(frozen=True, slots=True)
class Ports:
    """Where processes of a run listen."""

    usual_is_taken: bool
    """The port of the metrics."""
    error: str = ""
    """Why no port of the loopback address can be had."""
    refused: str = ""
    """Why that of the metrics cannot, though nobody has taken it."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage that checkpoints shall go to, tried out."""

    url: str
    error: str = ""
    warnings: tuple[str, ...] = ()
    took_s: float = 0.0
    free_bytes: int | None = None
    """None for what is no disk of this machine."""


@dataclass(frozen=True, slots=True)
class Spy:
    """py-spy, which sees the stacks of those that answer nobody."""

    path: str | None
    may_trace: bool
    """The kernel lets a parent look into its children."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it."""

    python: str
    trial: Trial
    memory: Memory
    disk: Disk
    limits: Limits
    kernel: Kernel
    clock: Clock
    ports: Ports
    storage: Storage
    spy: Spy
    environment: Mapping[str, str]
    """Variables of torch and NCCL that change how failures are noticed."""
