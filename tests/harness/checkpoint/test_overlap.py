"""Copies that are taken beside the next step: always the state of the boundary, whoever comes first."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from harness.checkpoint.overlap import ChangedError, Late, Overlap, pays
from harness.digest import digest

WIDTH = 1024
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


class Job:
    """A model with buffers that move in forward, an optimizer with state, and memory to copy into."""

    def __init__(self, device: str, *, overlaps: bool = True) -> None:
        torch.manual_seed(1)
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.model = nn.Sequential(self.first, self.norm, nn.Linear(WIDTH, WIDTH)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.lines: list[str] = []
        self.overlap = Overlap(self.still, self.lines.append)
        self.overlap.is_on = overlaps
        self.optimizer.register_step_pre_hook(lambda *_: self.before_step())
        self.inputs = torch.randn(8, WIDTH, device=device)
        self.backward()
        self.optimizer.step()
        self.memory = {
            name: torch.empty_like(it, device="cpu", pin_memory=it.is_cuda)
            for name, it in self.state().items()
        }

    def before_step(self) -> None:
        self.overlap.announce()
        self.overlap.settle()

    def still(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        for state in self.optimizer.state.values():
            yield from (it for it in state.values() if isinstance(it, Tensor))

    def state(self) -> dict[str, Tensor]:
        packed = self.optimizer.state_dict()["state"]
        moments = {f"{n}.{key}": it for n, of in packed.items() for key, it in of.items()}
        return {**self.model.state_dict(), **moments}

    def mean(self) -> Tensor:
        found = self.norm.running_mean
        assert found is not None
        return found

    def begin(self) -> Late:
        state = self.state()
        return self.overlap.copy([(self.memory[name], it) for name, it in state.items()])

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()

    def digests(self, tensors: dict[str, Tensor]) -> str:
        return digest({name: it.cpu() for name, it in tensors.items()})


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_copy_is_the_state_of_the_boundary_however_soon_the_optimizer_steps(
    device: str, overlaps: bool
):
    job = Job(device, overlaps=overlaps)
    for _ in range(10):
        then = job.digests(job.state())
        late = job.begin()
        job.backward()
        job.optimizer.step()
        late.wait()
        assert job.digests(job.memory) == then
        assert job.digests(job.state()) != then
    assert job.lines == []


def test_a_copy_is_waited_for_in_another_thread_while_training_goes_on(device: str):
    job = Job(device)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(5):
            then = job.digests(job.state())
            waiting = pool.submit(job.begin().wait)
            job.backward()
            job.optimizer.step()
            waiting.result(20)
            assert job.digests(job.memory) == then


def test_buffers_are_of_the_boundary_though_forward_moves_them(device: str):
    job = Job(device)
    then = job.mean().clone()
    late = job.begin()
    job.model(job.inputs + 3)
    late.wait()
    assert torch.equal(job.memory["1.running_mean"], then.cpu())
    assert not torch.equal(job.mean(), then)


def test_an_optimizer_that_steps_in_backward_waits_there_and_ends_the_overlap(device: str):
    job = Job(device)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in job.model.parameters()}
    for parameter, optimizer in optimizers.items():
        optimizer.register_step_pre_hook(lambda *_: job.before_step())
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())  # type: ignore[no-untyped-call]
    for _ in range(2):
        then = job.digests(job.state())
        late = job.begin()
        job.backward()
        late.wait()
        assert job.digests(job.memory) == then
        assert job.digests(job.state()) != then
    assert job.lines == [
        "an optimizer steps in backward: from here on training stops for whole copies"
    ]
    assert not job.overlap.is_on


def test_after_a_step_that_no_optimizer_announced_everything_is_copied_at_once(device: str):
    job = Job(device)
    job.begin().wait()
    then = job.digests(job.state())
    late = job.begin()
    assert not job.overlap.holds_up
    job.first.weight.data.mul_(2)  # as the replay of a graph would: no hook, and no version moves
    late.wait()
    assert job.digests(job.memory) == then
    assert job.overlap.is_on


def test_a_step_that_is_captured_ends_the_overlap(monkeypatch: pytest.MonkeyPatch):
    job = Job("cpu")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    job.optimizer.step()
    (line,) = job.lines
    assert line.startswith("an optimizer's step is captured in a CUDA graph: from here on training")
    assert not job.overlap.is_on


def test_a_change_that_nobody_announced_spoils_the_copy_and_ends_the_overlap(device: str):
    job = Job(device)
    late = job.begin()
    with torch.no_grad():
        job.first.weight.mul_(2)
    job.overlap.settle()
    with pytest.raises(ChangedError, match="the state was changed while it was copied"):
        late.wait()
    (line,) = job.lines
    assert line.endswith("optimizer's step: from here on training stops for whole copies")
    then = job.digests(job.state())
    again = job.begin()
    with torch.no_grad():
        job.first.weight.mul_(2)
    again.wait()
    assert job.digests(job.memory) == then
    assert len(job.lines) == 1


def test_what_no_optimizer_steps_is_copied_at_once(device: str):
    job = Job(device)
    average = torch.ones(WIDTH, WIDTH, device=device)
    target = torch.empty(WIDTH, WIDTH)
    late = job.overlap.copy([(target, average)])
    average.zero_()
    late.wait()
    assert target.eq(1).all()


def test_values_that_do_not_lie_together_are_copied_at_once_too():
    weight = nn.Parameter(torch.arange(65536.0).reshape(256, 256).t())
    overlap = Overlap(lambda: [weight], print)
    overlap.announce()
    target = torch.empty(256, 256)
    expected = weight.detach().clone()
    late = overlap.copy([(target, weight.detach())])
    overlap.settle()
    with torch.no_grad():
        weight.zero_()
    late.wait()
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool, torch.int64])
def test_every_dtype_is_copied_late(dtype: torch.dtype):
    source = torch.randint(0, 2, (300, 1000)).to(dtype)
    target = torch.empty_like(source)
    overlap = Overlap(lambda: [source], print)
    overlap.announce()
    late = overlap.copy([(target, source)])
    overlap.settle()
    source.zero_()
    late.wait()
    assert target.sum() != 0


@pytest.mark.parametrize("seen", [torch.conj, lambda it: it.conj().imag], ids=["conj", "neg"])
def test_values_that_torch_turns_as_it_reads_them_are_copied_turned(seen):
    source = seen(torch.complex(torch.rand(300, 1000), torch.rand(300, 1000)))
    target = torch.empty(source.shape, dtype=source.dtype)
    expected = source.clone()
    overlap = Overlap(lambda: [source], print)
    overlap.announce()
    late = overlap.copy([(target, source)])
    overlap.settle()
    late.wait()
    assert torch.equal(target, expected)


def test_a_copy_that_fails_as_it_begins_is_not_gone_on_with():
    source, target = torch.ones(1 << 24), torch.zeros(1 << 24)
    overlap = Overlap(lambda: [source], print)
    overlap.announce()
    with pytest.raises(RuntimeError, match="size"):
        overlap.copy([(target, source), (torch.empty(3), torch.empty(2))])
    target.zero_()
    overlap.announce()
    overlap.copy(
        [(torch.empty(1 << 24), source)]
    ).wait()  # by the same thread, which is done before
    assert target.count_nonzero() <= 1 << 21, "no more than the piece that was begun"


def test_a_copy_settles_the_one_before():
    first, second = torch.zeros(10**6), torch.zeros(10**6)
    source = torch.ones(10**6)
    overlap = Overlap(lambda: [source], print)
    pairs: Sequence[Callable[[], Late]] = [
        lambda: overlap.copy([(first, source)]),
        lambda: overlap.copy([(second, source)]),
    ]
    begun = []
    for begin in pairs:
        overlap.announce()
        begun.append(begin())
    assert first.eq(1).all()
    overlap.settle()
    for late in begun:
        late.wait()
    assert second.eq(1).all()
    assert not overlap.holds_up


@pytest.mark.parametrize(
    ("asked", "device", "cores", "is_on"),
    [
        ("auto", "cuda", 1, True),
        ("auto", "cpu", 7, False),
        ("auto", "cpu", 8, True),
        ("on", "cpu", 1, True),
        ("off", "cuda", 64, False),
    ],
)
def test_it_pays_on_a_gpu_and_where_each_rank_has_a_core_to_spare(
    asked: str, device: str, cores: int, is_on: bool
):
    assert pays(asked, device, cores, ranks=2, threads=3) is is_on
