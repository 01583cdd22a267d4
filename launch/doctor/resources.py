"""Judges what a run needs of its machine beside compute: memory, disk, limits, ports, clock, storage. Pure."""

from harness.metrics import USUAL_PORT
from launch.capacity import files_for
from launch.doctor.facts import Asked, Facts, Finding, Level

COPIES, COPIES_WITHOUT_MEMORY = 3, 2
"""Of the state on each node, beside the ranks' own: two slots that outlive the ranks and from which
saves are written (one without copies in memory), and what a restore reads into for all ranks together."""
TIGHT = 0.8
"""Of what there is; whoever needs more is one surprise away from the kernel's killer."""
LITTLE_SHARED_BYTES = 1_000_000_000
NO_SHARED_BYTES = 128_000_000
SLOW_SYNC_S = 0.25
PROCESSES_PER_RANK = 40
FLEETING = ("tmpfs", "devtmpfs", "ramfs", "overlay")
"""File systems that go with the machine or the container."""


def memory(facts: Facts, asked: Asked) -> Finding:
    """Whether the state and its copies fit."""
    there, copies = facts.memory, COPIES if asked.memory else COPIES_WITHOUT_MEMORY
    least = min(there.available_bytes, there.limit_bytes or there.available_bytes)
    whose = (
        ""
        if there.limit_bytes is None
        else f" (the container's limit is {_size(there.limit_bytes)})"
    )
    found = f"{_size(least)} to be had{whose}"
    if asked.state_bytes is None:
        way = f"give the size of what is saved: {copies} × it is needed, as in --state 4GB"
        return Finding("memory", Level.OK, found, way)
    of_ranks = 0 if facts.trial.gpus else asked.ranks
    need = (copies + of_ranks) * asked.state_bytes
    sum_ = f"({copies} copies{f' + {of_ranks} ranks' if of_ranks else ''}) × {_size(asked.state_bytes)}"
    found += f", {_size(need)} needed = {sum_}"
    if need > least:
        way = "raise the limit, or use --memory-every off, which saves one of the copies"
        return Finding("memory", Level.FAIL, found, way)
    if need > TIGHT * least:
        return Finding("memory", Level.WARN, found, "tight: batches and activations come on top")
    return Finding("memory", Level.OK, found)


def shared_memory(facts: Facts, asked: Asked) -> Finding:
    """Whether there is room for what loader workers and NCCL share."""
    shared = facts.memory.shared_bytes
    way = "docker run --ipc=host or --shm-size=8g; in Kubernetes an emptyDir of medium Memory there"
    if shared is None:
        return Finding("shared memory", Level.FAIL, "there is no /dev/shm", way)
    found = f"{_size(shared)} free in /dev/shm, for loader workers and NCCL; copies use it only with --memory-dir"
    if shared < NO_SHARED_BYTES and facts.trial.gpus and asked.ranks > 1:
        return Finding("shared memory", Level.FAIL, found, way)
    if shared < LITTLE_SHARED_BYTES:
        return Finding("shared memory", Level.WARN, found, way)
    return Finding("shared memory", Level.OK, found)


def disk(facts: Facts, _: Asked) -> Finding:
    """Whether a run can be written down."""
    there = facts.disk
    if there.error:
        way = "name another place with --run, on a file system of this machine"
        return Finding("disk", Level.FAIL, f"{there.path}: {there.error}", way)
    found = (
        f"{there.path} ({there.kind}): {_size(there.free_bytes)} free,"
        f" 1 MB durable in {1000 * there.sync_s:.0f} ms"
    )
    if there.kind in FLEETING:
        way = "a run kept here is gone with the machine or the container: mount a disk for it"
        return Finding("disk", Level.WARN, found, way)
    if there.sync_s > SLOW_SYNC_S:
        return Finding("disk", Level.WARN, found, "saves wait for this disk: use a faster one")
    return Finding("disk", Level.OK, found)


