"""Refuses, before any rank is started, what no rank could resume from."""

from harness import slots
from harness.checkpoint.store import Store
from harness.rundir import RunDir
from launch.flags import UsageError


def check_resume(run_dir: RunDir, store: Store, resume: str) -> None:
    """Raise `UsageError` for a step that is not there, and for storage that has lost the run's checkpoints."""
    if resume.isdecimal():
        steps = sorted({it.step for it in store.committed()})
        if int(resume) not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise UsageError(
                f"--resume {resume}: no checkpoint of that step is in {store.root}; there: {there}"
            )
    elif resume != "fresh":
        _check_not_emptied(run_dir, store)


def _check_not_emptied(run_dir: RunDir, store: Store) -> None:
    """Refuse to begin at step 1 again only because a disk is not there."""
    slot = slots.read(run_dir.slot(0))
    if slot is not None and slot.step > 0 and store.newest_attempt() == 0:
        raise UsageError(
            f"{store.root} is empty, and the run had finished step {slot.step}: put its"
            " checkpoints back there, or start from nothing with --resume fresh"
        )
