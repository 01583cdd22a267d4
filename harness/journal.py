"""Reads the log: all files of a run as one sequence on one axis. Nobody else takes entries from a file.

Within a boot of the machine the monotonic clock orders everything; each boot has ONE offset to Unix
time, so a wall clock that steps changes nothing. Reading works a second behind the writers.
"""

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from harness.events import Entry, Header
from harness.lines import LATEST_NS, SchemaError, decode, decode_known, encode
from harness.recorder import SYSTEM_CLOCK, Clock, boot_id
from harness.rundir import RunDir

__all__ = ["HORIZON_NS", "SchemaError", "Tail", "TailState", "decode", "encode", "read"]

HORIZON_NS = 1_000_000_000
"""How far reading stays behind the present: what arrives within it finds its place."""

_BLOCK_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 64 << 20
_EVER_NS = 1 << 62
_Placed = tuple[int, str, int, int, int, Entry]
"""An entry behind what it is sorted by; the number before it is unique, so that sorting ends there."""


def read(run_dir: RunDir) -> list[Entry]:
    """The whole log, in order. Raises `SchemaError` if a newer version wrote it."""
    entries = Tail(run_dir).poll(_EVER_NS)
    entries.sort(key=attrgetter("at_ns", "writer", "sequence", "attempt"))
    return entries


@dataclass(slots=True)
class FileState:
    """How far one event file was read."""

    offset: int = 0
    writer: str = ""
    boot_id: str = ""
    front_ns: int = 0
    """Instant of the last entry read, or of the header that reading waits at."""
    unfinished: bool = False
    """More bytes were there than one block."""
    waits: Header | None = None
    """A header of a boot that has no place on the axis yet; nothing past it is read before."""


@dataclass(slots=True)
class TailState:
    """All that a `Tail` knows: plain data, to be kept and resumed from."""

    files: dict[str, FileState] = field(default_factory=dict)
    offsets_ns: dict[str, int] = field(default_factory=dict)
    """Unix time minus monotonic time, by boot."""
    ends_ns: dict[str, int] = field(default_factory=dict)
    """Instant of the last entry of each boot."""
    last_boots: dict[str, str] = field(default_factory=dict)
    """The boot in which each writer was last seen."""
    watermark_ns: int = 0
    """Everything up to here has been handed out."""
    pending: list[tuple[str, bytes]] = field(default_factory=list)
    """Writer and line of what is read and not handed out yet, filled by `Tail.state`."""
    damaged_lines: int = 0
    """Lines that no one can read: torn by a kill and closed by the next life, or bad bytes."""


