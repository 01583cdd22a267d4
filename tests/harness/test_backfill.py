import io
import math
import subprocess

import pytest

from harness.backfill import Course, Recorded, instants, lines, recorded, write
from harness.cli import main
from harness.events import Outcome, RunFinished, RunStarted, StepFinished
from harness.histogram import Histogram
from harness.journal import read
from harness.metrics import FAMILIES
from harness.phases import Phase
from harness.rundir import RunDir
from harness.timeline import timeline
from tests import prometheus
from tests.harness import stories

S = 1_000_000_000
TWICE = (
    *(line for line in stories.KILLED_ONCE if line[0] < 2300),
    (9000, "launcher-0", 1, RunStarted("r1", 2)),
    (9500, "launcher-0", 1, RunFinished(Outcome.INTERRUPTED)),
)
"""A run whose launcher is killed, and that somebody starts again seven seconds later."""


def told(run: Recorded, name: str, *own: str) -> list[tuple[float, object]]:
    """What is told of a series, in seconds since the run began."""
    course = run.courses[f"harness_{name}"][own]
    start_ns = stories.START_MS * stories.MS
    pairs = zip(course.times_ns, course.values, strict=True)
    return [(round((at_ns - start_ns) / S, 3), value) for at_ns, value in pairs]


def test_a_run_is_looked_at_from_its_first_event_to_its_last():
    assert instants(0, 3 * S + 5, None) == [0, S, 2 * S, 3 * S + 5]
    assert instants(0, 3 * S, 1.5) == [0, 1_500_000_000, 3 * S]
    assert instants(7, 7, None) == [7]
    assert len(instants(0, 10_000 * S, None)) == 2001
    month_s = 30 * 86_400
    assert len(instants(0, month_s * S, None)) == month_s // 240 + 1
    with pytest.raises(ValueError, match=r"--every 0 is no interval: it is 0\.001 to 1e9 seconds"):
        instants(0, S, 0)


