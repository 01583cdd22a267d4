import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint import shards
from harness.checkpoint.buffers import Buffers, Content, arranged, copy, specs
from harness.checkpoint.shards import Piece, Spec, share
from harness.checkpoint.tree import DTYPES

layouts = st.lists(
    st.builds(
        Spec,
        st.sampled_from(sorted(DTYPES)),
        st.lists(st.integers(0, 40), max_size=3).map(tuple),
    ),
    max_size=8,
).map(lambda specs: {f"t{number}": spec for number, spec in enumerate(specs)})


def rows_of(pieces: list[Piece], layout: dict[str, Spec]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {name: [] for name in layout}
    for piece in pieces:
        rows[piece.name] += range(piece.start, piece.start + piece.rows)
    return rows


@given(layouts, st.integers(1, 7))
def test_every_row_is_written_by_exactly_one_rank(layout, world_size):
    pieces = [piece for rank in range(world_size) for piece in share(layout, rank, world_size)]

    assert {piece.name for piece in pieces} == set(layout)
    assert rows_of(pieces, layout) == {
        name: list(range(spec.rows)) for name, spec in layout.items()
    }


@given(layouts, st.integers(1, 7))
def test_no_rank_writes_more_than_its_part_and_a_row(layout, world_size):
    total = sum(spec.size_bytes for spec in layout.values())
    row = max((spec.row_bytes for spec in layout.values()), default=0)
    for rank in range(world_size):
        mine = sum(piece.part.size_bytes for piece in share(layout, rank, world_size))
        assert mine <= total / world_size + row + 1


@given(layouts, st.integers(500, 3000))
def test_files_hold_every_row_once_and_respect_the_cap(layout, cap):
    parts = shards.files(shards.whole(layout), cap)
    pieces = sorted((p for part in parts for p in part), key=lambda piece: piece.start)

    assert rows_of(pieces, layout) == {
        name: list(range(spec.rows)) for name, spec in layout.items()
    }
    for part in parts:
        size = len(shards.header(part, {})) + sum(piece.part.size_bytes for piece in part)
        assert size <= cap or (len(part) == 1 and part[0].rows == 1)


def test_one_huge_tensor_is_divided_over_the_ranks_too():
    layout = {"huge": Spec("F32", (10, 100)), "scale": Spec("F32", ())}

    assert [share(layout, rank, 3) for rank in range(3)] == [
        [Piece("huge", layout["huge"], 0, 3)],
        [Piece("huge", layout["huge"], 3, 4)],
        [Piece("huge", layout["huge"], 7, 3), Piece("scale", layout["scale"], 0, 1)],
    ]


def test_a_piece_is_cut_only_if_it_exceeds_a_file_of_its_own():
    small, large = Spec("U8", (900,)), Spec("U8", (2500,))
    parts = shards.files(shards.whole({"a": small, "b": small, "c": large}), 1600)

    assert [[(p.name, p.start, p.rows) for p in part] for part in parts] == [
        [("a", 0, 900)],
        [("b", 0, 900)],
        [("c", 0, 1079)],
        [("c", 1079, 1079)],
        [("c", 2158, 342)],
    ]


def test_names_of_files_tell_rank_world_size_and_part():
    assert shards.file_name(0, 2, 0) == "shard-00000-of-00002.safetensors"
    assert shards.file_name(1, 2, 3) == "shard-00001-of-00002-part-3.safetensors"


def odd_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (0,), (3, 0), (1,), (5, 3)]
    tensors = {
        f"{name} {shape}": torch.randint(0, 2, shape, generator=generator).to(dtype)
        for name, dtype in DTYPES.items()
        for shape in shapes
    }
    return {**tensors, "turned": torch.arange(6.0).view(2, 3).t()}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def file_of(tensors: dict[str, torch.Tensor]) -> bytes:
    (part,) = shards.files(shards.whole(specs(tensors)), 10**9)
    content = Content(shards.header(part, {"run_id": "r"}), part)
    buffers, ((span,), end) = Buffers(), arranged([content])
    slot = buffers.claim(end, tensors)
    assert slot is not None
    buffers.fill(slot, [content], [span], tensors, copy).wait()
    return bytes(buffers.memory(slot).view[span.begin : span.begin + span.size_bytes])


def test_any_shard_opens_with_the_plain_safetensors_library(tmp_path):
    tensors = odd_tensors()
    (tmp_path / "shard.safetensors").write_bytes(file_of(tensors))

    loaded = safetensors.torch.load_file(tmp_path / "shard.safetensors")

    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(loaded[name]) == bits(tensor), name


def test_an_empty_shard_opens_too(tmp_path):
    (tmp_path / "shard.safetensors").write_bytes(file_of({}))
    assert safetensors.torch.load_file(tmp_path / "shard.safetensors") == {}
