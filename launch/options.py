"""What `harness run` was asked for: torchrun's flags and ours, checked before anything starts.

torch's own parser reads them, so every flag of torchrun is known here. Those without a meaning on one
node are said to have none, and those that would change what runs are refused by name.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

from harness import settings
from harness.settings import DEFAULTS, Settings
from launch import watchdog
from launch.rank import Kind, Program
from launch.restarts import NS, Limits

DEFAULT_RESTARTS = 10
DEFAULT_PREEMPTIONS = 100
DEFAULT_WINDOW_S = 3600.0
DEFAULT_GRACE_S = 60.0
LONGEST_S = 1e9
"""31 years; in nanoseconds, still a number that every part of a run can hold."""

SETTINGS_HELP = {
    "checkpoints": "fsspec URL or folder of the checkpoints (default: the run's own checkpoints/)",
    "save_every_steps": "steps between saves; 0 saves at the end alone",
    "keep": "how many verified checkpoints are kept",
    "keep_for_s": "seconds for which a checkpoint stays beside those that --keep counts",
    "keep_every_steps": "checkpoints at multiples of this many steps stay for ever; 0: none",
    "keep_when_full": "how many are enough when the storage is full; 0 never goes below --keep",
    "storage_timeout_s": "seconds that a call to the storage may take, beside 0.1 s for each MB",
    "shard_bytes": "size in bytes at which a rank's shard is split into another file",
    "seed": "base of every random stream",
    "threads": "CPU threads of a rank; 0 takes cores divided by ranks",
    "digest_every_steps": "steps between digests of the whole state; 0 digests the last step alone",
    "resume": "`auto`, `fresh` (from nothing, beside commits that exist) or a step",
    "exact": "refuse to resume where the bits may differ",
}
HANGS = {
    "hang_after": "in a normal step; if 5 × the slowest one of the last day is more, that; 0 watches nothing",
    "startup_limit": "before a rank joins, while the group forms, and until the loop begins",
    "restore_limit": "while a checkpoint is looked for and read",
    "first_step_limit": "in the first step of an attempt",
    "evaluation_limit": "in job.evaluating()",
    "save_limit": "while a save holds up training, the last one included",
}
LIMITS = {
    "hang_after": "step_ns",
    "startup_limit": "startup_ns",
    "restore_limit": "restore_ns",
    "first_step_limit": "first_step_ns",
    "evaluation_limit": "evaluation_ns",
    "save_limit": "save_ns",
}
"""What each of them sets of `watchdog.Limits`."""
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


class UsageError(ValueError):
    """A mistake in how the command was called."""


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
    preload: tuple[str, ...]
    cold: bool
    faults: Path | None
    tape: Path | None
    metrics_port: int | None
    metrics: bool
    quiet: bool
    notes: tuple[str, ...]
    torch: argparse.Namespace
    """Everything, as torch's own `config_from_args` wants it."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; torchrun's usage alone would fill the screen."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


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
        hangs=_hangs(asked),
        grace_s=asked.grace,
        preload=tuple(name for name in asked.preload.split(",") if name),
        cold=asked.cold,
        faults=asked.faults,
        tape=asked.tape,
        metrics_port=asked.metrics_port,
        metrics=asked.metrics,
        quiet=asked.quiet,
        notes=tuple(
            f"{_flag(name)} has no effect: {why}"
            for name, why in WITHOUT_EFFECT.items()
            if getattr(asked, name) != defaults[name]
        ),
        torch=asked,
    )


