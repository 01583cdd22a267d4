import torch

from harness.checkpoint import shards
from harness.checkpoint.buffers import Buffers, Content, Span, arranged, copy, specs
from harness.checkpoint.memory import Memory
from harness.checkpoint.slot import DATA

HEADER = b"header-of-a-file"


def contents(tensors: dict[str, torch.Tensor], cap: int = 10**9) -> list[Content]:
    parts = shards.files(shards.whole(specs(tensors)), cap)
    return [Content(HEADER, part) for part in parts]


def bytes_of(taken: tuple[list[Span], Memory]) -> list[bytes]:
    """What the copy has of each file's tensors."""
    spans, memory = taken
    whole = [memory.view[span.begin : span.begin + span.size_bytes] for span in spans]
    assert all(file[: span.header_bytes] == HEADER for file, span in zip(whole, spans, strict=True))
    return [bytes(file[len(HEADER) :]) for file in whole]


def take(
    buffers: Buffers, tensors: dict[str, torch.Tensor], cap: int = 10**9
) -> tuple[list[Span], Memory]:
    files = contents(tensors, cap)
    spans, end = arranged(files)
    slot = buffers.claim(end, tensors)
    assert slot is not None
    buffers.fill(slot, files, spans, tensors, copy).wait()
    return spans, buffers.memory(slot)


def taken(buffers: Buffers, tensors: dict[str, torch.Tensor], cap: int = 10**9) -> list[bytes]:
    return bytes_of(take(buffers, tensors, cap))


def test_what_changes_after_the_copy_is_not_in_it():
    tensor = torch.ones(4)
    copied = take(Buffers(), {"t": tensor})
    tensor.fill_(2)
    (data,) = bytes_of(copied)

    assert data == torch.ones(4).numpy().tobytes()


def test_the_same_memory_serves_every_save():
    buffers = Buffers()
    sizes, addresses = set(), set()
    for value in range(5):
        taken(buffers, {"t": torch.full((1000,), float(value))})
        sizes.add(buffers.size_bytes)
        addresses.add(buffers._slots[0].bytes.data_ptr())

    assert len(sizes) == len(addresses) == 1


def test_a_state_of_another_form_is_copied_by_its_own_and_not_by_the_last_one_s():
    buffers = Buffers()
    for tensors in (
        {"a": torch.ones(4), "b": torch.zeros(2)},
        {"a": torch.full((4,), 3.0), "b": torch.ones(2)},
        {"b": torch.full((2,), 4.0), "a": torch.full((4,), 5.0)},
        {"a": torch.full((2, 2), 6.0), "b": torch.full((2,), 7.0)},
        {"a": torch.full((4,), 8, dtype=torch.int64), "b": torch.full((2,), 9.0)},
        {"a": torch.full((4,), 10.0)},
    ):
        whole = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
        expected = b"".join(tensor.numpy().tobytes() for _, tensor in whole)
        assert taken(buffers, tensors) == [expected]


def test_memory_grows_once_the_optimizer_has_a_state_and_not_again():
    buffers = Buffers()
    taken(buffers, {"t": torch.ones(10)})
    before = buffers.size_bytes
    taken(buffers, {"t": torch.ones(10), "momentum": torch.ones(100_000)})
    grown = buffers.size_bytes
    assert taken(buffers, {"t": torch.zeros(10)}) == [bytes(40)]
    assert buffers.size_bytes == grown >= DATA + 400_040 > before


def test_files_never_share_bytes():
    tensors = {"a": torch.ones(3), "b": torch.zeros(1, dtype=torch.uint8), "c": torch.ones(700)}
    data = taken(Buffers(), tensors, cap=2000)

    assert [len(part) for part in data] == [13, 1476, 1324]
    assert data[0] == torch.ones(3).numpy().tobytes() + b"\0"
