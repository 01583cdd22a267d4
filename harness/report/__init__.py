"""What a run's log says, for people and for programs."""

import shutil
import sys
from collections.abc import Sequence

from harness import settings
from harness.events import Entry
from harness.journal import read
from harness.liveness import launcher_lives
from harness.report.model import Report
from harness.report.planned import planned
from harness.report.tell import tell
from harness.report.terminal import rendered
from harness.rundir import RunDir
from harness.timeline import Fold, Timeline, TimelineError, timeline
from harness.verify import final_digest

__all__ = ["Report", "rendered", "report", "summary", "tell", "told_of"]


def report(run_dir: RunDir) -> Report:
    """Report what there is of a run: also of one that goes on, is empty, or has a torn log.

    Raises `ValueError` for a log that a newer version wrote.
    """
    entries = read(run_dir)
    told, notes = _timeline(entries)
    try:
        record = settings.read(run_dir.settings)
    except ValueError as error:
        record, notes = None, [*notes, str(error)]
    return tell(
        told,
        is_led=launcher_lives(run_dir, told.account),
        final_digest=final_digest(entries),
        run_id="" if record is None else record.run_id,
        tape=planned(run_dir.tape),
        notes=notes,
    )


def summary(run_dir: RunDir) -> str:
    """The report for people, as wide as standard output and with colours if that is a terminal."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if is_terminal else 80
    return rendered(report(run_dir), run_dir.path.name, width=columns, color=is_terminal)


def told_of(run_dir: RunDir) -> Timeline:
    """The timeline of a run, without the entries that cannot have happened.

    Raises `ValueError` where nothing was ever written, or a newer version wrote it.
    """
    entries = read(run_dir)
    if not entries:
        raise ValueError(f"no run at {run_dir.path}: there is no log in it")
    return _timeline(entries)[0]


def _timeline(entries: Sequence[Entry]) -> tuple[Timeline, list[str]]:
    """The timeline, and a line for each entry that had to be left out because it is impossible."""
    try:
        return timeline(entries), []
    except TimelineError:
        possible, notes = _possible(entries)
        return timeline(possible), notes


def _possible(entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    fold, possible, notes = Fold(), [], []
    for entry in entries:
        try:
            fold.feed(entry)
        except TimelineError as error:
            notes.append(f"left out: {error}")
        else:
            possible.append(entry)
    return possible, notes
