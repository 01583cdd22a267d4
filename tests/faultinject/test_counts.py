import subprocess
import sys
from pathlib import Path

from faultinject.counts import Count, Counts

PROCESS = """
import sys
from pathlib import Path
from faultinject.counts import Counts
for _ in range(200):
    with Counts(Path(sys.argv[1])).of(1) as count:
        count.calls += 1
"""


def test_each_rule_has_a_count_of_its_own(tmp_path):
    counts = Counts(tmp_path / "counts")
    with counts.of(2) as count:
        count.calls, count.acted, count.taken_bytes = 7, 2, 1 << 50
    with counts.of(0) as count:
        count.calls += 1
    for place, found in enumerate([Count(1), Count(), Count(7, 2, 1 << 50), Count()]):
        with counts.of(place) as count:
            assert count == found


def test_processes_that_count_at_once_lose_nothing(tmp_path):
    path = tmp_path / "counts"
    command = [sys.executable, "-c", PROCESS, str(path)]
    root = Path(__file__).parents[2]
    processes = [subprocess.Popen(command, cwd=root) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    with Counts(path).of(1) as count:
        assert count == Count(600)
