"""Gathers the facts: asks the kernel, tries out disk and storage, and runs the trial. Judges nothing."""

import os
import platform
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness import storage
from harness.checkpoint import address
from harness.checkpoint.probe import probe
from harness.checkpoint.store import Store, StoreError
from harness.settings import Settings
from launch import stacks
from launch.doctor import detection, disk, machine
from launch.doctor.facts import Facts, Spy, Storage
from launch.doctor.tried import tried


def facts(
    run: Path, checkpoints: str, metrics_port: int | None, environ: Mapping[str, str]
) -> Facts:
    """Everything that can be found out about this machine; takes some seconds."""
    return Facts(
        python=platform.python_version(),
        trial=tried(),
        memory=machine.memory(),
        disk=disk.tried(run),
        limits=machine.limits(),
        kernel=machine.kernel(),
        clock=machine.clock(),
        ports=machine.ports(metrics_port),
        storage=storage_at(run, checkpoints),
        spy=_spy(),
        environment={name: environ[name] for name in detection.VARIABLES if name in environ},
    )


def storage_at(run: Path, url: str) -> Storage:
    """The storage, tried out; what was not there before is not there after."""
    parent = disk.existing(run)
    place = url or str(parent / f".doctor-{secrets.token_hex(4)}")
    name = url or f"a folder in {parent}"
    folder = None
    if address.protocol_of(place) in address.LOCAL and "::" not in place:
        folder = Path(place.removeprefix("file://"))
    missing = () if folder is None else disk.missing(folder)
    began_s = time.monotonic()
    try:
        warnings = tuple(probe(Store.at(place, "doctor", **storage.options(Settings()))))
        free = None if folder is None else shutil.disk_usage(folder).free
    except (StoreError, OSError, ValueError, ImportError) as refusal:
        return Storage(name, str(refusal).splitlines()[0].replace(place, name))
    finally:
        _clear(missing)
    return Storage(name, "", warnings, time.monotonic() - began_s, free)


def _clear(made: Sequence[Path]) -> None:
    """Take away the first of these folders, and those on the way to it as far as nothing else is in them."""
    for folder in made[:1]:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in made[1:]:
        with suppress(OSError):
            folder.rmdir()


def _spy() -> Spy:
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    return Spy(stacks.spy_command(), scope <= 1 or (scope == 2 and os.geteuid() == 0))
