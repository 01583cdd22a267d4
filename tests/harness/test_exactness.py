import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import exactness
from harness.checkpoint.tree import flatten, unflatten

ROOT = Path(__file__).parents[2]
Ranks = dict[str, list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def switches_put_back() -> Iterator[None]:
    """A test of global switches and streams leaves them as they were."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    rng = exactness.capture_rng()
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)
    exactness.restore_rng(rng)


def drawn() -> tuple[list[float], list[float], list[float]]:
    """The next five draws of Python's, NumPy's and torch's global streams."""
    return (
        [random.gauss(0, 1) for _ in range(5)],
        np.random.standard_normal(5).tolist(),
        torch.randn(5).tolist(),
    )


# ── streams ─────────────────────────────────────────────────────────────────────────────────────


def test_each_rank_goes_on_with_its_own_streams_though_all_drew_different_amounts():
    expected, saved = [], []
    for rank in range(3):
        exactness.seed_all(7, rank)
        for _ in range(
            2 * rank + 1
        ):  # an odd number: the spare value of a pair of normals is state
            drawn()
        saved.append(exactness.capture_rng())
        expected.append(drawn())

    resumed = []
    for rank in range(3):
        exactness.seed_all(99, 0)
        exactness.restore_rng(saved[rank])
        resumed.append(drawn())

    assert resumed == expected
    for kind in range(3):
        assert len({tuple(of_rank[kind]) for of_rank in resumed}) == 3


def test_the_state_of_the_streams_survives_a_checkpoint_s_tree():
    exactness.seed_all(0, 0)
    random.gauss(0, 1)
    np.random.standard_normal()
    tree = exactness.capture_rng()
    expected = drawn()

    flat = flatten(tree)
    skeleton = json.loads(json.dumps(flat.skeleton, allow_nan=False))
    tensors = {name: tensor.clone() for name, tensor in flat.tensors.items()}
    exactness.restore_rng(unflatten(skeleton, tensors))

    assert drawn() == expected


def test_capturing_draws_nothing_and_keeps_no_hold_on_the_streams():
    exactness.seed_all(0, 0)
    before = exactness.rng_digest()
    tree = exactness.capture_rng()
    assert exactness.rng_digest() == before

    drawn()
    exactness.restore_rng(tree)
    assert exactness.rng_digest() == before


def test_seeds_ranks_and_steps_all_give_other_streams():
    streams = []
    for seed, rank, step in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (2**40, 0, 0)]:
        exactness.seed_all(seed, rank, step)
        streams.append(drawn())
    for kind in range(3):
        assert len({tuple(stream[kind]) for stream in streams}) == len(streams)


# ── switches and fingerprint ────────────────────────────────────────────────────────────────────


def test_pinning_undoes_what_a_script_had_set_and_a_change_after_it_is_named():
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")

    pinned = exactness.pin(1, "cpu")

    assert pinned["cudnn.benchmark"] == "False"
    assert pinned["deterministic_algorithms"] == "True"
    assert pinned["deterministic_warn_only"] == "False"
    assert pinned["float32_matmul_precision"] == "highest"
    assert pinned["cudnn.conv.fp32_precision"] == "ieee"
    assert pinned["threads"] == "1"
    assert exactness.changed(pinned) == []

    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(False)
    advice = "now: set it before join(), and leave it alone from there on"
    assert exactness.changed(pinned) == [
        f"deterministic_algorithms was True when the run started and is False {advice}",
        f"cudnn.benchmark was False when the run started and is True {advice}",
    ]


def test_inexact_pinning_sets_the_threads_and_leaves_the_switches():
    torch.backends.cudnn.benchmark = True
    pinned = exactness.pin(1, "cpu", exact=False)
    assert (pinned["cudnn.benchmark"], pinned["threads"]) == ("True", "1")


def test_threads_are_what_was_asked_for_or_a_rank_s_part_of_the_cores():
    cores = len(os.sched_getaffinity(0))
    assert exactness.threads_for(3, 2) == 3
    assert exactness.threads_for(0, 1) == cores
    assert exactness.threads_for(0, 10 * cores) == 1
    with pytest.raises(ValueError, match="threads = 0 is below 1"):
        exactness.pin(0, "cpu")


def test_a_workspace_that_lets_bits_vary_is_refused_on_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(ValueError, match=r"CUBLAS_WORKSPACE_CONFIG = ':0:0'.*unset it"):
        exactness.pin(1, "cuda")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert exactness.pin(1, "cuda")["cublas_workspace"] == ":16:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert exactness.pin(1, "cuda")["cublas_workspace"] == ":4096:8"


