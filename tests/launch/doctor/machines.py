"""A machine on which all is well, to be spoilt in one thing at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from launch import watchdog
from launch.doctor.facts import (
    Asked,
    Clock,
    Disk,
    Facts,
    Gpu,
    Kernel,
    Limits,
    Memory,
    Ports,
    Spy,
    Storage,
    Trial,
)

GB = 10**9
H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * 2**30, 989e12)
ASKED = Asked(
    ranks=2,
    state_bytes=4 * GB,
    keep=3,
    limits=watchdog.Limits(),
    slowest_step_s=0.5,
    metrics_port=None,
)
CPU = Facts(
    python="3.12.1",
    trial=Trial(torch="2.13.0+cpu", backend="gloo", store_s=0.001, group_s=0.02),
    memory=Memory(64 * GB, None, 16 * GB),
    disk=Disk(Path("/runs"), "ext4", 500 * GB, 0.004),
    limits=Limits(65536, None, None),
    kernel=Kernel(),
    clock=Clock(True, True),
    ports=Ports(False),
    storage=Storage("s3://bucket/run", took_s=0.4),
    spy=Spy("/usr/bin/py-spy", True),
    environment={},
)
GPU = replace(
    CPU,
    trial=replace(
        CPU.trial,
        torch="2.13.0+cu130",
        cuda="13.0",
        backend="cuda:nccl,cpu:gloo",
        gpus=(H100, H100),
    ),
    kernel=Kernel(nvidia_devices=2),
)


def with_trial(facts: Facts, **changed: Any) -> Facts:
    """The same with other things found by the trial."""
    return replace(facts, trial=replace(facts.trial, **changed))
