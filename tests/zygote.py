"""One warm process from which every test's launcher is forked.

A launcher spends seconds on imports; a fork of this process has them done and starts in milliseconds.
Everything that is started here is below this process, so what a test leaves behind can be seen.
"""

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil

from launch import forkserver, warm
from launch.orders import Order
from launch.spawner import Spawner

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that runs `harness …`, forked from the zygote."""

    zygote: "Zygote"
    name: str
    pid: int
    output: Path
    """What it printed, on either stream."""

    def wait(self, timeout_s: float = 60.0) -> int:
        """Its exit code, or the negative number of the signal that ended it, once it has ended."""
        return self.zygote.wait(self, timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return self.output.read_text() if self.output.exists() else ""


class Zygote:
    """Starts `harness …` processes in milliseconds. One test process uses it, in one thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # That would have C's streams unbuffered too, and hide what nobody flushed.
        environment = {k: it for k, it in os.environ.items() if k != "PYTHONUNBUFFERED"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                env=environment,
            )
        self._spawner = Spawner(ours, self._process.pid)
        self._statuses: dict[str, int] = {}
        self._count = 0

    def launch(
        self,
        arguments: Sequence[str | Path],
        directory: Path,
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> Launched:
        """Run `harness ARGUMENTS…` in `directory`, in a session of its own."""
        self._count += 1
        name = f"harness-{self._count}"
        output = output or directory / f"{name}.log"
        order = Order(
            name=name,
            environment=dict(environment or {}),
            directory=str(directory),
            output=str(output),
            errors=str(output),
            arguments=tuple(str(argument) for argument in arguments),
        )
        return Launched(self, name, self._spawner.start([order])[name], output)

    def wait(self, launched: Launched, timeout_s: float) -> int:
        """See `Launched.wait`."""
        deadline = time.monotonic() + timeout_s
        while self.runs(launched):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._spawner], [], [], left_s)[0]:
                raise TimeoutError(
                    f"{launched.name} runs after {timeout_s:g} s; it printed:\n{launched.printed}"
                )
        return self._statuses[launched.name]

    def runs(self, launched: Launched) -> bool:
        """True while it has not ended."""
        for ended in self._spawner.ended():
            self._statuses[ended.name] = ended.status
        return launched.name not in self._statuses

    def below(self) -> list[psutil.Process]:
        """Every living process that was started here, however deep, orphans included."""
        # A process whose parent dies while all are listed is in no one's list: look again.
        return self._listed() or self._listed()

    def _listed(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self._process.pid).children(recursive=True)
            return [process for process in found if _lives(process)]
        return []

    def kill_all(self) -> None:
        """Kill whatever is still running."""
        for ended in self._spawner.stop(30.0) or ():
            self._statuses[ended.name] = ended.status

    def close(self) -> None:
        """End it, and everything that was started here."""
        self._spawner.close()
        self._process.wait()


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _harness(order: Order) -> NoReturn:
    """Be `harness ARGUMENTS…`. A rank, which is a fork of that, leaves as it does anywhere."""
    from harness.cli import main

    sys.argv = ["harness", *order.arguments]
    status = main(list(order.arguments))
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # to take apart all that was imported would take 0.3 s more


def _serve(descriptor: int, parent: int) -> None:
    warm.keep_to_one_thread()
    warm.load()
    import harness.cli
    import launch.launcher  # noqa: F401

    with suppress(ImportError):
        warm.preload(["s3fs"], ".")  # the slowest by far of what a job on S3 imports
    harness.cli.commands_of_other_rooms()
    assert not warm.obstacle(), warm.obstacle()
    gc.collect()
    gc.freeze()
    forkserver.serve(socket.socket(fileno=descriptor), parent, _harness)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
