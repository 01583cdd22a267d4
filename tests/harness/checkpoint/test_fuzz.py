"""Whatever becomes of the files of checkpoints: a state that the job had is resumed from, or none."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from harness.checkpoint.manifest import (
    Commit,
    DamagedError,
    FileRecord,
    Place,
    decode_commit,
    encode_commit,
    record,
)
from harness.checkpoint.refusals import RestoreError
from harness.checkpoint.restore import choose
from harness.checkpoint.store import Store, StoreError
from tests.damage import DEEP, WILD, flipped, spoilt
from tests.harness.checkpoint.world import Log, Run

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
chances = st.integers(0, 2**32).map(random.Random)


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 10 and 20 of attempt 1, step 30 of attempt 2."""
    run = Run(tmp_path_factory.mktemp("committed") / "checkpoints")
    run.commit(10, 20, world_size=1)
    run.commit(30, world_size=1)
    return run.root


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def resumed(root: Path) -> int:
    """The step that an attempt resumes from, once everything in its state was found to be of it."""
    store = Store.open(f"file://{root}", "run")
    found = choose(store, HashStore(), 0, 1, store.claim_attempt(), "auto", Log(), 5.0)
    assert found is not None
    value = float(found.step)
    assert torch.equal(found.shared["model"]["weight"], torch.full((8, 4), value))
    assert found.shared["optimizer"] == {"lr": value, "state": {0: ()}}
    assert (found.own["step"], found.own["rank"]) == (value, 0)
    return found.step


@settings(max_examples=120, deadline=None, suppress_health_check=QUIET)
@given(chances)
def test_a_damaged_checkpoint_is_walked_past_or_refused(
    committed: Path, tmp_path: Path, chance: random.Random
):
    root = tmp_path / "checkpoints"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(committed, root)
    names = files_of(root)
    for name in chance.sample(names, chance.choice((1, 1, 2))):
        path, data = root / name, (root / name).read_bytes()
        if chance.random() < 0.1:
            path.unlink()
        elif chance.random() < 0.1:
            path.write_bytes((root / chance.choice(files_of(root))).read_bytes())
        else:
            path.write_bytes(chance.choice((flipped, spoilt))(data, chance))
    try:
        assert resumed(root) in (10, 20, 30)
    except (StoreError, RestoreError) as refusal:
        assert str(root) in str(refusal)  # noqa: PT017


@pytest.mark.parametrize("name", ["commit.json", "manifest.json", "state.json"])
@pytest.mark.parametrize("content", WILD)
def test_a_wild_file_of_a_checkpoint_is_walked_past(
    committed: Path, tmp_path: Path, name: str, content: bytes
):
    shutil.copytree(committed, tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "step-00000030-2" / name).write_bytes(content)
    assert resumed(tmp_path / "checkpoints") == 20


@pytest.mark.parametrize("content", WILD)
def test_a_wild_record_beside_the_checkpoints_is_refused(
    committed: Path, tmp_path: Path, content: bytes
):
    shutil.copytree(committed, tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "attempts" / "00002.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"attempts/00002.json is damaged"):
        resumed(tmp_path / "checkpoints")


def test_a_commit_that_is_nested_too_deep_is_no_commit():
    with pytest.raises(DamagedError, match="cannot be read"):
        decode_commit(DEEP)


# ── manifests that were sealed as they are: what they claim is not believed ────────────────────

CLAIMS = {
    "more bytes than there are": ("files", "state.json", "size", 10**15),
    "a tensor of 10^15 rows": ("tensors", "shared/model/weight", "shape", [10**15, 4]),
    "a shape that overflows": ("tensors", "shared/model/weight", "shape", [2**40, 2**40]),
    "a negative shape": ("tensors", "shared/model/weight", "shape", [-8, 4]),
    "no such dtype": ("tensors", "shared/model/weight", "dtype", "F4096"),
    "no pieces": ("tensors", "shared/model/weight", "pieces", []),
    "another step": ("step", 40),
    "a file outside": ("files", "../../x", {"size": 1, "xxh3_128": "0"}),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS.keys())
def test_what_a_whole_manifest_claims_is_checked(committed: Path, tmp_path: Path, claim):
    root = tmp_path / "checkpoints"
    shutil.copytree(committed, root)
    place = root / "step-00000030-2"
    manifest = json.loads((place / "manifest.json").read_bytes())
    node = manifest
    *keys, last, value = claim
    for key in keys:
        node = node[key]
    node[last] = value
    data = json.dumps(manifest).encode()
    (place / "manifest.json").write_bytes(data)
    reseal(place, record(data))
    assert resumed(root) == 20


def reseal(place: Path, manifest: FileRecord) -> None:
    """Let the commit name the manifest as it is now."""
    at = Place.parse(place.name)
    assert at is not None
    (place / "commit.json").write_bytes(
        encode_commit(Commit(1, "run", at.step, at.attempt, manifest))
    )


@pytest.mark.parametrize("content", WILD)
def test_a_wild_mark_of_damage_is_a_mark_of_damage(committed: Path, tmp_path: Path, content: bytes):
    shutil.copytree(committed, tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "step-00000030-2" / "rejected.json").write_bytes(content)
    assert resumed(tmp_path / "checkpoints") == 20
