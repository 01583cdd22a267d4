"""What runs say of failures: causes apart, loops once, time without failures counted."""

from dataclasses import replace

import pytest

from harness.events import Cause, SaveStarted, SaveUnblocked, StepTimed, Tier
from harness.fleet import failure_rate
from harness.planning.flags import Flags, asked
from harness.planning.measured import seen
from harness.timeline import timeline
from tests.harness.planning.runs import H, S, failing, many_causes


@pytest.mark.parametrize(("failures", "least_h"), [(0, 33.38), (1, 21.08), (3, 12.90), (10, 5.895)])
def test_a_hundred_hours_bound_the_mean_from_below(failures, least_h):
    known = failure_rate(failures, 100 * H)
    assert known.mtbf_at_least_s() / H == pytest.approx(least_h, rel=5e-4)


def test_without_a_failure_there_is_no_upper_bound():
    assert failure_rate(0, 100 * H).mtbf_at_most_s() is None
    assert failure_rate(1, 100 * H).mtbf_at_most_s() == pytest.approx(100 * H / 0.05129, rel=1e-4)


def test_causes_are_kept_apart_and_a_crash_loop_counts_once():
    found = seen({"run": timeline(many_causes())})
    assert found.up_s == pytest.approx(40 * H)
    assert found.device_s == pytest.approx(8 * 40 * H)
    told = {one.cause: (one.failures, one.incidents) for one in found.causes}
    assert told == {"node_loss": (4, 4), "preemption": (3, 3), "exception": (20, 1)}
    by_cause = {one.cause: one.rate.mtbf_s for one in found.causes}
    assert by_cause["node_loss"] == pytest.approx(10 * H)
    assert found.incidents == 5
    assert found.job_rate.mtbf_s == pytest.approx(8 * H)
    assert found.rate.mtbf_s == pytest.approx(64 * H)


def test_saves_and_restarts_are_measured():
    found = seen({"run": timeline(many_causes())})
    assert found.save_s == pytest.approx(2)
    assert found.commit_s == pytest.approx(5)
    assert found.restart_s == pytest.approx(60)
    assert found.state_bytes == 4_000_000_000
    assert (found.runs, found.devices, found.relaunches) == (1, 8, 0)


def test_a_save_that_blocks_training_twice_is_measured_as_one():
    again = SaveStarted(1, Tier.STORAGE, rest=True), SaveUnblocked(1, Tier.STORAGE)
    told = failing([3600.0], [], [])
    (place,) = (n for n, entry in enumerate(told) if isinstance(entry.event, SaveUnblocked))
    first = told[place]
    later = [
        replace(first, at_ns=first.at_ns + by_ns, event=event)
        for by_ns, event in zip((2 * S, 3 * S), again, strict=True)
    ]
    found = seen({"run": timeline([*told[: place + 1], *later, *told[place + 1 :]])})
    assert (found.save_s, found.commit_s) == (3, 4)


def test_flags_override_what_was_measured_and_the_rest_of_it_with_them():
    found = seen({"run": timeline(many_causes())})
    of = asked(Flags(), found)
    assert of.sizes == [8]
    assert of.save_s == pytest.approx(2)
    assert of.commit_s == pytest.approx(5)
    said = asked(Flags(save="1s", restart="9s"), found)
    assert (said.save_s, said.commit_s, said.restart_s) == (1, None, 9)
    written = asked(Flags(state="1GB/gpu", storage="1GB/s"), found)
    assert (written.save_s, written.blocks_s(8)) == (None, 8)
    instant = asked(Flags(), replace(found, save_s=0.0))
    assert instant.job(8).save_s == 1e-9


def test_two_lost_nodes_at_one_step_are_two_and_two_crashes_at_two_steps_are_two():
    causes = [Cause.NODE_LOSS, Cause.NODE_LOSS, Cause.EXIT, Cause.EXIT]
    found = seen({"run": timeline(failing([H] * 5, causes, [3, 3, 4, 5]))})
    told = {one.cause: one.incidents for one in found.causes}
    assert told == {"node_loss": 2, "exit": 2}


def test_an_end_that_is_no_failure_only_adds_time():
    quiet = seen({"run": timeline(failing([10 * H], [], [3]))})
    assert (quiet.incidents, quiet.causes) == (0, [])
    assert quiet.up_s == pytest.approx(10 * H)
    assert quiet.restart_s is None
    both = seen(
        {
            "one": timeline(failing([10 * H], [], [3])),
            "two": timeline(failing([5 * H, 5 * H], [Cause.HANG], [3])),
        }
    )
    assert both.job_rate.mtbf_s == pytest.approx(20 * H)


def test_a_run_that_goes_on_is_counted_up_to_its_last_word():
    *going, last = failing([10 * H], [], [3])
    assert seen({"run": timeline(going)}).up_s == pytest.approx(7.5 * H)
    lives = replace(last, event=StepTimed(3, 1, 1))
    assert seen({"run": timeline([*going, lives])}).up_s == pytest.approx(10 * H)


def test_a_hang_takes_as_long_as_it_took_to_notice():
    found = seen({"run": timeline(failing([4 * H, H], [Cause.HANG], [3]))})
    assert found.restart_s == pytest.approx(H + 60)


def test_a_run_without_training_says_nothing():
    with pytest.raises(ValueError, match="one has no time of training in it"):
        seen({"one": timeline(failing([], [], []))})
