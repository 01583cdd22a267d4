"""The flags of `harness run`: torchrun's and ours, and what each of ours says of itself.

torch's own parser reads torchrun's, so every one of them is known here.
"""

import argparse
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from harness.metrics import USUAL_PORT
from harness.settings import ALIASES, Settings
from launch import watchdog
from launch.restarts import NS

DEFAULT_RESTARTS = 10
DEFAULT_PREEMPTIONS = 100
DEFAULT_WINDOW_S = 3600.0
DEFAULT_GRACE_S = 60.0
DEFAULT_LINGER_S = 600.0
OF_TORCHRUN = {
    "nnodes": "one node: 1 is all that is supported yet",
    "max_restarts": f"restarts after failures within --restart-window (default: {DEFAULT_RESTARTS})",
}
"""What torchrun's own help would leave unsaid."""
SETTINGS_HELP = {
    "checkpoints": "fsspec URL or folder of the checkpoints (default: the run's own checkpoints/)",
    "memory_every": "between saves to memory: '20 steps', '30s', 'auto', 'auto 10s..10min' or 'off'",
    "memory_dir": "folder of the copies in memory, such as /dev/shm (default: memory that the saver holds)",
    "storage_every": "between saves to storage, likewise; 'off' saves at the end alone",
    "overlap": "copy parameters beside the next step: `on`, `off`, or `auto`: on GPUs, or with cores to spare",
    "keep": "how many verified checkpoints are kept",
    "keep_for_s": "seconds for which a checkpoint stays beside those that --keep counts",
    "keep_every_steps": "checkpoints at multiples of this many steps stay for ever; 0: none",
    "keep_when_full": "how many are enough when the storage is full; 0 never goes below --keep",
    "storage_timeout_s": "seconds that a call to the storage may take, beside 0.1 s for each MB",
    "shard_bytes": "size in bytes at which a rank's shard is split into another file",
    "seed": "base of every random stream",
    "threads": "CPU threads of a rank; 0 takes cores divided by ranks",
    "digest_every_steps": "steps between digests of the whole state; 0 digests the last step alone",
    "health_every_steps": "steps between readings of gradient norm and update-to-weight ratios; 0: none",
    "watch_tensors": "parameters, by name and separated by commas, whose ratio is told by itself",
    "on_nonfinite": "after NaN or Inf in a loss or gradient: `fail`, `skip` (the step) or `report`",
    "on_spike": "after a loss that jumps: `report`, or `rollback` to a checkpoint from before it",
    "replicas_every_steps": "steps between comparisons of weights between ranks; 0: none",
    "on_replica_mismatch": "where they differ: `report`, or `fail`, which compares before each save too",
    "audit_every_steps": "steps between audits of gradients, for loops with job.audited; 0: none",
    "on_audit_mismatch": "after a gradient that another rank does not get: `fail` or `report`",
    "target_losses": "validation losses, such as 2.8,2.6: metrics tell when each was reached",
    "resume": "`auto`, `fresh` (from nothing, beside commits that exist) or a step",
    "exact": "refuse to resume where the bits may differ; another number of ranks goes on, and is said",
}
METAVARS = {
    "memory_dir": "DIR",
    "checkpoints": "URL",
    "shard_bytes": "BYTES",
    "resume": "FROM",
    "watch_tensors": "NAMES",
    "target_losses": "LOSSES",
    "on_nonfinite": "WORD",
    "memory_every": "INTERVAL",
    "overlap": "WORD",
    "storage_every": "INTERVAL",
    "on_spike": "WORD",
    "on_replica_mismatch": "WORD",
    "on_audit_mismatch": "WORD",
}
"""What a value is, where it is no number of steps, seconds or things."""
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


NEGATIVE = re.compile(r"-\.?\d")
"""Begins a value that is below 0, with a unit too: argparse alone would take `-3GB` for a flag, and say nothing of it."""


