"""A rank's side of a restore: it does as rank 0 says, and reports; and the words that they use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import assert_never

import msgspec

from harness.checkpoint.load import Found
from harness.checkpoint.manifest import DamagedError, Place, UnansweredError
from harness.checkpoint.messages import Channel, SilenceError
from harness.checkpoint.reading import Reader
from harness.checkpoint.refusals import OutageError, RestoreError
from harness.events import Rejection


class Do(StrEnum):
    """What rank 0 has all ranks do next."""

    READ = "read"
    """Read and verify your files of `place`, and report."""
    RECALL = "recall"
    """Verify what you have of `place` in memory, and report."""
    BUILD = "build"
    """All was read: make your state of it, and report."""
    TAKE = "take"
    """Resume from what was built last."""
    NOTHING = "nothing"
    """Start from nothing."""
    FAIL = "fail"
    """Give up, for `error`."""
    TRY_LATER = "try later"
    """Give up, for `error`, which may pass."""


@dataclass(frozen=True, slots=True)
class Word:
    """What rank 0 says."""

    do: Do
    place: str = ""
    nodes: Sequence[Sequence[int]] = ()
    """The ranks of each node, in order."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Here:
    """What a rank says of itself first."""

    rank: int
    node: str


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a rank's reading, or building."""

    rank: int
    rejection: Rejection | None = None
    reason: str = ""
    may_pass: bool = False
    outage: str = ""
    """Why this rank could not tell what the checkpoint is."""


def follow(channel: Channel, reader: Reader, here: Here, deadline_s: float) -> Found | None:
    """Do as rank 0 says, and report. Raises what rank 0 raises: `RestoreError` or `OutageError`."""
    found: list[Found] = []
    channel.append("here", msgspec.json.encode(here))
    for number in count():
        # Rank 0 waits one deadline for the slowest of us; it, too, may need one.
        said = hear(channel, f"word/{number}", 2 * deadline_s)
        word = msgspec.json.decode(said, type=Word)
        match word.do:
            case Do.READ | Do.RECALL:
                place = Place.parse(word.place)
                assert place is not None, word
                found.clear()
                ranks = next(ranks for ranks in word.nodes if here.rank in ranks)
                act = reader.read if word.do is Do.READ else reader.recall
                report = tried(here.rank, lambda: act(place, number, ranks))  # noqa: B023
                channel.append(f"reports/{number}", msgspec.json.encode(report))
            case Do.BUILD:
                report = tried(here.rank, lambda: found.append(reader.build()))
                channel.append(f"reports/{number}", msgspec.json.encode(report))
            case Do.TAKE:
                return found[0]
            case Do.NOTHING:
                return None
            case Do.FAIL:
                raise RestoreError(word.error)
            case Do.TRY_LATER:
                raise OutageError(word.error)
            case _:
                assert_never(word.do)
    raise AssertionError("rank 0 comes to an end")


def hear(channel: Channel, key: str, within_s: float) -> bytes:
    """What is said on `key`. Raises `RestoreError` if that does not come."""
    try:
        return channel.hear(key, within_s=within_s)[1]
    except SilenceError as error:
        raise RestoreError(f"no agreement on what to resume from: {error}") from error


def tried(rank: int, act: Callable[[], None]) -> Report:
    """What this rank says of what it was told to do. Raises `RestoreError` if the others fell silent."""
    try:
        act()
    except DamagedError as error:
        return Report(rank, error.rejection, error.reason, error.may_pass)
    except UnansweredError as error:
        return Report(rank, outage=str(error))
    except SilenceError as error:
        raise RestoreError(f"no agreement on what to resume from: {error}") from error
    return Report(rank)
