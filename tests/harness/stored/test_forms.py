"""What leaves in any form comes back to the last bit, and no file is trusted further than its tensors."""

import json
import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from safetensors.torch import load_file, save_file

from harness.checkpoint.manifest import DamagedError, Place
from harness.checkpoint.tree import DTYPES, flatten
from harness.stored import forms
from harness.stored.document import Document, FormError, flattened, of_store
from harness.stored.placing import place_document
from tests.harness.checkpoint.world import Rank, Run

NAMES = ["state.safetensors", "state.pt", "state"]
"""One of each form."""


def shared() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(), (0,), (7,), (1, 9), (13, 1, 3), (2, 0)]
    every = {
        f"{name} {shape}": torch.randint(0, 2, shape, generator=generator).to(dtype)
        for name, dtype in DTYPES.items()
        for shape in shapes
    }
    every["tied"] = every["F32 (7,)"]
    return {"model": every, "optimizer": {"state": {0: (1, 2.5)}, "betas": (0.9, float("nan"))}}


def own(rank: int) -> dict[str, Any]:
    return {
        "rng": torch.full((3,), rank, dtype=torch.uint8),
        "order": OrderedDict(b=1, a=2),
        "counts": Counter("aab"),
        "large": 10**30 + rank,
    }


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "checkpoints")

    def body(rank: Rank) -> bool:
        rank.saver.at_step(10, shared, lambda: own(rank.rank), force=True)
        return rank.saver.finish(20)

    assert made.attempt(body, 3, fingerprint={"torch": "2.13"}) == [True] * 3
    return made


def bits(document: Document) -> Any:
    """A document as values that can be compared, to the last bit."""
    flat = flattened(document)
    return flat.text, {
        name: (str(tensor.dtype), tuple(tensor.shape), raw(tensor))
        for name, tensor in flat.tensors.items()
    }


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_that_goes_out_and_comes_in_is_resumed_from_to_the_last_bit(
    run, tmp_path, name
):
    document = of_store(run.store(), Place(10, 1))
    forms.write(document, tmp_path / name)
    there = Run(tmp_path / "there", run_id="another")

    back = forms.read(tmp_path / name)
    place_document(there.store(), back, 12, there.store().claim_attempt())

    assert bits(back) == bits(document)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    for rank, found in enumerate(there.choose(3)):
        assert (found.step, found.saved_by, found.world_size) == (12, 1, 3)
        assert found.fingerprint == {"torch": "2.13"}
        assert same(found.shared, shared())
        assert same(found.own, own(rank))


def same(mine: Any, other: Any) -> bool:
    here, there = flatten(mine), flatten(other)
    tensors = [
        raw(tensor) == raw(there.tensors[name]) and tensor.dtype == there.tensors[name].dtype
        for name, tensor in here.tensors.items()
    ]
    return here.skeleton == there.skeleton and all(tensors) and len(tensors) == len(there.tensors)


def test_other_programs_read_what_goes_out(run, tmp_path):
    document = of_store(run.store(), Place(10, 1))
    for name in NAMES:
        forms.write(document, tmp_path / name)

    tensors = load_file(tmp_path / "state.safetensors")
    plain = torch.load(tmp_path / "state.pt", weights_only=True)
    into = {"model/F32 (7,)": torch.zeros(7)}
    with pytest.warns(UserWarning, match="single process"):
        torch_dcp.load(into, checkpoint_id=tmp_path / "state", no_dist=True)

    expected = shared()["model"]["F32 (7,)"]
    assert torch.equal(tensors["model/F32 (7,)"], expected)
    assert tensors["rank-2/rng"].tolist() == [2, 2, 2]
    assert torch.equal(plain["shared"]["model"]["F32 (7,)"], expected)
    assert plain["own"][1]["rng"].tolist() == [1, 1, 1]
    assert torch.equal(into["model/F32 (7,)"], expected)


def test_what_is_damaged_does_not_leave(run, tmp_path):
    path = run.directory(10) / "shard-00002-of-00003.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(DamagedError, match="shard-00002"):
        of_store(run.store(), Place(10, 1))


def test_nothing_is_written_over_and_an_ending_says_the_form(run, tmp_path):
    document = of_store(run.store(), Place(10, 1))
    (tmp_path / "there.pt").write_bytes(b"mine")

    with pytest.raises(FormError, match=r"there.pt exists already"):
        forms.write(document, tmp_path / "there.pt")
    with pytest.raises(FormError, match=r"unknown ending '.zip'; known: .safetensors, .pt"):
        forms.write(document, tmp_path / "there.zip")
    assert (tmp_path / "there.pt").read_bytes() == b"mine"


# ── what comes from elsewhere ───────────────────────────────────────────────────────────────────


