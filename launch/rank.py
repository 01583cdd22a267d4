"""What a rank's process does before and around the user's script, so that the script sees no launcher.

Everything that differs from `python script.py` in a process forked from a warm parent is put right
here. The standard library alone is imported; torch and NumPy are looked up if they are there.
"""

import atexit
import builtins
import ctypes
import faulthandler
import gc
import io
import json
import os
import random
import runpy
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

SCHEMA = 1
STACKS_SIGNAL = signal.SIGRTMIN + 5
"""Makes a rank write what all of its threads are doing; no library or scheduler is known to use it."""
INTERRUPTED = 130
TEARDOWN_S = 10.0
"""Longest tear-down of a rank that failed: a library may wait for peers that are gone for ever."""
LAST_TEARDOWN_S = 60.0
"""The same of one that is done, for whose end nobody waits to start again."""


class Kind(StrEnum):
    """How a program is named."""

    SCRIPT = "script"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank runs."""

    kind: Kind
    target: str
    """Path of the script (or of a folder or archive with a `__main__.py`), or name of the module."""
    arguments: tuple[str, ...] = ()
    keeps_path: bool = field(default_factory=lambda: sys.flags.safe_path)
    """Python was told (`-P`) to look in no folder before those of its own."""

    @property
    def is_packed(self) -> bool:
        """It is a folder or an archive with a `__main__.py`."""
        return Path(self.target).is_dir() or self.target.endswith((".zip", ".pyz"))

    @property
    def folder(self) -> str:
        """Where its own modules are looked for first."""
        if self.kind is Kind.MODULE:
            return str(Path.cwd())
        if self.is_packed:
            return str(Path(self.target).absolute())
        return str(Path(self.target).resolve().parent)


def own_modules() -> tuple[str, ...]:
    """Loaded modules that are the launcher's own, for a parent to tell its forks.

    To go through the names of all modules takes a fork 6 ms: it copies the page of each.
    """
    return tuple(_inside("launch"))


def play_forked(program: Program, stacks: str, not_for_it: tuple[str, ...]) -> NoReturn:
    """Run `program` in a process that was forked from a warm parent. Ends in `SystemExit`.

    It is not to find the modules `not_for_it` loaded, so that it may bring some of their names.
    """
    # Forks share the parent's streams: without this all ranks would draw the same numbers.
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
        # Set after the fork, OMP_NUM_THREADS does nothing.
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for name in not_for_it:
        sys.modules.pop(name, None)
    play(program, stacks)


def play(program: Program, stacks: str) -> NoReturn:
    """Run `program` as `python` would, and record the exception that ends it. Ends in `SystemExit`."""
    # The first to be registered runs after all that the script registers.
    atexit.register(_bound_teardown, os.environ.get("HARNESS_RUN_DIR"), os.environ.get("RANK"))
    faulthandler.enable(all_threads=True)
    faulthandler.register(STACKS_SIGNAL, file=Path(stacks).open("w"), all_threads=True)  # noqa: SIM115
    try:
        _run(program)
    except SystemExit as leaving:
        status = _status(leaving.code)
        if not isinstance(leaving.code, int | None):  # the script, or Python, says why
            _record(leaving, _own_part(leaving.__traceback__))
    except BaseException as error:  # noqa: BLE001 - whatever ends the script is to be recorded
        trace = _own_part(error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = (
            type(error),
            error,
            trace,
        )  # as Python does
        _record(error, trace)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    else:
        status = 0
    if status != 0:
        _leave_at_once(status)
    raise SystemExit(0)


def _status(code: object) -> int:
    """The exit code that `sys.exit(code)` means."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)  # noqa: T201
    return 1


