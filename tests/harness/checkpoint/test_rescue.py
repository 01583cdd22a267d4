"""What is in memory when nobody will hold it any longer: saved if that is new and sound, left if not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint.audit import verify
from harness.checkpoint.manifest import Place
from harness.checkpoint.rescue import holds_nonfinite
from harness.checkpoint.slot import label_of
from harness.events import SaveCommitted, Tier
from tests.harness.checkpoint.test_memory_tier import beside, committed, sealed, train, writable
from tests.harness.checkpoint.world import Rank, Run, own, shared
from tests.waiting import until


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "checkpoints")


def resumed(run: Run) -> list[tuple[int, float, float]]:
    """The step that each rank of a new attempt goes on from, a weight there, and something of its own."""

    def body(rank: Rank) -> tuple[int, float, float]:
        assert rank.found is not None
        weight = rank.found.shared["model"]["weight"]
        return rank.found.step, float(weight[0, 0]), float(rank.found.own["step"])

    return run.attempt(body)


def test_what_is_newer_in_memory_than_in_the_storage_is_saved_and_is_the_same_state(run):
    with beside(run) as saver:
        train(run, saver, 1, 2)
        saver.desk.rescue()
        assert committed(run, Tier.STORAGE) == [2]
    run.saver = ""
    (place,) = run.store().committed()
    assert place == Place(2, 1)
    verify(run.store(), place)
    assert resumed(run) == [(2, 2.0, 2.0)] * 2


def test_a_state_that_the_last_attempt_began_from_is_saved_as_its_own(run):
    with beside(run) as saver:
        train(run, saver, 1, 2)
        assert train(run, saver) == [2, 2]
        assert train(run, saver) == [2, 2]
        saver.desk.rescue()
    assert run.store().committed() == [Place(2, 3)]
    run.saver = ""
    assert resumed(run) == [(2, 2.0, 2.0)] * 2


def test_what_the_storage_has_is_not_saved_again(run):
    with beside(run) as saver:
        train(run, saver, 1, 2)
        saver.desk.rescue()
        saver.desk.rescue()
    assert run.log.of(SaveCommitted)[-1].step == 2
    assert committed(run, Tier.STORAGE) == [2]


def test_a_save_that_failed_there_before_is_tried_beside_it(run):
    with beside(run) as saver:
        train(run, saver, 1, 2)
        run.store().write(f"{Place(2, 1).name}/half", [b"written"])
        saver.desk.rescue()
    assert run.store().committed() == [Place(2, 1, trial=2)]


def test_an_older_whole_state_is_saved_where_a_share_of_the_newest_is_torn(run):
    with beside(run) as saver:
        train(run, saver, 1, 2)
        writable(saver, 1, 2)[:8] = bytes(8)
        saver.desk.rescue()
    assert run.store().committed() == [Place(1, 1)]


def test_an_older_sound_state_is_saved_where_the_newest_was_damaged(run, capfd):
    with beside(run) as saver:
        train(run, saver, 1, 2)
        view = writable(saver, 1, 2)
        view[_last_number(view)] ^= 1
        saver.desk.rescue()
    assert run.store().committed() == [Place(1, 1)]
    assert "the copy of step 2 is not saved" in capfd.readouterr().err


def test_memory_that_was_damaged_since_is_not_saved_and_leaves_nothing(run, capfd):
    with beside(run) as saver:
        train(run, saver, 2)
        view = writable(saver, 1, 2)
        view[_last_number(view)] ^= 1
        saver.desk.rescue()
    assert run.store().places() == []
    assert "is not what was copied: its memory was damaged" in capfd.readouterr().err


def _last_number(view: memoryview) -> int:
    """Where a rank's last number lies."""
    label = label_of(view)
    assert label is not None
    return label.begin - 64


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_state_that_holds_no_numbers_is_not_saved(run, value, capfd):
    def body(rank: Rank) -> None:
        state = shared(3.0)
        state["model"]["weight"][0, 0] = value
        rank.saver.at_step(3, lambda: state, lambda: own(rank.rank, 3))

    with beside(run) as saver:
        run.attempt(body, every_steps=0, memory_every=1)
        for rank in range(2):
            until(lambda: 3 in sealed(saver, rank), "it is sealed")  # noqa: B023
        saver.desk.rescue()
    assert run.store().places() == []
    assert "step 3 is not saved: rank 0's share holds NaN or Inf" in capfd.readouterr().err


def test_a_storage_that_fails_is_said_and_ends_nothing(run, capfd):
    with beside(run) as saver:
        train(run, saver, 1)
        saver.desk._open_store = lambda: (_ for _ in ()).throw(OSError(28, "no space left"))
        saver.desk.rescue()
    assert "what is in memory cannot be saved: OSError: [Errno 28] no space left" in (
        capfd.readouterr().err
    )


FORMS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


@given(
    st.sampled_from(sorted(FORMS)),
    st.lists(st.floats(width=16), max_size=9),
)
def test_numbers_that_are_none_are_seen_in_every_form(dtype, values):
    tensor = torch.tensor(values, dtype=FORMS[dtype])
    data = memoryview(tensor.view(torch.uint8).numpy().tobytes()) if values else memoryview(b"")
    assert holds_nonfinite(data, dtype) == (not bool(torch.isfinite(tensor).all()))


def test_what_is_no_number_with_a_fraction_is_not_looked_at():
    data = memoryview(np.full(4, -1, dtype=np.int64).tobytes())
    assert not holds_nonfinite(data, "I64")
