"""Judges what ranks run on: Python, torch, GPUs, the way they are started, and how they find each other. Pure."""

from collections import Counter

from launch.doctor.facts import Asked, Facts, Finding, Level

LEAST_TORCH = (2, 9)
LEAST_PYTHON = (3, 11)
SLOW_GROUP_S = 5.0


def torch(facts: Facts, _: Asked) -> Finding:
    """Whether torch is there, and new enough."""
    trial = facts.trial
    least = ".".join(map(str, LEAST_TORCH))
    found = f"torch {trial.torch or 'cannot be imported'}, Python {facts.python}"
    if not trial.torch:
        return Finding("torch", Level.FAIL, f"{found}: {trial.error}", "pip install torch")
    if _numbers(trial.torch) < LEAST_TORCH:
        return Finding("torch", Level.FAIL, found, f"upgrade: torch {least} is the oldest tested")
    if _numbers(facts.python) < LEAST_PYTHON:
        return Finding("torch", Level.FAIL, found, "upgrade: Python 3.11 is the oldest supported")
    return Finding(
        "torch", Level.OK, f"{found}, {f'CUDA {trial.cuda}' if trial.cuda else 'CPU build'}"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of `2.13.0+cpu`."""
    return tuple(
        int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2] if part.isdecimal()
    )


def gpus(facts: Facts, asked: Asked) -> Finding:
    """Whether there is one for each rank, and whether its peak is known."""
    found, present = facts.trial.gpus, facts.kernel.nvidia_devices
    if not found and present:
        return Finding(
            "gpus",
            Level.WARN,
            f"{present} of NVIDIA in /dev, and none that torch can use",
            "install a CUDA build of torch and a driver that fits it, or unset CUDA_VISIBLE_DEVICES",
        )
    if not found:
        return Finding("gpus", Level.OK, "none: ranks train on the CPU")
    kinds = Counter(found)
    words = ", ".join(
        f"{count} × {gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB, {_peak(gpu.peak_flops)})"
        for gpu, count in kinds.items()
    )
    if len(found) < asked.ranks:
        way = f"--nproc-per-node {len(found)}, or CUDA_VISIBLE_DEVICES= to train on the CPU"
        return Finding("gpus", Level.FAIL, f"{words}, for {asked.ranks} ranks", way)
    if len(kinds) > 1:
        way = "ranks wait for the slowest: leave the odd ones out with CUDA_VISIBLE_DEVICES"
        return Finding("gpus", Level.WARN, words, way)
    return Finding("gpus", Level.OK, words)


def _peak(flops: float | None) -> str:
    if flops is None:
        return "no published peak: measured where MFU is asked for"
    return f"{flops / 1e12:,.4g} TFLOP/s in bfloat16"


def start(facts: Facts, _: Asked) -> Finding:
    """Whether ranks can be forked from a warm parent, and tied to it."""
    missing = facts.kernel.missing
    if missing:
        return Finding(
            "start",
            Level.FAIL,
            f"the kernel refuses {', '.join(missing)}",
            "Linux 5.4 or newer without a seccomp filter on these; in Docker, its default profile",
        )
    if facts.trial.obstacle:
        return Finding(
            "start",
            Level.WARN,
            facts.trial.obstacle,
            "ranks start as fresh interpreters, seconds later: find what imports start threads",
        )
    return Finding("start", Level.OK, "ranks are forked warm, and none outlives its launcher")


def store(facts: Facts, _: Asked) -> Finding:
    """Whether torch's store works on loopback."""
    took_s = facts.trial.store_s
    if took_s is None:
        return Finding("store", Level.FAIL, facts.trial.error or "it was never tried", _LOOPBACK)
    return Finding("store", Level.OK, f"TCPStore on 127.0.0.1 answers in {1000 * took_s:.0f} ms")


def backend(facts: Facts, _: Asked) -> Finding:
    """Whether two processes form a group."""
    trial = facts.trial
    if trial.group_s is None:
        return Finding("backend", Level.FAIL, trial.error or "it was never tried", _LOOPBACK)
    found = f"{trial.backend}: a group forms and adds up in {trial.group_s:.2f} s"
    if trial.group_s > SLOW_GROUP_S:
        way = "each restart waits for this: look for a slow name server or GLOO_SOCKET_IFNAME"
        return Finding("backend", Level.WARN, found, way)
    return Finding("backend", Level.OK, found)


_LOOPBACK = (
    "see that 127.0.0.1 can be bound and reached: proxies, sandboxes, a GPU that others hold"
)


def spy(facts: Facts, _: Asked) -> Finding:
    """Whether the stacks of hung ranks will be seen."""
    if facts.spy.path is None:
        way = "pip install py-spy: without it, those that answer nobody have no stacks in a report"
        return Finding("py-spy", Level.WARN, "not installed", way)
    if not facts.spy.may_trace:
        way = "sysctl kernel.yama.ptrace_scope=1, or --cap-add SYS_PTRACE for a container"
        return Finding("py-spy", Level.WARN, f"{facts.spy.path}, which may look at nobody", way)
    return Finding("py-spy", Level.OK, facts.spy.path)