class UsageError(ValueError):
    """A mistake in how the command was called."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; torchrun's usage alone would fill the screen."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def make_parser() -> argparse.ArgumentParser:
    """The parser of torchrun, with our flags in a group of their own."""
    from torch.distributed.run import get_args_parser

    theirs = get_args_parser()
    parser = _Parser(
        prog="harness run",
        usage="harness run [flags] SCRIPT [the script's own flags]",
        description="Run a distributed PyTorch job that survives its ranks. Takes torchrun's flags, which come first"
        " here, and its own, which come last. One of torchrun's that has no effect here is said to have none.",
        epilog="Exit status: 0 finished, 1 failed, 2 wrong usage, 75 saved and left (run me again), 130 interrupted.",
        parents=[theirs],
        add_help=False,
    )
    parser._negative_number_matcher = NEGATIVE
    for action in parser._actions:
        action.help = OF_TORCHRUN.get(action.dest, action.help)
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=DEFAULT_RESTARTS)
    _add_run(parser.add_argument_group("the run"))
    _add_launcher(parser.add_argument_group("the launcher"))
    add_hangs(parser.add_argument_group("when a rank counts as hung, in seconds without progress"))
    return parser


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--run",
        type=Path,
        metavar="DIR",
        help="run directory; one that exists is continued (default: runs/<script>-<time>)",
    )
    for field in fields(Settings):
        text = SETTINGS_HELP[field.name]
        text += "" if field.default == "" else f" (default: {field.default})"
        if isinstance(field.default, bool):
            group.add_argument(
                flag(field.name), action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            group.add_argument(flag(field.name), metavar=_metavar(field.name), help=text)
    for alias, name in ALIASES.items():
        text = f"the same as {flag(name)} 'N steps'; 0 is 'off'"
        group.add_argument(flag(alias), metavar="N", help=text)
    group.add_argument("--faults", type=Path, metavar="PLAN", help="break the run by this plan")
    group.add_argument("--tape", type=Path, metavar="FILE", help="break the run by this tape")


def _metavar(name: str) -> str:
    if name.endswith("_s"):
        return "S"
    return METAVARS.get(name, "N")


def _add_launcher(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    window = f"seconds within which --max-restarts ({DEFAULT_RESTARTS}) counts"
    window += f" (default: {DEFAULT_WINDOW_S:g})"
    preemptions = "restarts within the window after ranks that SIGTERM ended: they are no failures"
    preemptions += f" (default: {DEFAULT_PREEMPTIONS})"
    grace = f"seconds for the last save after SIGTERM (default: {DEFAULT_GRACE_S:g})"
    linger = "seconds for which copies in memory are held for the next launch after this one was"
    linger += f" killed (default: {DEFAULT_LINGER_S:g})"
    preload = "modules that the script imports, separated by commas: imported once for all ranks"
    port = f"port of /metrics; 0 takes a free one (default: {USUAL_PORT}, or a free one where that"
    port += " is taken)"
    host = "address on which /metrics is served (default: 127.0.0.1, this machine alone)"
    access = "TOML file with TLS and passwords for /metrics, as docs/metrics.md has it"
    add("--restart-window", type=float, default=DEFAULT_WINDOW_S, metavar="S", help=window)
    add("--max-preemptions", type=int, default=DEFAULT_PREEMPTIONS, metavar="N", help=preemptions)
    add("--grace", type=float, default=DEFAULT_GRACE_S, metavar="S", help=grace)
    add("--linger", type=float, default=DEFAULT_LINGER_S, metavar="S", help=linger)
    add("--preload", default="", metavar="MODULES", help=preload)
    add("--cold", action="store_true", help="start each rank as a fresh interpreter")
    add("--metrics-port", type=int, metavar="PORT", help=port)
    add("--metrics-host", default="127.0.0.1", metavar="ADDRESS", help=host)
    add("--metrics-access", type=Path, metavar="FILE", help=access)
    add("--no-metrics", dest="metrics", action="store_false", help="serve no /metrics")
    add("--quiet", action="store_true", help="say only what went wrong")


def add_hangs(group: argparse._ArgumentGroup) -> None:
    """The flags of the watch, whichever command has them."""
    default = watchdog.Limits()
    for name, during in HANGS.items():
        least_s = getattr(default, LIMITS[name]) / NS
        group.add_argument(
            flag(name),
            type=float,
            default=least_s,
            metavar="S",
            help=f"{during} (default: {least_s:g})",
        )


def flag(name: str) -> str:
    """How people type what is called `name` here."""
    return "--" + name.replace("_", "-")
