"""When to save, and which saved states may go: pure decisions, taken here and nowhere else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

ABSENT_S = 60.0
"""How long a saver that died is waited for, at most; the launcher starts another at once."""
LAST_ABSENT_S = 10.0
"""The same for the last save of an attempt, which somebody may be waiting for."""


class Answer(StrEnum):
    """What rank 0 tells all ranks at a step boundary at which a save is due."""

    GO = "go"
    """Copy the state now."""
    ALONE = "alone"
    """The same, and write it within the ranks from here on: the saver does not come back."""
    WAIT = "wait"
    """One save is still in flight: ask again at the next boundary, with the newer state."""
    HAVE = "have"
    """This very state is durable, or on its way, already."""
    GIVE_UP = "give up"
    """The save in flight does not end; this state will not be saved."""

    @property
    def begins(self) -> bool:
        """True for a save that begins now."""
        return self in (Answer.GO, Answer.ALONE)


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer with its reason."""

    answer: Answer
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What rank 0 knows of the saves of its attempt."""

    writing_step: int | None = None
    """The save in flight, if one is."""
    writing_s: float = 0.0
    """For how long it has been."""
    durable_step: int | None = None
    """The newest step committed by this attempt."""
    absent_s: float = 0.0
    """For how long no one has been there to write; 0 if someone is."""


def due(step: int, every_steps: int) -> bool:
    """True if a save falls due after `step` finished steps; 0 steps between saves is never."""
    return every_steps > 0 and step % every_steps == 0


def decide(step: int, progress: Progress, *, force: bool, stuck_s: float) -> Decision:
    """What to do about the save that is due after `step` finished steps.

    A `force` save is the last one of an attempt: it must not end before it knows, so `WAIT` means
    to ask again at this same boundary. A save in flight for `stuck_s` seconds is not waited for.
    """
    if progress.writing_step is not None:
        flight = f"the save of step {progress.writing_step}"
        if progress.writing_s >= stuck_s:
            return Decision(Answer.GIVE_UP, f"{flight} has not ended for {stuck_s:g} s")
        return Decision(Answer.WAIT, f"{flight} is in flight")
    if progress.durable_step == step:
        return Decision(Answer.HAVE, f"step {step} is durable already")
    patience_s = LAST_ABSENT_S if force else ABSENT_S
    if progress.absent_s >= patience_s:
        gone = f"the saver has not been there for {patience_s:g} s"
        return Decision(Answer.ALONE, f"{gone}: the ranks of this attempt save by themselves")
    if progress.absent_s > 0:
        return Decision(Answer.WAIT, "the saver is not there")
    return Decision(Answer.GO, "the last state" if force else "due")


@dataclass(frozen=True, slots=True)
class Spared:
    """What retention leaves beside the newest, as long as it is sound."""

    young_s: float = 0.0
    """What was committed less than this long before the newest."""
    every_steps: int = 0
    """What is at a multiple of this many steps, for ever; 0 leaves none."""
    at_least: int = 0
    """How many of the newest are enough when the storage is full; 0 keeps to what retention leaves."""


@dataclass(frozen=True, slots=True, order=True)
class Saved:
    """One committed checkpoint, as retention sees it."""

    step: int
    attempt: int
    name: str
    sound: bool = True
    """Its manifest is the committed one and every file of it has its size."""
    committed_s: float = 0.0
    """When, by the clock of the storage."""


NONE_SPARED = Spared()


def surplus(
    on_chain: Iterable[Saved],
    off_chain: Iterable[Saved],
    keep: int,
    spared: Spared = NONE_SPARED,
) -> Sequence[Saved]:
    """What may be deleted, oldest first, so that the newest `keep` sound ones on the chain stay.

    What is damaged counts for nothing, so it never takes the place of a good one. What is off the
    chain goes once a later attempt has a sound one of its own. Without a sound one nothing goes.
    """
    assert keep >= 1
    chained = sorted(on_chain)
    sound = [saved for saved in chained if saved.sound]
    if not sound:
        return ()
    oldest_kept, newest = sound[-keep:][0], sound[-1]
    outlived = [
        saved for saved in chained if saved < oldest_kept and not _is_spared(saved, newest, spared)
    ]
    if len(sound) < keep:
        outlived = []
    abandoned = [saved for saved in off_chain if saved.attempt < newest.attempt]
    return sorted(outlived + abandoned)


def _is_spared(saved: Saved, newest: Saved, spared: Spared) -> bool:
    is_young = newest.committed_s - saved.committed_s < spared.young_s
    is_due = spared.every_steps > 0 and saved.step % spared.every_steps == 0
    return saved.sound and (is_young or is_due)


def is_leftover(
    step: int, attempt: int, newest_attempt: int | None, committed_step: int | None
) -> bool:
    """True if a save without a commit will never get one.

    That of an older attempt than the newest is dead. An attempt saves one step after the other, so
    that of the newest is too, once the attempt has committed that step or a later one.
    """
    if newest_attempt is None or attempt > newest_attempt:
        return False
    return attempt < newest_attempt or (committed_step is not None and step <= committed_step)
