"""How many ranks a launch may have, refused before any starts."""

import os
import resource

import pytest

from launch import capacity
from launch.flags import UsageError


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("0", "--nproc-per-node 0 is no number of ranks from 1 to 4096"),
        ("-1", "--nproc-per-node -1 is no number of ranks from 1 to 4096"),
        ("100000000", "--nproc-per-node 100000000 is no number of ranks from 1 to 4096"),
        ("x", "--nproc-per-node x: Unsupported nproc_per_node value: x; give a number, auto, cpu"),
        ("1e3", "--nproc-per-node 1e3: Unsupported nproc_per_node value: 1e3; give a number"),
    ],
)
def test_what_is_no_number_of_ranks_is_refused(asked: str, message: str):
    with pytest.raises(UsageError) as refused:
        capacity.ranks(asked)
    assert str(refused.value).startswith(message)


def test_gpus_that_are_not_there_are_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        UsageError, match=r"--nproc-per-node gpu: Cuda is not available; give a number"
    ):
        capacity.ranks("gpu")


def test_a_rank_for_each_core_is_asked_for_by_name():
    assert capacity.ranks("cpu") == os.cpu_count()


def test_too_few_files_to_open_are_refused_before_a_rank_waits_for_them():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, before[1]))
    try:
        assert capacity.ranks("4") == 4
        with pytest.raises(UsageError) as refused:
            capacity.ranks("5")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert str(refused.value) == (
        "a process may open 80 files here, and 5 ranks need 84: raise that with `ulimit -n 84`"
    )