def _leave_at_once(status: int) -> NoReturn:
    """Exit as Python does, but for taking every module apart: others wait to start again.

    That alone takes 0.3 s of a core. Threads are joined, functions of `atexit` run, the script's
    globals go, and whatever else was left open is flushed, in C too.
    """
    faulthandler.dump_traceback_later(TEARDOWN_S, exit=True)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    script = sys.modules["__main__"].__dict__
    script.update(dict.fromkeys(script.keys() - {"__builtins__"}))
    gc.collect()
    for opened in [it for it in gc.get_objects() if issubclass(type(it), io.IOBase)]:
        with suppress(Exception):  # one that was detached does not even say whether it is closed
            if not opened.closed:
                opened.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def _bound_teardown(run_dir: str | None, rank: str | None) -> None:
    """See that a rank whose work is done ends: no limit of the launcher's is for it any more.

    What is left when this runs is Python's own: every module is taken apart, with what the script left
    there. A rank whose work is not done may go on, as its exit code would be taken for a failure.
    """
    slots, rundir = (sys.modules.get(f"harness.{name}") for name in ("slots", "rundir"))
    if slots is None or rundir is None or run_dir is None or rank is None:
        return
    slot = slots.read(rundir.RunDir.at(run_dir).slot(int(rank)))
    if slot is not None and slot.pid == os.getpid() and slot.mark is slots.Mark.FINISHED:
        faulthandler.dump_traceback_later(LAST_TEARDOWN_S, exit=True)


def open_streams() -> None:
    """Make `sys.stdin`, `sys.stdout` and `sys.stderr` anew over descriptors 0, 1 and 2.

    Line by line: what a killed rank printed is in its log.
    """
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", 1, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]  # noqa: SIM115
        2, "w", 1, errors="backslashreplace", closefd=False
    )


def _run(program: Program) -> None:
    main = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv = [program.target, *program.arguments]
    if not program.keeps_path:
        _search_first(program.folder)
    if program.kind is Kind.MODULE:
        # What `python -m` itself calls; `runpy.run_module` would take `__main__` away again
        # before functions registered with `atexit` run.
        runpy._run_module_as_main(program.target)  # type: ignore[attr-defined]
    elif program.is_packed:
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    else:
        _run_script(main, Path(program.target))


def _run_script(main: ModuleType, script: Path) -> None:
    path = str(script.absolute())
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    code = compile(script.read_bytes(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102


def _search_first(folder: str) -> None:
    """Put `folder` where `python` puts the script's: in the place of the launcher's own."""
    sys.path[0:1] = [folder]
    # A warm parent may have imported another module of the name of one beside the script.
    for entry in Path(folder).iterdir() if Path(folder).is_dir() else ():
        loaded = sys.modules.get(entry.stem)
        is_module = entry.suffix == ".py" or (entry / "__init__.py").is_file()
        if loaded is None or not is_module or entry.stem in sys.stdlib_module_names:
            continue
        origin = getattr(loaded, "__file__", None)
        if origin is not None and not Path(origin).is_relative_to(Path(folder).resolve()):
            _forget(entry.stem)


def _forget(package: str) -> None:
    """Drop `package` from the loaded modules, so that the script may bring one of that name."""
    for name in _inside(package):
        del sys.modules[name]


def _inside(package: str) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == package]


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """`trace` without the frames that stand above the user's program."""
    above = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in above:
        trace = trace.tb_next
    return trace


def _record(error: BaseException, trace: TracebackType | None) -> None:
    """Write what ended this rank where the launcher looks, in the form of torch's `record`."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is None:
        return
    callstack = "".join(traceback.format_exception(type(error), error, trace))
    content = {
        "schema": SCHEMA,
        "type": type(error).__name__,
        "where": _where(trace),
        "at_ns": time.monotonic_ns(),
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {"py_callstack": callstack, "timestamp": str(int(time.time()))},
        },
    }
    try:
        Path(path).write_text(json.dumps(content))
    except OSError as reason:
        print(f"harness: {path} cannot be written: {reason}", file=sys.stderr)  # noqa: T201


def _where(trace: TracebackType | None) -> str:
    """`file:line` of the innermost frame; empty where there is none."""
    frames = traceback.extract_tb(trace)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


if __name__ == "__main__":
    _, its_stacks, its_kind, its_target, *its_arguments = sys.argv
    open_streams()
    play(Program(Kind(its_kind), its_target, tuple(its_arguments)), its_stacks)