def foreign_safetensors(at: Path) -> None:
    save_file({"weight": torch.ones(2), "bias": torch.ones(1)}, at)


def foreign_torch(at: Path) -> None:
    model = torch.nn.Linear(2, 1)
    torch.save(model.state_dict(), at)


def foreign_dcp(at: Path) -> None:
    with pytest.warns(UserWarning, match="single process"):
        torch_dcp.save({"weight": torch.ones(2), "bias": 1}, checkpoint_id=at, no_dist=True)


@pytest.mark.parametrize(
    ("make", "name"),
    [(foreign_safetensors, "a.safetensors"), (foreign_torch, "a.pt"), (foreign_dcp, "a")],
)
def test_a_plain_file_of_weights_is_refused_with_the_way_out(tmp_path, make, name):
    make(tmp_path / name)

    with pytest.raises(FormError) as refused:
        forms.read(tmp_path / name)

    assert str(refused.value) == (
        f"{tmp_path / name} was not made by `harness checkpoint export`: it holds 'bias', 'weight',"
        " and a checkpoint holds all that decides the future (optimizer, random streams, the place"
        " in the data). Weights to begin with are loaded by the script, before job.steps()"
    )


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


def test_a_pickle_that_would_run_code_is_refused_by_name(tmp_path):
    made = tmp_path / "made"
    torch.save({"harness": Harmful(str(made))}, tmp_path / "a.pt")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/.metadata").write_bytes(pickle.dumps(Harmful(str(made))))

    with pytest.raises(FormError, match=r"a.pt is not read: it needs (io|_io).open"):
        forms.read(tmp_path / "a.pt")
    with pytest.raises(FormError, match=r"b: its .metadata needs (io|_io).open, which is none"):
        forms.read(tmp_path / "b")
    assert not made.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_cut_is_refused(run, tmp_path, name):
    forms.write(of_store(run.store(), Place(10, 1)), tmp_path / name)
    path = tmp_path / name
    files = [path] if path.is_file() else [*path.iterdir()]
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(FormError, match=str(path)):
            forms.read(path)
        file.write_bytes(whole)
    forms.read(path)


@pytest.mark.parametrize("name", ["state.safetensors", "state.pt", "state/__0_0.distcp"])
def test_a_bit_that_flipped_outside_is_found(run, tmp_path, name):
    path = tmp_path / Path(name).parts[0]
    forms.write(of_store(run.store(), Place(10, 1)), path)
    data = bytearray((tmp_path / name).read_bytes())
    weight = raw(shared()["model"]["C64 (13, 1, 3)"])
    data[data.index(weight) + 9] ^= 4
    (tmp_path / name).write_bytes(data)

    with pytest.raises(
        FormError, match=rf"{path} is damaged, or was changed: its state has digest"
    ):
        forms.read(path)


def test_a_directory_that_keeps_its_data_elsewhere_is_refused(run, tmp_path):
    forms.write(of_store(run.store(), Place(10, 1)), tmp_path / "a")
    file = tmp_path / "a/.metadata"
    known = pickle.loads(file.read_bytes())
    for info in known.storage_data.values():
        info.relative_path = "../secret"
    file.write_bytes(pickle.dumps(known))

    with pytest.raises(FormError, match=r"keeps data in '../secret', outside of itself"):
        forms.read(tmp_path / "a")


def test_a_text_that_does_not_fit_its_tensors_is_refused(run, tmp_path):
    forms.write(of_store(run.store(), Place(10, 1)), tmp_path / "a.safetensors")
    flat = flattened(of_store(run.store(), Place(10, 1)))
    fields = json.loads(flat.text)

    def refused(why: str, **changes: Any) -> None:
        text = json.dumps({**fields, **changes})
        path = tmp_path / f"{why.replace(' ', '-')}.safetensors"
        save_file({n: t.contiguous() for n, t in flat.tensors.items()}, path, {"harness": text})
        with pytest.raises(FormError, match=why):
            forms.read(path)

    refused("says 3", own=fields["own"][:2])
    refused("schema 2; this version reads 1 to 1", about={**fields["about"], "schema": 2})
    refused("which no shard holds", shared={"a": {"$tensor": "none"}})
    refused("no whole checkpoint", about=7)


def test_an_import_that_dies_before_its_record_counts_for_nobody(run, monkeypatch):
    document = of_store(run.store(), Place(10, 1))
    store = run.store()

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(store), "record_lineage", die)
    with pytest.raises(KeyboardInterrupt):
        place_document(store, document, 20, store.claim_attempt())
    monkeypatch.undo()

    assert [found.step for found in run.choose(3)] == [10, 10, 10]
    assert run.steps() == [10]
