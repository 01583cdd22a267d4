"""What `harness run` was asked for, checked before anything starts.

Flags of torchrun without a meaning on one node are said to have none, and those that would change what
runs are refused by name.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import access, server, settings
from harness.rundir import check_local
from harness.settings import ALIASES, DEFAULTS
from launch import watchdog
from launch.flags import HANGS, LIMITS, UsageError, flag, make_parser
from launch.rank import Kind, Program
from launch.restarts import NS, Limits

LONGEST_S = 1e9
"""31 years; in nanoseconds, still a number that every part of a run can hold."""

REFUSED = {
    "no_python": "ranks are forks of a Python process",
    "virtual_local_rank": "each rank sees all devices and takes the one of its LOCAL_RANK",
    "numa_binding": "ranks are not bound to cores yet",
    "logs_specs": "what ranks print goes to logs/ of the run directory",
    "duplicate_stdout_filters": "what ranks print goes to logs/ of the run directory",
    "duplicate_stderr_filters": "what ranks print goes to logs/ of the run directory",
}
WITHOUT_EFFECT = {
    "log_dir": "what ranks print goes to logs/ of the run directory",
    "redirects": "what ranks print goes to logs/ of the run directory",
    "tee": "what ranks print goes to logs/ of the run directory",
    "local_ranks_filter": "what ranks print goes to logs/ of the run directory",
    "rdzv_endpoint": "the launcher hosts a fresh store for each attempt",
    "rdzv_conf": "the launcher hosts a fresh store for each attempt",
    "node_rank": "there is one node",
    "master_addr": "ranks meet on the loopback address",
    "master_port": "each attempt takes a free port",
    "local_addr": "ranks meet on the loopback address",
    "monitor_interval": "deaths are noticed as they happen",
    "start_method": "ranks are forked from a fork server",
    "signals_to_handle": "SIGINT stops, SIGTERM and SIGHUP drain",
    "event_log_handler": "the run's own log has every event",
    "shutdown_timeout": "survivors of a failure are killed at once; see --grace for SIGTERM",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    program: Program
    ranks: str
    """`--nproc-per-node` as given; `gpu` and the like are counted after the fork server is forked."""
    run: Path | None
    settings: dict[str, Any]
    limits: Limits
    hangs: watchdog.Limits | None
    """When a rank counts as hung; None if never."""
    grace_s: float
    linger_s: float
    preload: tuple[str, ...]
    cold: bool
    faults: Path | None
    tape: Path | None
    metrics_port: int | None
    metrics_host: str
    metrics_access: Path | None
    metrics: bool
    quiet: bool
    notes: tuple[str, ...]
    torch: argparse.Namespace
    """Everything, as torch's own `config_from_args` wants it."""


def parse(argv: Sequence[str]) -> Options:
    """What `argv` asks for. Raises `UsageError`; `--help` ends in `SystemExit`."""
    parser = make_parser()
    asked = parser.parse_args(list(argv))
    defaults = {action.dest: action.default for action in parser._actions}
    _refuse(asked)
    return Options(
        program=_program(asked),
        ranks=asked.nproc_per_node,
        run=asked.run,
        settings=_settings(asked),
        limits=Limits(asked.max_restarts, int(asked.restart_window * NS), asked.max_preemptions),
        hangs=hangs(asked),
        grace_s=asked.grace,
        linger_s=asked.linger,
        preload=tuple(name for it in asked.preload.split(",") if (name := it.strip())),
        cold=asked.cold,
        faults=asked.faults,
        tape=asked.tape,
        metrics_port=asked.metrics_port,
        metrics_host=asked.metrics_host,
        metrics_access=asked.metrics_access,
        metrics=asked.metrics,
        quiet=asked.quiet,
        notes=tuple(_without_effect(asked, defaults)),
        torch=asked,
    )


def _without_effect(asked: argparse.Namespace, defaults: Mapping[str, Any]) -> Iterator[str]:
    """A line for each flag that was given and changes nothing."""
    for name, why in WITHOUT_EFFECT.items():
        if getattr(asked, name) != defaults[name]:
            yield f"{flag(name)} has no effect: {why}"
    if asked.preload and asked.cold:
        yield "--preload has no effect: with --cold each rank imports everything by itself"


