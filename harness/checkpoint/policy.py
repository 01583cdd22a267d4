"""When to save, and which saved states may go: pure decisions, taken here and nowhere else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

ABSENT_S = 60.0
"""How long a saver that died is waited for, at most; the launcher starts another at once."""


class Answer(StrEnum):
    """What rank 0 tells all ranks at a step boundary at which a save is due."""

    GO = "go"
    """Copy the state now."""
    WAIT = "wait"
    """One save is still in flight: ask again at the next boundary, with the newer state."""
    HAVE = "have"
    """This very state is durable, or on its way, already."""
    GIVE_UP = "give up"
    """The save in flight does not end; this state will not be saved."""


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
    if progress.absent_s >= ABSENT_S:
        return Decision(Answer.GIVE_UP, f"the saver has not been there for {ABSENT_S:g} s")
    if progress.absent_s > 0:
        return Decision(Answer.WAIT, "the saver is not there")
    return Decision(Answer.GO, "the last state" if force else "due")


@dataclass(frozen=True, slots=True, order=True)
class Saved:
    """One committed checkpoint, as retention sees it."""

    step: int
    attempt: int
    name: str
    sound: bool = True
    """Its manifest is the committed one and every file of it has its size."""


def surplus(on_chain: Iterable[Saved], off_chain: Iterable[Saved], keep: int) -> Sequence[Saved]:
    """What may be deleted, oldest first, so that the newest `keep` sound ones on the chain stay.

    What is damaged counts for nothing, so it never takes the place of a good one. What is off the
    chain goes once a later attempt has a sound one of its own. Without a sound one nothing goes.
    """
    assert keep >= 1
    chained = sorted(on_chain)
    sound = [saved for saved in chained if saved.sound]
    if not sound:
        return ()
    oldest_kept = sound[-keep:][0]
    outlived = [saved for saved in chained if saved < oldest_kept]
    if len(sound) < keep:
        outlived = []
    abandoned = [saved for saved in off_chain if saved.attempt < sound[-1].attempt]
    return sorted(outlived + abandoned)
