import pickle
import random
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from harness import exactness
from harness.data import Batches, ResumableSampler, SampleIndex, SeededItems, permutation

# ── the order of an epoch ───────────────────────────────────────────────────────────────────────


def order(length: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return [int(i) for i in permutation(np.arange(length), length, seed=seed, epoch=epoch)]


def test_every_short_epoch_has_each_sample_once():
    for length in range(1, 300):
        assert sorted(order(length)) == list(range(length)), length


@given(length=st.integers(1, 5000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_any_epoch_of_any_length_has_each_sample_once(length: int, seed: int, epoch: int):
    assert sorted(order(length, seed, epoch)) == list(range(length))


@given(length=st.integers(1, 2**62), data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_epoch_too_long_to_list_stays_within_itself_and_meets_no_sample_twice(
    length: int, data: Any
):
    places = data.draw(st.sets(st.integers(0, length - 1), min_size=1, max_size=50))
    found = permutation(np.array(sorted(places)), length, seed=1, epoch=2)
    assert len(set(found.tolist())) == len(places)
    assert found.min() >= 0
    assert found.max() < length


def test_one_order_stays_what_it_is():
    assert order(12, seed=3, epoch=1) == [3, 6, 0, 11, 8, 1, 5, 4, 2, 7, 9, 10]


def test_the_order_does_not_depend_on_how_it_is_asked():
    whole = order(1003, seed=5, epoch=2)
    pieces = [
        permutation(np.arange(start, min(start + 7, 1003)), 1003, seed=5, epoch=2).tolist()
        for start in range(0, 1003, 7)
    ]
    assert list(chain.from_iterable(pieces)) == whole


@pytest.mark.parametrize("length", [5, 10, 16, 33])
def test_over_many_epochs_every_sample_comes_equally_often_at_every_place(length: int):
    epochs = 1000
    counts = np.zeros((length, length))
    for epoch in range(epochs):
        counts[np.arange(length), order(length, seed=1, epoch=epoch)] += 1
    expected = epochs / length
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (length - 1) ** 2
    # 5 standard deviations: a fixed seed, so this either always passes or never does.
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_neighbours_are_torn_apart_and_places_forgotten():
    places = np.array(order(10_000, seed=2))
    assert abs(np.corrcoef(np.arange(10_000), places)[0, 1]) < 0.04
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.04
    assert (np.abs(np.diff(places)) == 1).sum() < 10  # 2 are expected of a random order
    other = np.array(order(10_000, seed=2, epoch=1))
    assert (places == other).sum() < 10  # 1 is expected


def test_a_sample_index_is_an_int_that_carries_its_epoch_through_pickle():
    index = pickle.loads(pickle.dumps(SampleIndex(4, 2)))
    assert (index, index.epoch, [10, 20, 30, 40, 50][index]) == (4, 2, 50)


# ── the sampler ─────────────────────────────────────────────────────────────────────────────────


def consumed(sampler: ResumableSampler, draws: int) -> list[list[int]]:
    """The ids of the next draws, each consumed."""
    drawing = iter(sampler)
    found = []
    for _ in range(draws):
        drawn = next(drawing)
        ids = sampler.consumed()
        assert drawn == ids.tolist()
        found.append(ids.tolist())
    return found


def global_steps(world_size: int, steps: int, position: int, **options: Any) -> list[list[int]]:
    """The ids of each of the next global steps: the micro-batches of all ranks, in order."""
    found: list[list[int]] = [[] for _ in range(steps)]
    micro_batches = options.get("micro_batches", 1)
    draws = []
    for rank in range(world_size):
        sampler = ResumableSampler(rank=rank, world_size=world_size, **options)
        sampler.load_state_dict(sampler.state_dict() | {"position": position})
        draws.append(consumed(sampler, steps * micro_batches))
        assert sampler.position == position + steps * options["batch_size"]
    for step in range(steps):
        for micro in range(micro_batches):
            for of_rank in draws:
                found[step] += of_rank[step * micro_batches + micro]
    return found


def test_a_small_case_worked_by_hand():
    sampler = ResumableSampler(5, 4, rank=1, world_size=2, shuffle=False)
    # The endless sequence 0 1 2 3 4 0 1 2 3 4 …, in fours, of which this rank has the second half.
    assert consumed(sampler, 4) == [[2, 3], [1, 2], [0, 1], [4, 0]]
    assert (sampler.position, sampler.epoch) == (16, 3)
    drawing = iter(ResumableSampler(5, 4, rank=1, world_size=2, micro_batches=2, shuffle=False))
    assert [next(drawing) for _ in range(4)] == [[1], [3], [0], [2]]
    assert [index.epoch for index in next(iter(sampler))] == [3, 3]


def test_three_stops_in_one_epoch_change_nothing_and_each_epoch_has_its_own_order():
    length, batch = 60, 4
    reference = ResumableSampler(length, batch, rank=0, world_size=1, seed=9)
    expected = consumed(reference, 45)

    seen: list[list[int]] = []
    state = ResumableSampler(length, batch, rank=0, world_size=1, seed=9).state_dict()
    for draws in (17, 3, 2, 4, 19):  # stops at samples 68, 80, 88 and 104: four within epoch 1
        sampler = ResumableSampler(length, batch, rank=0, world_size=1, seed=9)
        sampler.load_state_dict(state)
        seen += consumed(sampler, draws)
        state = sampler.state_dict()

    assert seen == expected
    ids = [index for drawn in seen for index in drawn]
    epochs = [ids[start : start + length] for start in range(0, 180, length)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(length))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs == [order(length, seed=9, epoch=epoch) for epoch in range(3)]


def test_a_stop_exactly_at_the_end_of_an_epoch_goes_on_with_the_first_sample_of_the_next():
    sampler = ResumableSampler(20, 5, rank=0, world_size=1, seed=1)
    consumed(sampler, 4)
    resumed = ResumableSampler(20, 5, rank=0, world_size=1, seed=1)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.epoch == 1
    first = next(iter(resumed))
    assert first == order(20, seed=1, epoch=1)[:5]
    assert {index.epoch for index in first} == {1}


def test_the_global_order_is_the_same_on_any_number_of_ranks_and_through_their_changes():
    options: dict[str, Any] = {"length": 1003, "batch_size": 12, "seed": 4}
    steps = 2 * 1003 // 12 + 1
    reference = global_steps(1, steps, 0, **options)

    seen: list[list[int]] = []
    for world_size, until in ((4, 30), (3, 70), (2, 100), (4, steps)):
        part = global_steps(world_size, until - len(seen), 12 * len(seen), **options)
        seen += part

    assert seen == reference
    ids = [index for step in seen for index in step]
    assert Counter(ids[:1003]) == Counter(range(1003))
    assert Counter(ids[1003:2006]) == Counter(range(1003))


def test_ranks_traded_for_micro_batches_leave_every_step_its_samples():
    options: dict[str, Any] = {"length": 50, "batch_size": 12, "seed": 4}
    wide = global_steps(4, 10, 0, **options)
    deep = global_steps(2, 10, 0, micro_batches=2, **options)
    assert wide == deep


@given(
    length=st.integers(1, 40),
    world_size=st.integers(1, 4),
    micro_batches=st.integers(1, 3),
    size=st.integers(1, 5),
    steps=st.integers(1, 12),
)
@settings(max_examples=25, deadline=None)
def test_no_sample_is_lost_or_doubled_whatever_the_sizes(
    length: int, world_size: int, micro_batches: int, size: int, steps: int
):
    batch_size = size * world_size * micro_batches
    options: dict[str, Any] = {
        "length": length,
        "batch_size": batch_size,
        "micro_batches": micro_batches,
    }
    ids = [i for step in global_steps(world_size, steps, 0, **options) for i in step]
    assert len(ids) == steps * batch_size
    for start in range(0, len(ids) - length + 1, length):
        assert sorted(ids[start : start + length]) == list(range(length))


def test_what_cannot_be_divided_evenly_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"batch_size = 12 cannot .* 5 rank.*multiple of 5"):
        ResumableSampler(1003, 12, rank=0, world_size=5)
    with pytest.raises(ValueError, match="multiple of 8"):
        ResumableSampler(1003, 12, rank=0, world_size=4, micro_batches=2)
    with pytest.raises(ValueError, match="length") as caught:
        ResumableSampler(0, 0, rank=0, world_size=1, micro_batches=0, seed=-1)
    assert str(caught.value).splitlines() == [
        "length = 0 is below 1",
        "batch_size = 0 is below 1",
        "micro_batches = 0 is below 1",
        "seed = -1 is below 0",
    ]


def test_rank_and_world_size_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert next(iter(ResumableSampler(9, 3, shuffle=False))) == [2]
    with pytest.raises(ValueError, match="3 rank"):
        ResumableSampler(9, 4)


def test_a_state_of_other_data_is_refused_with_every_difference_and_changes_nothing():
    sampler = ResumableSampler(20, 4, rank=0, world_size=1, seed=1)
    other = ResumableSampler(21, 8, rank=0, world_size=1, seed=2, shuffle=False)
    consumed(sampler, 2)
    advice = "keep the samples per optimizer step, over all ranks and micro-batches"
    with pytest.raises(ValueError, match="length") as caught:
        sampler.load_state_dict(other.state_dict())
    assert str(caught.value).splitlines() == [
        "length is 20 and was 21: resume with the data that the run was started with",
        f"batch_size is 4 and was 8: {advice}",
        "seed is 1 and was 2: keep the seed",
        "shuffle is True and was False: keep the order",
    ]
    assert sampler.position == 8
    assert sampler.differences({"position": 3}) == [
        "holds position, length, batch_size, seed, shuffle and the saved state position"
    ]


def test_another_batch_size_is_taken_where_that_is_allowed():
    saved = ResumableSampler(20, 4, rank=0, world_size=1)
    consumed(saved, 3)
    sampler = ResumableSampler(20, 6, rank=0, world_size=1, static_batch=False)
    sampler.load_state_dict(saved.state_dict())
    assert next(iter(sampler)) == order(20)[12:18]


def test_an_iterator_from_before_a_load_is_told_that_it_is_stale():
    sampler = ResumableSampler(20, 4, rank=0, world_size=1)
    old = iter(sampler)
    next(old)
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(RuntimeError, match="stale"):
        next(old)
    with pytest.raises(RuntimeError, match="no batch was drawn"):
        sampler.consumed()


# ── items and batches ───────────────────────────────────────────────────────────────────────────


class Drawing(Dataset[list[float]]):
    """Items that show what they draw: id, then a number of each global stream."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> list[float]:
        return [float(index), random.random(), float(np.random.random()), float(torch.rand(()))]


def loading(
    sampler: ResumableSampler, workers: int = 0, seeded: bool = True, **options: Any
) -> Batches[list[list[float]]]:
    dataset: Dataset[list[float]] = Drawing(sampler.length)
    if seeded:
        dataset = SeededItems(dataset, seed=5)
    return Batches(
        DataLoader(dataset, batch_sampler=sampler, num_workers=workers, collate_fn=list, **options)
    )


WORKERS: dict[str, dict[str, Any]] = {
    "no worker": {"workers": 0},
    "two workers": {"workers": 2},
    "two that persist": {"workers": 2, "persistent_workers": True, "prefetch_factor": 4},
}


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS.keys())
def test_the_position_counts_what_was_consumed_and_not_what_was_prefetched(
    workers: dict[str, Any],
):
    sampler = ResumableSampler(30, 4, rank=0, world_size=1, micro_batches=2, seed=2)
    batches = loading(sampler, **workers)
    delivered = [int(item[0]) for _ in range(5) for item in next(batches)]
    assert sampler.position == 10
    assert batches.take_ids().tolist() == delivered == order(30, seed=2)[:10]
    assert batches.take_ids().tolist() == []


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS.keys())
def test_a_state_loaded_in_the_middle_takes_effect_with_the_next_batch(workers: dict[str, Any]):
    sampler = ResumableSampler(11, 3, rank=0, world_size=1, seed=2)
    batches = loading(sampler, **workers)
    for _ in range(2):
        next(batches)
    state = sampler.state_dict()
    expected = [next(batches) for _ in range(6)]
    batches.take_ids()
    for _ in range(2):
        next(batches)

    sampler.load_state_dict(state)
    again = [next(batches) for _ in range(6)]

    assert again == expected
    assert batches.take_ids().tolist() == [int(item[0]) for batch in again for item in batch]
    assert sampler.position == 24


def items_by_epoch(batches: Batches[Any], draws: int, length: int) -> dict[tuple[int, int], Any]:
    """What each sample drew, by its epoch and id."""
    assert batches.sampler is not None
    place = batches.sampler.position
    found = {}
    for item in chain.from_iterable(next(batches) for _ in range(draws)):
        found[place // length, int(item[0])] = tuple(item[1:])
        place += 1
    return found


def test_items_draw_the_same_in_any_process_and_after_a_stop_and_no_two_draw_alike():
    length = 10

    def fresh() -> ResumableSampler:
        return ResumableSampler(length, 2, rank=0, world_size=1, seed=8)

    reference = items_by_epoch(loading(fresh()), 10, length)
    assert len(reference) == 20
    for kind in range(3):
        assert len({drawn[kind] for drawn in reference.values()}) == 20

    first = loading(fresh(), workers=2)
    seen = items_by_epoch(first, 7, length)
    assert first.sampler is not None
    second = loading(fresh(), workers=2)
    assert second.sampler is not None
    second.sampler.load_state_dict(first.sampler.state_dict())
    seen |= items_by_epoch(second, 3, length)
    assert seen == reference


@pytest.mark.processes
def test_workers_that_were_spawned_draw_the_same():
    sampler = ResumableSampler(6, 2, rank=0, world_size=1)
    reference = [next(loading(sampler)) for _ in range(3)]
    sampler = ResumableSampler(6, 2, rank=0, world_size=1)
    batches = loading(sampler, workers=1, multiprocessing_context="spawn")
    assert [next(batches) for _ in range(3)] == reference


@pytest.mark.parametrize("workers", [0, 2])
def test_neither_items_nor_loaders_touch_the_streams_of_training(workers: int):
    exactness.seed_all(0, 0)
    before = exactness.rng_digest()
    batches = loading(ResumableSampler(8, 2, rank=0, world_size=1), workers=workers)
    for _ in range(6):
        next(batches)
    assert exactness.rng_digest() == before


def test_an_item_that_fails_puts_the_streams_back_and_is_asked_for_again():
    class Failing(Drawing):
        failures = 1

        def __getitem__(self, index: int) -> list[float]:
            item = super().__getitem__(index)
            if index == 3 and self.failures:
                self.failures -= 1
                raise OSError("the disk is away")
            return item

    sampler = ResumableSampler(4, 2, rank=0, world_size=1, shuffle=False)
    batches = Batches(DataLoader(SeededItems(Failing(4)), batch_sampler=sampler, collate_fn=list))
    before = exactness.rng_digest()
    next(batches)
    with pytest.raises(OSError, match="the disk is away"):
        next(batches)
    assert exactness.rng_digest() == before
    assert [int(item[0]) for item in next(batches)] == [2, 3]
    assert sampler.position == 4


def unseeded(rank: int, position: int) -> list[tuple[float, ...]]:
    """What items draw that nobody seeds, in two workers: ids left out."""
    sampler = ResumableSampler(6, 2, rank=rank, world_size=2)
    sampler.load_state_dict(sampler.state_dict() | {"position": position})
    batches = loading(sampler, workers=2, seeded=False)
    return [tuple(item[1:]) for _ in range(4) for item in next(batches)]


def test_items_that_nobody_seeds_draw_alike_in_no_worker_rank_or_later_start():
    draws = [*unseeded(0, 0), *unseeded(1, 0), *unseeded(0, 6)]
    for kind in range(3):
        assert len({drawn[kind] for drawn in draws}) == len(draws)
    assert unseeded(0, 0) == draws[:4]


def test_another_loader_is_begun_again_when_it_fails():
    class Failing(Drawing):
        failures = 1

        def __getitem__(self, index: int) -> list[float]:
            if index == 2 and self.failures:
                self.failures -= 1
                raise OSError("the disk is away")
            return super().__getitem__(index)

    batches = Batches(DataLoader(Failing(4), batch_size=1, collate_fn=list))
    seen = [[int(item[0]) for item in next(batches)] for _ in range(2)]
    with pytest.raises(OSError, match="the disk is away"):
        next(batches)
    seen += [[int(item[0]) for item in next(batches)] for _ in range(3)]
    assert seen == [[0], [1], [0], [1], [2]]


def test_another_loader_is_begun_again_when_it_ends_and_has_no_ids():
    batches = Batches(DataLoader(Drawing(3), batch_size=2, collate_fn=list))
    ids = [[int(item[0]) for item in next(batches)] for _ in range(5)]
    assert ids == [[0, 1], [2], [0, 1], [2], [0, 1]]
    assert batches.sampler is None
    assert batches.take_ids().tolist() == []
    assert next(Batches([7])) == 7
    with pytest.raises(ValueError, match="the loader is empty"):
        next(Batches([]))


def test_what_can_know_the_place_in_the_data_is_the_sampler_of_ours_or_a_part_of_the_loader():
    sampler = ResumableSampler(4, 2, rank=0, world_size=1)
    assert Batches(DataLoader(Drawing(4), batch_sampler=sampler)).keepers() == [sampler]
    loader = DataLoader(Drawing(3))
    assert Batches(loader).keepers() == [
        loader,
        loader.batch_sampler,
        loader.sampler,
        loader.dataset,
    ]


def test_a_loader_that_delivers_in_any_order_is_refused():
    with pytest.raises(ValueError, match="in_order=True"):
        Batches(DataLoader(Drawing(3), num_workers=2, in_order=False))


def test_a_generator_of_the_user_s_own_is_left_alone():
    mine = torch.Generator().manual_seed(3)
    loader = DataLoader(Drawing(3), generator=mine)
    next(Batches(loader))
    assert loader.generator is mine