def hangs(asked: argparse.Namespace) -> watchdog.Limits | None:
    """When a rank counts as hung; None if never."""
    if asked.hang_after == 0:
        return None
    limits = {field: int(getattr(asked, name) * NS) for name, field in LIMITS.items()}
    return watchdog.Limits(**limits)


def _settings(asked: argparse.Namespace) -> dict[str, Any]:
    given = {key: getattr(asked, key) for key in (*DEFAULTS, *ALIASES)}
    return {key: value for key, value in given.items() if value is not None}


def _program(asked: argparse.Namespace) -> Program:
    target, arguments = asked.training_script, tuple(asked.training_script_args)
    if asked.module:
        _check_module(target)
        return Program(Kind.MODULE, target, arguments)
    if not Path(target).exists():
        raise UsageError(
            f"there is no script {target!r} in {Path.cwd()}: flags go before the script,"
            " and a module needs -m"
        )
    if Path(target).is_dir() and not (Path(target) / "__main__.py").is_file():
        raise UsageError(f"{target} is a folder without a __main__.py: name a script in it")
    return Program(Kind.SCRIPT, target, arguments)


def _check_module(name: str) -> None:
    """Raise `UsageError` if no package or module of that name can be found; nothing is imported."""
    top, here = name.partition(".")[0], str(Path.cwd())
    if top in sys.builtin_module_names or top in sys.modules:
        return
    # A package that is installed to be edited may be on no path: it has a finder of its own.
    if PathFinder.find_spec(top, [here, *sys.path]) is None and find_spec(top) is None:
        raise UsageError(
            f"there is no module named {top!r}, neither in {here} nor on Python's path"
        )


def _refuse(asked: argparse.Namespace) -> None:
    mistakes = [
        f"{flag(name)} is not supported: {why}"
        for name, why in REFUSED.items()
        if getattr(asked, name)
    ]
    if asked.nnodes not in ("1", "1:1"):
        mistakes.append(
            f"--nnodes {asked.nnodes} is not supported yet: a run has one node, so use --nnodes 1"
        )
    mistakes += _no_times(
        ("--grace", asked.grace, 0),
        ("--linger", asked.linger, 0),
        ("--restart-window", asked.restart_window, 1),
    )
    mistakes += mistaken_hangs(asked)
    mistakes += [
        f"{name} {value} is below 0"
        for name, value in (
            ("--max-restarts", asked.max_restarts),
            ("--max-preemptions", asked.max_preemptions),
        )
        if value < 0
    ]
    if asked.faults is not None and asked.tape is not None:
        mistakes.append("--faults and --tape exclude each other: a plan is compiled into a tape")
    mistakes += server.mistakes(asked.metrics_host, asked.metrics_port, "--metrics-")
    if asked.run is not None:
        mistakes += mistaken_run(asked.run)
    for name, path in (("--faults", asked.faults), ("--tape", asked.tape)):
        if path is not None and not path.is_file():
            mistakes.append(f"{name} {path}: there is no such file")
    if asked.metrics_access is not None:
        mistakes += _mistaken_access(asked.metrics_access)
    mistakes += _mistaken_settings(asked)
    if mistakes:
        raise UsageError("\n".join(mistakes))


def mistaken_run(path: Path) -> list[str]:
    """A line if `--run` names no folder of this machine."""
    try:
        check_local(path)
    except ValueError as error:
        return [f"--run: {error}"]
    return []


def _mistaken_access(path: Path) -> list[str]:
    try:
        access.read(path)
    except ValueError as error:
        return [f"--metrics-access {error}"]
    return []


def mistaken_hangs(asked: argparse.Namespace) -> list[str]:
    """A line for each limit of the watch that is no time."""
    return _no_times(*((flag(hang), getattr(asked, hang), 0) for hang in HANGS))


def _no_times(*given: tuple[str, float, float]) -> list[str]:
    return [
        f"{name} {value:g} is not a time: it must be from {least} to {LONGEST_S:g} s"
        for name, value, least in given
        if not least <= value <= LONGEST_S
    ]


def _mistaken_settings(asked: argparse.Namespace) -> list[str]:
    """A line for each setting that no run could have, whatever an earlier launch wrote down."""
    layers = [("flag", _settings(asked)), ("environment", settings.from_environment(os.environ))]
    try:
        settings.resolve(layers)
    except ValueError as error:
        return str(error).splitlines()
    return []