def test_a_value_is_told_when_it_changes_and_before_it_is_forgotten():
    course = Course()
    for second, value in ((0, 1.0), (60, 1.0), (120, 2.0), (180, 2.0), (360, 2.0), (400, math.nan)):
        course.tell(second * S, value)
    course.tell(410 * S, math.nan)
    assert [ns // S for ns in course.times_ns] == [0, 120, 360, 400]
    assert course.values[:3] == [1.0, 2.0, 2.0]


def test_counters_go_as_the_run_went(tmp_path):
    run = recorded(stories.write(tmp_path / "run", stories.KILLED_ONCE), 0.5)
    useful = [(0.0, 0), (0.5, 1), (1.0, 2), (2.0, 3), (2.5, 4)]
    assert told(run, "steps_total", "useful") == useful
    assert told(run, "restarts_total", "signal") == [(0.0, 0), (2.0, 1)]
    assert told(run, "phase", "finished") == [(0.0, 0.0), (2.8, 1.0)]


def test_while_no_launcher_lived_the_run_was_down(tmp_path):
    run = recorded(stories.write(tmp_path / "run", TWICE), 1.0)
    assert told(run, "launcher_up") == [(0.0, 1.0), (3.0, 0.0), (9.0, 1.0), (9.5, 0.0)]
    assert told(run, "phase", "down") == [(0.0, 0.0), (3.0, 1.0), (9.0, 0.0)]
    assert told(run, "phase", "work") == [(0.0, 0.0), (2.0, 1.0), (3.0, 0.0)]


def test_what_only_a_living_process_could_tell_and_empty_histograms_are_left_out(tmp_path):
    run = recorded(stories.write(tmp_path / "run", stories.GOING))
    assert run.courses["harness_rank_up"] == {}
    assert run.courses["harness_rank_progress_timestamp_seconds"] == {}
    stages = run.courses["harness_restart_phase_duration_seconds"]
    assert ("detect",) in stages
    nothing = recorded(stories.write(tmp_path / "none", stories.KILLED_ONCE[:3]))
    assert nothing.courses["harness_restart_phase_duration_seconds"] == {}


def test_a_series_becomes_lines_of_openmetrics():
    histogram = Histogram()
    histogram.add(1_500_000)
    courses: dict[str, dict[tuple[str, ...], Course]] = {name: {} for name in FAMILIES}
    step, duration = Course(), Course()
    step.tell(1_500_000_000, 3.0)
    duration.tell(2 * S, (tuple(histogram.counts), histogram.total_ns))
    courses["harness_step"][()] = step
    courses["harness_step_duration_seconds"][()] = duration
    text = "".join(lines([Recorded(('a"b\\', "r\n1"), courses)]))
    labels = r'job_name="a\"b\\",run_id="r\n1"'
    assert f"harness_step{{{labels}}} 3.0 1.500\n" in text
    assert f'harness_step_duration_seconds_bucket{{{labels},le="0.001"}} 0 2.000\n' in text
    assert f'harness_step_duration_seconds_bucket{{{labels},le="0.002"}} 1 2.000\n' in text
    assert f"harness_step_duration_seconds_count{{{labels}}} 1 2.000\n" in text
    assert f"harness_step_duration_seconds_sum{{{labels}}} 0.0015 2.000\n" in text
    assert "# TYPE harness_steps counter\n" in text
    assert text.endswith("# EOF\n")


def test_a_run_that_is_named_twice_and_one_without_events_are_refused(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    with pytest.raises(ValueError, match="run r1 is there twice under the name run: name it once"):
        write([run_dir, run_dir], None, io.StringIO())
    empty = stories.write(tmp_path / "empty", ())
    with pytest.raises(ValueError, match="has no events: nothing has happened there"):
        write([empty], None, io.StringIO())


@prometheus.needs_prometheus
def test_prometheus_loads_two_runs_and_answers_as_their_logs_do(tmp_path):
    blown_up = StepFinished(4, 24, 32, "a4", loss=math.nan, loss_step=4)
    story = list(stories.KILLED_ONCE)
    last_step = next(place for place, line in enumerate(story) if line[0] == 2400)
    story[last_step] = (*story[last_step][:3], blown_up)
    runs = [
        stories.write(tmp_path / "killed", story),
        stories.write(tmp_path / "twice", TWICE),
    ]
    text, data = tmp_path / "all.om", tmp_path / "data"
    with text.open("w") as out:
        write(runs, 0.1, out)
    load = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
    loaded = subprocess.run(load, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    with prometheus.serving(tmp_path) as url:
        at_s = stories.START_MS / 1000 + 10
        assert prometheus.falls(url, "1m", at_s) == []
        elapsed = "sum by (job_name) (harness_state_seconds_total)"
        assert prometheus.values(url, elapsed, at_s) == pytest.approx([2.8, 9.5])
        grown = "sum by (job_name) (changes(harness_steps_total[1m]))"
        assert prometheus.values(url, grown, at_s) == [4, 5]
        assert math.isnan(*prometheus.values(url, 'harness_loss{job_name="killed"}', at_s))
        at_work = 'harness_phase{phase="work",job_name="twice"}'
        assert prometheus.values(url, at_work, stories.START_MS / 1000 + 8.9) == [0]


@prometheus.needs_prometheus
def test_prometheus_loads_a_simulated_run_and_answers_as_its_log_does(tmp_path):
    run, text = tmp_path / "run", tmp_path / "run.om"
    times = ("--mtbf", "1h", "--save", "30s", "--restart", "5min", "--days", "0.1", "--seeds", "1")
    assert main(["simulate", *times, "--run", str(run)]) == 0
    with text.open("w") as out:
        write([RunDir.at(run)], 60, out)
    load = ["promtool", "tsdb", "create-blocks-from", "openmetrics", text, tmp_path / "data"]
    loaded = subprocess.run(load, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    account = timeline(read(RunDir.at(run))).account
    with prometheus.serving(tmp_path) as url:
        at_s = account.at_ns / S + 1
        assert prometheus.falls(url, "3h", at_s) == []
        for state in ("work", "save_stall", "restart"):
            told = prometheus.values(url, f'harness_state_seconds_total{{state="{state}"}}', at_s)
            assert told == pytest.approx([account.totals[Phase(state)] / S])
        steps = prometheus.values(url, "sum(harness_steps_total)", at_s)
        assert steps == [account.ledger.useful_steps + account.ledger.redone_steps]
