"""The one door to all events."""

import re
from pathlib import Path

from harness import events

ROOT = Path(__file__).parents[2]


def test_every_event_can_be_had_at_the_door():
    assert set(events.event_types()) <= set(events.__all__)


def test_nobody_imports_from_behind_the_door():
    behind = re.compile(r"^\s*(?:from|import) harness\.events\.", re.MULTILINE)
    found = {
        path.relative_to(ROOT).parent.as_posix()
        for room in ("harness", "launch", "faultinject", "dashboards", "benchmarks", "tests")
        for path in (ROOT / room).rglob("*.py")
        if behind.search(path.read_text())
    }
    assert found == {"harness/events"}


def test_a_rank_is_told_from_other_writers_by_its_name():
    writers = ["rank-0", "rank-12", "rank-", "rank-x", "rank-9999999999", "launcher-0", "injector"]
    assert [events.rank_of(writer) for writer in writers] == [0, 12, None, None, None, None, None]