class Tail:
    """Hands out the entries of a run that goes on, each once, a second behind the present.

    Memory holds a block of each file at most, however long the log is.
    """

    def __init__(
        self, run_dir: RunDir, state: TailState | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._run_dir, self._clock = run_dir, clock
        self._state = TailState() if state is None else state
        self._boot = boot_id()
        self._taken = 0
        self._pending: list[_Placed] = []
        for entry in (_entry(line, writer) for writer, line in self._state.pending):
            place = (entry.at_ns, entry.writer, entry.sequence, entry.attempt, self._taken, entry)
            self._pending.append(place)
            self._taken += 1

    @property
    def damaged_lines(self) -> int:
        """How many lines had to be left out."""
        return self._state.damaged_lines

    def state(self) -> TailState:
        """What a new `Tail` needs to go on from here."""
        self._state.pending = [(placed[1], encode(placed[-1])) for placed in self._pending]
        return self._state

    def now_ns(self) -> int:
        """The present on the run's axis."""
        offset_ns = self._state.offsets_ns.get(self._boot)
        if offset_ns is None:
            return self._clock.wall_ns()
        return self._clock.monotonic_ns() + offset_ns

    def poll(self, now_ns: int | None = None) -> list[Entry]:
        """Every entry up to a second before `now_ns` that was not handed out before, in order."""
        return [entry for batch in self.batches(now_ns) for entry in batch]

    def batches(self, now_ns: int | None = None) -> Iterator[list[Entry]]:
        """The same in pieces of bounded size, for a log that does not fit in memory."""
        names = self._files()
        reading = names
        while True:
            for name in reading:
                self._read_block(name)
            yield self._settled(names, now_ns)
            unfinished = [name for name in names if self._state.files[name].unfinished]
            if unfinished:
                reading = [min(unfinished, key=lambda name: self._state.files[name].front_ns)]
            elif not (reading := self._place_next_boot(names)):
                return

    def _files(self) -> list[str]:
        """Names of the event files, a writer's rolls in their order; a new one gets its state.

        A name that no writer has may be no text at all, and no cache could hold it. Raises `OSError`
        for a folder that is there and cannot be listed, which `glob` would take for an empty one.
        """
        try:
            listed = [path.name for path in self._run_dir.events.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            listed = []
        names = [name for name in listed if name.endswith(".jsonl") and name.isascii()]
        names.sort(key=lambda name: (name.split(".")[0], len(name), name))
        for name in names:
            self._state.files.setdefault(name, FileState())
        return names

    def _settled(self, names: list[str], now_ns: int | None) -> list[Entry]:
        """What can be handed out, given how far each file was read."""
        if not self._state.offsets_ns:
            return []  # nothing has a place yet, and where the present is on the axis is not known
        files = [self._state.files[name] for name in names]
        edge_ns = self.now_ns() if now_ns is None else now_ns
        for file in files:
            if file.unfinished or file.waits is not None:
                edge_ns = min(edge_ns, file.front_ns)
        state = self._state
        state.watermark_ns = max(state.watermark_ns, edge_ns - HORIZON_NS)
        self._pending.sort()
        count = bisect_left(self._pending, (state.watermark_ns + 1,))
        settled = [placed[-1] for placed in self._pending[:count]]
        del self._pending[:count]
        return settled

    def _read_block(self, name: str) -> None:
        """Take in the next whole lines of a file, as far as its boots have a place on the axis."""
        file = self._state.files[name]
        if file.waits is not None and file.waits.boot_id not in self._state.offsets_ns:
            return
        file.waits = None
        block, file.unfinished = _block(self._run_dir.events / name, file.offset)
        offset_ns = self._state.offsets_ns.get(file.boot_id)
        known = None if offset_ns is None else decode_known(block, file.writer, offset_ns)
        if known is not None:
            file.offset += len(block)
            self._take_in(file, known)
            return
        for line in block.splitlines(keepends=True):
            if not self._take_line(file, line):
                file.unfinished = False
                return
            file.offset += len(line)

    def _take_line(self, file: FileState, line: bytes) -> bool:
        """Take in one line; False if it is a header that has to wait for its boot's place."""
        offset_ns = self._state.offsets_ns.get(file.boot_id)
        try:
            parsed = decode(line, file.writer, offset_ns or 0)
        except SchemaError:
            raise
        except ValueError:
            self._state.damaged_lines += line != b"\n"
            return True
        if isinstance(parsed, Header):
            return self._take_header(file, parsed)
        if offset_ns is None:
            self._state.damaged_lines += 1
        else:
            self._take_in(file, [parsed])
        return True

    def _take_in(self, file: FileState, entries: list[Entry]) -> None:
        """Let entries of one file, with their place on the axis, wait to be handed out."""
        if not entries:
            return
        file.front_ns = entries[-1].at_ns
        ends_ns = self._state.ends_ns
        last_ns = max(entry.at_ns for entry in entries)
        ends_ns[file.boot_id] = max(last_ns, ends_ns.get(file.boot_id, 0))
        self._pending += [
            (entry.at_ns, entry.writer, entry.sequence, entry.attempt, number, entry)
            for number, entry in enumerate(entries, self._taken)
        ]
        self._taken += len(entries)

    def _take_header(self, file: FileState, header: Header) -> bool:
        if header.boot_id not in self._state.offsets_ns:
            file.waits, file.front_ns = header, header.wall_ns
            return False
        file.writer, file.boot_id = header.writer, header.boot_id
        self._state.last_boots[header.writer] = header.boot_id
        return True

    def _place_next_boot(self, names: list[str]) -> list[str]:
        """Put the next boot that files wait for on the axis; gives the files that can go on.

        A writer lives once at a time, so a boot in which it goes on comes after the one it was in,
        whatever the wall clock said. The launcher's file tells best in which order boots came.
        """
        waiting = {name: header for name in names if (header := self._state.files[name].waits)}
        if not waiting:
            return []
        next_boot = min(waiting.values(), key=_leads).boot_id
        same = [header for header in waiting.values() if header.boot_id == next_boot]
        first = min(same, key=attrgetter("monotonic_ns"))
        start_ns = first.wall_ns
        for header in same:
            before = self._state.last_boots.get(header.writer)
            if before is not None:
                start_ns = max(start_ns, self._state.ends_ns.get(before, 0))
        self._state.offsets_ns[next_boot] = min(start_ns, LATEST_NS) - first.monotonic_ns
        return [name for name, header in waiting.items() if header.boot_id == next_boot]


def _leads(header: Header) -> tuple[bool, bool, int]:
    return (not header.writer.startswith("launcher"), header.writer != "rank-0", header.wall_ns)


def _entry(line: bytes, writer: str) -> Entry:
    entry = decode(line, writer)
    assert isinstance(entry, Entry)
    return entry


def _block(path: Path, offset: int) -> tuple[bytes, bool]:
    """Whole lines from `offset` on, about a block of them, and whether there is more to read.

    A last line without its newline is being written, or was torn by a kill: it is left out. What no
    writer makes is no line, and comes in pieces. Raises `OSError` for what is no file: a pipe never ends.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no file, and an event log is made of files", str(path))
    size = found.st_size
    if offset >= size:
        return b"", False
    with path.open("rb", buffering=0) as file:
        length = _BLOCK_BYTES
        while offset < size:
            block = os.pread(file.fileno(), length, offset)
            whole = block.rfind(b"\n") + 1
            if whole or offset + len(block) >= size:
                return block[:whole], whole > 0 and offset + len(block) < size
            if length >= _LONGEST_LINE_BYTES:
                return block, True
            length *= 2
    return b"", False