def limits(facts: Facts, asked: Asked) -> Finding:
    """Whether a process may have as many files, processes and locked pages as a run needs."""
    of, need = facts.limits, files_for(asked.ranks)
    processes = PROCESSES_PER_RANK * asked.ranks
    found = ", ".join(
        (
            f"files {_count(of.files)} (needs {need})",
            f"processes left {_count(of.processes_left)} (needs about {processes})",
            f"locked memory {'unlimited' if of.locked_bytes is None else _size(of.locked_bytes)}",
        )
    )
    if of.files is not None and of.files < need:
        return Finding("limits", Level.FAIL, found, f"ulimit -n {max(need, 65536)}")
    if of.processes_left is not None and of.processes_left < processes:
        return Finding("limits", Level.WARN, found, "ulimit -u unlimited: threads count as well")
    if facts.trial.gpus and of.locked_bytes is not None:
        way = "ulimit -l unlimited: InfiniBand has to lock the pages that it reads"
        return Finding("limits", Level.WARN, found, way)
    return Finding("limits", Level.OK, found)


def ports(facts: Facts, asked: Asked) -> Finding:
    """Whether the store and the metrics can listen."""
    name = str(USUAL_PORT if asked.metrics_port is None else asked.metrics_port)
    if facts.ports.error:
        way = "let processes listen on 127.0.0.1: a sandbox or a used-up range of ports forbids it"
        return Finding("ports", Level.FAIL, facts.ports.error, way)
    found = "the store of each attempt takes a free port"
    if facts.ports.refused:
        way = "name another with --metrics-port, from 1024 up: training would go on without metrics"
        return Finding("ports", Level.WARN, f"{found}; {name}: {facts.ports.refused}", way)
    if facts.ports.usual_is_taken:
        way = "another is taken then, and exporter.json in the run's directory says which"
        return Finding("ports", Level.WARN, f"{found}; {name} for metrics is taken", way)
    return Finding("ports", Level.OK, f"{found}; {name} for metrics is free")


def clock(facts: Facts, _: Asked) -> Finding:
    """Whether times mean something elsewhere, and after a reboot."""
    found = {True: "synchronised", False: "not synchronised", None: "nobody says if synchronised"}
    words = found[facts.clock.synchronised]
    if not facts.clock.has_boot_id:
        way = "mount /proc: without a boot id a run that goes on after a reboot is dated by guess"
        return Finding("clock", Level.WARN, f"{words}; the kernel names no boot", way)
    if facts.clock.synchronised is False:
        way = "run chrony or systemd-timesyncd: object stores refuse requests 15 min off"
        return Finding("clock", Level.WARN, words, way)
    return Finding("clock", Level.OK, words)


def storage(facts: Facts, asked: Asked) -> Finding:
    """Whether the storage of the checkpoints keeps its promises, and has room for them."""
    there = facts.storage
    if there.error:
        way = "see that the place and its credentials are right, or name another with --checkpoints"
        return Finding("storage", Level.FAIL, there.error, way)
    found = f"{there.url} keeps its promises (tried out in {there.took_s:.1f} s)"
    if asked.state_bytes is not None and there.free_bytes is not None:
        need = (asked.keep + 1) * asked.state_bytes
        found += f"; {_size(there.free_bytes)} free, {_size(need)} needed"
        found += f" = ({asked.keep} kept + 1) × {_size(asked.state_bytes)}"
        if need > there.free_bytes:
            return Finding("storage", Level.FAIL, found, "make room, keep fewer, or save elsewhere")
    if there.warnings:
        way = "set the clock that is wrong: ages of checkpoints are told by the storage's"
        return Finding("storage", Level.WARN, f"{found}; {'; '.join(there.warnings)}", way)
    return Finding("storage", Level.OK, found)


def _size(count: int) -> str:
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB")):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return f"{count / 1000:.3g} kB"


def _count(number: int | None) -> str:
    return "unlimited" if number is None else str(number)
