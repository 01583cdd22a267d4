"""Tells how a script finds its world, to be compared with what plain `python` gives it."""

import json
import pickle
import signal
import sys
import threading
from pathlib import Path

import sibling  # type: ignore[import-not-found]

import __main__


class Thing:
    """Pickled by reference to `__main__`."""


def world() -> dict[str, object]:
    """What the script sees."""
    return {
        "name": __name__,
        "argv": sys.argv[1:],
        "argv0": Path(sys.argv[0]).name,
        "path0": sys.path[0],
        "file": __file__,
        "package": __package__,
        "spec": None if __spec__ is None else __spec__.name,
        "docstring": __doc__,
        "main_is_me": __main__.__dict__ is globals(),
        "globals": sorted(name for name in globals() if name.startswith("__")),
        "sibling": Path(sibling.__file__).name,
        "pickles": type(pickle.loads(pickle.dumps(Thing()))).__name__,
        "stdin": sys.stdin.read(),
        "threads": threading.active_count(),
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "sigchld": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "cwd": str(Path.cwd()),
        "ours": [name for name in ("launch", "launch.rank") if name in sys.modules],
    }


if __name__ == "__main__":
    print(json.dumps(world()))