def test_a_fingerprint_equals_itself_and_names_every_entry_that_changed():
    exactness.pin(1, "cpu")
    saved = exactness.fingerprint("cpu", 4, {"ddp.bucket_bytes_cap": "1"})
    assert exactness.mismatches(saved, dict(saved)) == []

    torch.set_num_threads(2)
    now = exactness.fingerprint("cpu", 2)
    assert exactness.mismatches(saved, now) == [
        f"{difference}, or run with exact = false"
        for difference in (
            "world_size was 4 when the state was saved and is 2 now: start as many ranks as before",
            (
                "threads was 1 when the state was saved and is 2 now: set threads (HARNESS_THREADS)"
                " to the saved number"
            ),
            "ddp.bucket_bytes_cap was 1 when the state was saved and is not set now: set it as it was",
        )
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_s_stream_is_continued():
    exactness.seed_all(0, 0)
    torch.randn(5, device="cuda")
    tree = exactness.capture_rng()
    expected = torch.randn(5, device="cuda")
    torch.randn(5, device="cuda")
    exactness.restore_rng(tree)
    assert torch.equal(torch.randn(5, device="cuda"), expected)
    assert exactness.fingerprint("cuda", 1)["device_name"] == torch.cuda.get_device_name()


# ── bucket layout, in real ranks ────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    """What 3 and 4 real ranks measured."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.resumed_ranks"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Ranks = json.loads(done.stdout)
    return found


def outcomes(ranks: Ranks, world_size: int, case: str) -> list[Any]:
    return [rank[case] for rank in ranks[str(world_size)]]


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [3, 4])
@pytest.mark.parametrize("layout", ["default buckets", "small buckets"])
def test_a_twice_resumed_run_ends_as_the_one_that_went_on(
    ranks: Ranks, world_size: int, layout: str
):
    assert outcomes(ranks, world_size, f"{layout}, cured") == [[]] * world_size


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [3, 4])
@pytest.mark.parametrize("layout", ["default buckets", "small buckets"])
def test_without_settled_buckets_it_does_not(ranks: Ranks, world_size: int, layout: str):
    for differing in outcomes(ranks, world_size, f"{layout}, uncured"):
        assert {"optimizer", "model"} <= set(differing)


@pytest.mark.processes
@pytest.mark.parametrize("case", ["views, cured", "unused, cured"])
def test_a_resume_is_exact_under_other_options_of_ddp(ranks: Ranks, case: str):
    assert outcomes(ranks, 3, case) == [[]] * 3


@pytest.mark.processes
def test_settling_touches_no_buffer_stream_gradient_or_hook(ranks: Ranks):
    untouched = {
        "changed": [],
        "hooks during": [],
        "hooks afterwards": ["accumulated", "forward", "gradient"],
        "settled": True,
        "synchronises buffers": True,
    }
    assert outcomes(ranks, 3, "touched") == [untouched] * 3


@pytest.mark.processes
def test_mixed_dtypes_sparse_gradients_and_a_model_without_forward_are_settled(ranks: Ranks):
    assert outcomes(ranks, 3, "odd") == [{"settled": True, "gradients": []}] * 3


@pytest.mark.processes
def test_an_exception_leaves_the_model_and_its_hooks_as_they_were(ranks: Ranks):
    put_back = {
        "raised": "no room",
        "model back": True,
        "hooks back": True,
        "synchronises buffers": True,
    }
    assert outcomes(ranks, 3, "failing") == [put_back] * 3


@pytest.mark.processes
def test_a_model_in_ddp_is_protected_under_its_own_names(ranks: Ranks):
    names = {"first.weight", "first.bias", "middle.weight", "middle.bias", "norm.weight"}
    names |= {"norm.bias", "head.weight", "head.bias"}
    assert outcomes(ranks, 3, "names") == [sorted(names)] * 3


@pytest.mark.processes
def test_a_first_micro_batch_under_no_sync_stays_with_its_rank(ranks: Ranks):
    expected = {"after the first": False, "after the last": True}
    assert outcomes(ranks, 3, "accumulated") == [expected] * 3


@pytest.mark.processes
def test_all_signals_together_change_no_bit_with_or_without_a_communication_hook_or_autocast(
    ranks: Ranks,
):
    assert outcomes(ranks, 3, "signalled") == [{"ddp": [], "hook": [], "autocast": []}] * 3


@pytest.mark.processes
def test_a_communication_hook_can_be_registered_afterwards(ranks: Ranks):
    assert outcomes(ranks, 3, "hooked") == [True] * 3


@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("static graph", "static_graph=True"),
        ("step in backward", "apply_optimizer_in_backward"),
    ],
)
def test_what_cannot_be_settled_is_refused_by_name(ranks: Ranks, case: str, reason: str):
    for told in outcomes(ranks, 3, case):
        assert reason in told
