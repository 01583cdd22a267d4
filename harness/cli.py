"""The command `harness`: its own commands, and those that the rooms above bring with them.

A room registers a command under the entry point group `harness.commands`: a callable that takes its
arguments as a list and returns an exit status. So `harness` never imports the rooms above it.

Exit status: 0 done, 1 the answer is no, 2 a mistake in how it was called; a command of another room
may have more.
"""

import ast
import errno
import importlib.metadata
import importlib.util
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cyclopts import App, CycloptsError, Parameter

import harness.stored
from harness.commands import DONE, NO, USAGE, export, refused, report, sweep, target, verify
from harness.planning.command import plan
from harness.simulation.command import simulate

INTERRUPTED = 130
"""As shells have it: 128 and the number of SIGINT."""
GROUP = "harness.commands"
DISTRIBUTION = "resilience-harness"
CHECKPOINT = "checkpoint"


def main(argv: Sequence[str] | None = None) -> int:
    """Do what `argv` says and return the exit status; whoever presses Ctrl-C knows why it ends."""
    try:
        return _obey(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return INTERRUPTED


def _obey(arguments: list[str]) -> int:
    others = commands_of_other_rooms()
    if arguments and arguments[0] in others:
        return _of_another_room(others[arguments[0]], arguments[1:])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a report draws bars; not every encoding has them
    try:
        status = _own(arguments, others)
        print(end="", flush=True)  # noqa: T201
    except BrokenPipeError:  # `harness report RUN | head`: whoever read has read enough
        _say_no_more()
        return NO
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _say_no_more()
        return refused(f"what was asked for cannot be written whole: {error.strerror}", NO)
    return status


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What writing to a disk that is full, or broken, ends with."""


def _say_no_more() -> None:
    """Let what is still to be printed go nowhere: Python would end in a traceback over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def commands_of_other_rooms() -> dict[str, importlib.metadata.EntryPoint]:
    """The commands that installed packages bring, by name, in the order of their names."""
    found = importlib.metadata.entry_points(group=GROUP)
    return {point.name: point for point in sorted(found, key=lambda point: point.name)}


def _of_another_room(point: importlib.metadata.EntryPoint, arguments: list[str]) -> int:
    try:
        command = point.load()
    except (ImportError, AttributeError) as error:
        return refused(f"`harness {point.name}` cannot be loaded from {point.value}: {error}")
    status: int = command(arguments)
    return status


def _checkpoint(arguments: list[str]) -> int:
    """`harness checkpoint …`, whose imports the other commands need not wait for."""
    from harness.stored import command

    return command.main(arguments)


def _own(arguments: list[str], others: Mapping[str, importlib.metadata.EntryPoint]) -> int:
    if arguments[:1] == [CHECKPOINT]:
        return _checkpoint(arguments[1:])
    app = _app(others)
    try:
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=True)
    except CycloptsError:
        return USAGE
    status = command(*bound.args, **bound.kwargs)
    if not arguments:
        return USAGE
    return DONE if status is None else int(status)


def _app(others: Mapping[str, importlib.metadata.EntryPoint]) -> App:
    app = App(
        name="harness",
        help="Break a distributed PyTorch job on purpose, bring it back, and say where the time went.",
        version=_version,
        help_format="plaintext",
        default_parameter=Parameter(show_default=_shown),
    )
    for command in (report, verify, export, simulate, plan, target, sweep):
        app.command(command)
    app.command(App(name=CHECKPOINT, help=harness.stored.HELP))
    for name, point in others.items():
        app.command(App(name=name, help=_first_sentence(point)))
    return app


def _shown(default: object) -> str | None:
    """A default as `--help` has it; None where it is only that nothing was said."""
    unsaid = default is None or default is False or default in ("", [])
    return None if unsaid else str(default)


def _version() -> str:
    return f"harness {importlib.metadata.version(DISTRIBUTION)}"


def _first_sentence(point: importlib.metadata.EntryPoint) -> str:
    """First line of the docstring of `point`'s command, read without importing its module."""
    try:
        spec = importlib.util.find_spec(point.module)
        if spec is None or spec.origin is None:
            return f"({point.value} is not installed)"
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError):
        return f"({point.value} cannot be read)"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == point.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