def make_parser() -> argparse.ArgumentParser:
    """The parser of torchrun, with our flags in a group of their own."""
    from torch.distributed.run import get_args_parser

    theirs = get_args_parser()
    parser = _Parser(
        prog="harness run",
        description="Run a distributed PyTorch job that survives its ranks. Takes torchrun's flags and its own.",
        parents=[theirs],
        add_help=False,
    )
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=DEFAULT_RESTARTS)
    _add_run(parser.add_argument_group("the run"))
    _add_launcher(parser.add_argument_group("the launcher"))
    _add_hangs(parser.add_argument_group("when a rank counts as hung, in seconds without progress"))
    return parser


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--run",
        type=Path,
        metavar="DIR",
        help="run directory; one that exists is continued (default: runs/<script>-<time>)",
    )
    for field in fields(Settings):
        flag = "--" + field.name.replace("_", "-")
        text = SETTINGS_HELP[field.name]
        text += "" if field.default == "" else f" (default: {field.default})"
        if isinstance(field.default, bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            group.add_argument(flag, metavar="VALUE", help=text)
    group.add_argument("--faults", type=Path, metavar="PLAN", help="break the run by this plan")
    group.add_argument("--tape", type=Path, metavar="FILE", help="break the run by this tape")


def _add_launcher(group: argparse._ArgumentGroup) -> None:
    def add(flag: str, **how: Any) -> None:
        group.add_argument(flag, **how)

    window = f"seconds within which --max-restarts counts (default: {DEFAULT_WINDOW_S:g}"
    window += f"; restarts: {DEFAULT_RESTARTS})"
    preemptions = "restarts within the window after ranks that SIGTERM ended: they are no failures"
    preemptions += f" (default: {DEFAULT_PREEMPTIONS})"
    grace = f"seconds for the last save after SIGTERM (default: {DEFAULT_GRACE_S:g})"
    preload = "modules to import once for all ranks, separated by commas"
    port = "port of /metrics; 0 takes a free one (default: the exporter's)"
    add("--restart-window", type=float, default=DEFAULT_WINDOW_S, metavar="S", help=window)
    add("--max-preemptions", type=int, default=DEFAULT_PREEMPTIONS, metavar="N", help=preemptions)
    add("--grace", type=float, default=DEFAULT_GRACE_S, metavar="S", help=grace)
    add("--preload", default="", metavar="MODULES", help=preload)
    add("--cold", action="store_true", help="start each rank as a fresh interpreter")
    add("--metrics-port", type=int, metavar="PORT", help=port)
    add("--no-metrics", dest="metrics", action="store_false", help="serve no /metrics")
    add("--quiet", action="store_true", help="say only what went wrong")


def _add_hangs(group: argparse._ArgumentGroup) -> None:
    default = watchdog.Limits()
    for name, during in HANGS.items():
        flag, least_s = _flag(name), getattr(default, LIMITS[name]) / NS
        group.add_argument(
            flag, type=float, default=least_s, metavar="S", help=f"{during} (default: {least_s:g})"
        )


def _hangs(asked: argparse.Namespace) -> watchdog.Limits | None:
    if asked.hang_after == 0:
        return None
    limits = {field: int(getattr(asked, name) * NS) for name, field in LIMITS.items()}
    return watchdog.Limits(**limits)


def _settings(asked: argparse.Namespace) -> dict[str, Any]:
    given = {key: getattr(asked, key) for key in DEFAULTS}
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
    if PathFinder.find_spec(top, [here, *sys.path]) is None:
        raise UsageError(
            f"there is no module named {top!r}, neither in {here} nor on Python's path"
        )


def _refuse(asked: argparse.Namespace) -> None:
    mistakes = [
        f"{_flag(name)} is not supported: {why}"
        for name, why in REFUSED.items()
        if getattr(asked, name)
    ]
    if asked.nnodes not in ("1", "1:1"):
        mistakes.append(
            f"--nnodes {asked.nnodes} is not supported yet: a run has one node, so use --nnodes 1"
        )
    mistakes += [
        f"{flag} {value:g} is not a time: it must be from {least} to {LONGEST_S:g} s"
        for flag, value, least in (
            ("--grace", asked.grace, 0),
            ("--restart-window", asked.restart_window, 1),
            *((_flag(name), getattr(asked, name), 0) for name in HANGS),
        )
        if not least <= value <= LONGEST_S
    ]
    mistakes += [
        f"{flag} {value} is below 0"
        for flag, value in (
            ("--max-restarts", asked.max_restarts),
            ("--max-preemptions", asked.max_preemptions),
        )
        if value < 0
    ]
    if asked.faults is not None and asked.tape is not None:
        mistakes.append("--faults and --tape exclude each other: a plan is compiled into a tape")
    if asked.metrics_port is not None and not 0 <= asked.metrics_port < 1 << 16:
        mistakes.append(f"--metrics-port {asked.metrics_port} is no TCP port: it is 0 to 65535")
    for flag, path in (("--faults", asked.faults), ("--tape", asked.tape)):
        if path is not None and not path.is_file():
            mistakes.append(f"{flag} {path}: there is no such file")
    mistakes += _mistaken_settings(asked)
    if mistakes:
        raise UsageError("\n".join(mistakes))


def _mistaken_settings(asked: argparse.Namespace) -> list[str]:
    """A line for each setting that no run could have, whatever an earlier launch wrote down."""
    layers = [("flag", _settings(asked)), ("environment", settings.from_environment(os.environ))]
    try:
        settings.resolve(layers)
    except ValueError as error:
        return str(error).splitlines()
    return []


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
