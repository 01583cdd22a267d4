from hypothesis import given
from hypothesis import strategies as st

from harness.signals.passage import Place, StepTime, divide


def test_a_step_worked_by_hand_divides_into_its_parts():
    places = [
        *(Place.START, Place.LOADING, Place.LOADED, Place.GRADIENT),
        *(Place.UPDATING, Place.UPDATED, Place.END),
    ]
    instants = [0, 1, 3, 10, 30, 34, 39]
    # 2 for the batch; 7 for forward and backward, 4 for the optimizer; 1 and 5 for the loop.
    assert divide(places, instants, [0] * 7) == StepTime(19, 20, data_ns=2, compute_ns=11)


def test_between_two_micro_batches_that_are_both_reduced_a_rank_waits_too():
    micro = [Place.LOADING, Place.LOADED, Place.GRADIENT]
    places = [Place.START, *micro, *micro, Place.UPDATING, Place.UPDATED, Place.END]
    instants = [0, 0, 1, 2, 12, 13, 14, 24, 25, 25]
    assert divide(places, instants, [0] * 10) == StepTime(5, 20, data_ns=2, compute_ns=3)


def test_without_a_batch_of_ours_a_step_computes_from_its_start_to_its_gradients():
    places = [Place.START, Place.GRADIENT, Place.END]
    assert divide(places, [5, 25, 35], [0, 0, 0]) == StepTime(20, 10, compute_ns=20)


def test_what_is_set_aside_is_in_no_part():
    places = [Place.START, Place.GRADIENT, Place.END]
    assert divide(places, [0, 20, 50], [15, 30, 0]) == StepTime(5, 0, compute_ns=5)


def test_what_the_harness_looks_at_is_in_no_part_and_the_step_goes_on_as_before():
    places = [
        *(Place.START, Place.GRADIENT, Place.ASIDE, Place.GRADIENT, Place.UPDATING),
        *(Place.ASIDE, Place.UPDATING, Place.UPDATED, Place.ASIDE, Place.UPDATED),
        *(Place.ASIDE, Place.END),
    ]
    instants = [0, 7, 8, 108, 110, 110, 210, 213, 213, 313, 314, 414]
    # 7 and 3 to compute, 1 for the loop; it waited for 1 + 2.
    assert divide(places, instants, [0] * 12) == StepTime(11, 3, data_ns=0, compute_ns=10)


@given(st.lists(st.tuples(st.sampled_from(Place), st.integers(0, 9)), min_size=1))
def test_every_nanosecond_is_in_one_part(passed: list[tuple[Place, int]]):
    places = [Place.START, *(place for place, _ in passed)]
    instants = [0]
    for _, took in passed:
        instants.append(instants[-1] + took)
    time = divide(places, instants, [0] * len(places))
    looked = sum(
        took for since, (_, took) in zip(places, passed, strict=False) if since is Place.ASIDE
    )
    assert time.own_ns + time.wait_ns == instants[-1] - looked
    assert 0 <= time.data_ns + time.compute_ns <= time.own_ns
