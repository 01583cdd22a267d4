"""Attempts of a small job whose ranks are threads of this process, on real files."""

import errno
import socket
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem
from torch.distributed import HashStore

from harness.checkpoint.desk import Desk
from harness.checkpoint.load import Found
from harness.checkpoint.named import Folder
from harness.checkpoint.policy import NONE_SPARED, Spared
from harness.checkpoint.recollection import Recollection
from harness.checkpoint.restore import choose
from harness.checkpoint.save import Checkpointer
from harness.checkpoint.store import Store
from harness.checkpoint.tell import record
from harness.checkpoint.wire import listener
from harness.events import Event

DEADLINE_S = 20.0

Result = TypeVar("Result")


class Log:
    """A recorder that keeps events in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class Rank:
    """What a rank of an attempt has at hand."""

    rank: int
    store: Store
    found: Found | None
    saver: Checkpointer

    def at(self, step: int, force: bool = False, value: float | None = None, rows: int = 8) -> bool:
        """Reach a step boundary with a state in which everything equals `value`."""
        value = float(step) if value is None else value
        state, mine = shared(value, rows), own(self.rank, value)
        return self.saver.at_step(step, lambda: state, lambda: mine, force)

    def save(self, step: int, value: float | None = None, rows: int = 8) -> bool:
        """Save, and wait until the state is durable or is not going to be."""
        self.at(step, True, value, rows)
        return self.saver.finish(DEADLINE_S)


@dataclass
class Run:
    """A run in a directory: one attempt after the other."""

    root: Path
    log: Log = field(default_factory=Log)
    run_id: str = "run"
    spared: Spared = NONE_SPARED
    timeout_s: float = 60.0
    saver: str = ""
    """Where a saver listens, if one is to write."""
    disk: LocalFileSystem | None = None
    """What that saver writes to."""
    memory_dir: str = ""
    """Where copies in memory have names, if they have."""
    url: str = ""
    """Where it is stored; empty for files in `root`."""

    def store(self) -> Store:
        limits = {"spared": self.spared, "timeout_s": self.timeout_s}
        return Store.open(self.url or f"file://{self.root}", self.run_id, **limits)

    def attempt(
        self,
        body: Callable[[Rank], Result],
        world_size: int = 2,
        resume: str = "auto",
        files: dict[int, LocalFileSystem] | None = None,
        deadline_s: float = DEADLINE_S,
        connect: Callable[[], Any] | None = None,
        nodes: dict[int, str] | None = None,
        before: int | None = None,
        **options: Any,
    ) -> list[Result]:
        """Run `body` on every rank of a new attempt, on storage `files[rank]` where given.

        The ranks talk through one store in memory, or through what `connect` gives each of them.
        They share a node, or are on those in `nodes`.
        """
        together_in = HashStore()
        self.disk = next(iter(files.values()), None) if files else None
        attempt = self.store().claim_attempt()

        def live(rank: int) -> Result:
            store = self.store()
            if files and rank in files:
                store = replace(store, files=files[rank])
            place = (rank, world_size, attempt)
            messages = together_in if connect is None else connect()
            node = nodes[rank] if nodes else None
            savers = [self.saver] if self.saver and "memory_every" in options else []
            folder = Folder.of(self.memory_dir, self.run_id) if self.memory_dir else None
            memory = Recollection(savers, self.run_id, rank, world_size, folder)
            found = choose(
                store,
                messages,
                *place,
                resume,
                self.log,
                deadline_s,
                node,
                memory=memory,
                before=before,
            )
            saver = Checkpointer(
                store,
                messages,
                *place,
                self.log,
                deadline_s=deadline_s,
                saver=self.saver,
                memory=memory,
                **options,
            )
            memory.close()
            try:
                return body(Rank(rank, store, found, saver))
            finally:
                saver.close()

        return together(world_size, live)

    def choose(
        self, world_size: int = 2, resume: str = "auto", before: int | None = None
    ) -> list[Any]:
        """What the ranks of a new attempt resume from: a `Found` each, or None."""
        return self.attempt(lambda rank: rank.found, world_size, resume, before=before)

    def commit(self, *steps: int, world_size: int = 2, **options: Any) -> None:
        """A new attempt that goes on and commits these steps."""

        def body(rank: Rank) -> list[bool]:
            return [rank.save(step) for step in steps]

        saved = self.attempt(body, world_size, **options)
        assert saved == [[True] * len(steps)] * world_size

    def steps(self) -> list[int]:
        """The committed steps in the storage."""
        store = self.store()
        return [place.step for place in store.places() if store.is_committed(place)]

    def directory(self, step: int) -> Path:
        """The directory of the committed step."""
        (path,) = (commit.parent for commit in self.root.glob(f"step-{step:08d}-*/commit.json"))
        return path


class Beside:
    """A saver for `run`, in threads of this process; it tells the run's own log."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.address = run.saver or f"harness-test-{uuid.uuid4().hex}"
        self.desk = Desk(run.run_id, self._store, lambda event, _: record(run.log, event))
        self._listening = listener(self.address)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        run.saver = self.address

    def _store(self) -> Store:
        store = self._run.store()
        return store if self._run.disk is None else replace(store, files=self._run.disk)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                self.desk.admit(self._listening.accept()[0])

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        assert self.desk.leave(DEADLINE_S)


def shared(value: float, rows: int = 8) -> dict[str, Any]:
    weight = torch.full((rows, 4), value)
    return {
        "model": {"weight": weight, "tied": weight},
        "optimizer": {"lr": value, "state": {0: ()}},
    }


def own(rank: int, value: float) -> dict[str, Any]:
    return {"rng": torch.full((3,), rank, dtype=torch.uint8), "rank": rank, "step": value}


def together(world_size: int, act: Callable[[int], Result]) -> list[Result]:
    """Run `act` on all ranks at once; the first rank's error is raised."""
    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(act, rank) for rank in range(world_size)]
    return [future.result() for future in futures]


class FullDisk(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Takes `room` bytes of checkpoints, then refuses the rest of a write, as a full disk does."""

    cachable = False

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        limited = mode == "wb" and "/attempts/" not in path
        return _Limited(path, mode, fs=self) if limited else super()._open(path, mode)


class _Limited(LocalFileOpener):  # type: ignore[misc]
    def write(self, data: Any) -> int:
        fits: int = min(len(data), self.fs.room)
        self.fs.room -= fits
        self.f.write(data[:fits])
        if fits < len(data):
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        return fits


class SlowDisk(LocalFileSystem):  # type: ignore[misc]
    """Writes no checkpoint before `go_on` is set, and says in `reached` that someone wants to."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb" and "/attempts/" not in path:
            self.reached.set()
            assert self.go_on.wait(DEADLINE_S)
        return super()._open(path, mode)
