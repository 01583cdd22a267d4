"""What was created and deleted when, so that a listing can be one of some time ago.

Kept in the run directory, over all processes, and only where a rule asks for stale listings.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]
"""A listed thing as fsspec has it: `name`, `size`, `type`."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file came, or everything of a name went."""

    at_ns: int
    """Unix time: a history outlives a reboot."""
    path: str
    size: int | None
    """None where it went."""


class History:
    """The changes so far."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def created(self, path: str, size: int) -> None:
        """A file is there."""
        self._append(Change(time.time_ns(), path, size))

    def deleted(self, path: str) -> None:
        """A file is gone, or a folder with all that was in it."""
        self._append(Change(time.time_ns(), path, None))

    def stale(self, folder: str, listed: Sequence[Entry], age_s: float, deep: bool) -> list[Entry]:
        """What a listing of `folder` would have been `age_s` ago; `deep` lists files of all depths."""
        changes = list(self._changes())
        return as_of(changes, time.time_ns() - int(age_s * 1e9), folder, listed, deep)

    def _append(self, change: Change) -> None:
        line = json.dumps([change.at_ns, change.path, change.size]) + "\n"
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def _changes(self) -> Iterator[Change]:
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                yield Change(*json.loads(line))


def as_of(
    changes: Sequence[Change], at_ns: int, folder: str, listed: Sequence[Entry], deep: bool
) -> list[Entry]:
    """`listed`, a listing of `folder` that is true now, as it was at `at_ns`. Pure."""
    then = _files(change for change in changes if change.at_ns <= at_ns)
    now = _files(changes)
    new, gone = now.keys() - then.keys(), then.keys() - now.keys()
    shown = [entry for entry in listed if not _is_new(str(entry["name"]), now, new)]
    names = {str(entry["name"]) for entry in listed}
    inside = sorted(path for path in gone if path.startswith(f"{folder}/"))
    for path in inside:
        below = path[len(folder) + 1 :]
        name = path if deep else f"{folder}/{below.split('/')[0]}"
        if name not in names:
            kind = "file" if name == path else "directory"
            size = then[path] if name == path else 0
            shown.append({"name": name, "size": size, "type": kind})
            names.add(name)
    return sorted(shown, key=lambda entry: str(entry["name"]))


def _files(changes: Iterator[Change] | Sequence[Change]) -> dict[str, int]:
    """The files that the changes leave, with their sizes."""
    files: dict[str, int] = {}
    for change in changes:
        if change.size is not None:
            files[change.path] = change.size
            continue
        for path in [p for p in files if p == change.path or p.startswith(f"{change.path}/")]:
            del files[path]
    return files


def _is_new(name: str, now: Mapping[str, int], new: set[str]) -> bool:
    """Whether a listed file, or all that is in a listed folder, came too late."""
    below = [path for path in now if path == name or path.startswith(f"{name}/")]
    return bool(below) and all(path in new for path in below)
