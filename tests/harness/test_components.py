import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler, swa_utils

from harness import exactness
from harness.buckets import reductions
from harness.checkpoint.tree import flatten, unflatten
from harness.components import Protected
from harness.data import ResumableSampler
from harness.digest import digest

Trees = tuple[dict[str, Any], dict[str, Any]]


class Net(nn.Module):
    """Tied weights, buffers that are saved and ones that are not, and extra state."""

    average: Tensor
    cache: Tensor

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(width, 3, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(width, 3, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("average", torch.zeros(()), persistent=False)
        self.register_buffer("cache", torch.empty(0), persistent=False)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if len(self.cache) != len(x):
            self.cache = torch.linspace(0.5, 1.5, len(x)).unsqueeze(1)
        self.calls += 1
        normed: Tensor = self.dropout(self.norm(self.embed(x)))
        out = normed @ self.head.weight * self.cache
        self.average = 0.9 * self.average + out.detach().mean()
        return out + self.average

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


class Training:
    """A whole small job in one process."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        exactness.seed_all(seed, 0)
        self.model = options.pop("model", None) or Net()
        make_optimizer = options.pop("optimizer", lambda of: optim.AdamW(of, lr=0.01))
        make_schedule = options.pop("schedule", lambda of: lr_scheduler.StepLR(of, 2, 0.5))
        self.optimizer = make_optimizer(self.model.parameters())
        self.schedule = make_schedule(self.optimizer)
        self.sampler = ResumableSampler(11, 2, rank=0, world_size=1, seed=1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.noise = torch.Generator().manual_seed(seed)
        self.protected = Protected()
        self.protected.add(model=self.model, optimizer=self.optimizer)
        self.protected.add(
            schedule=self.schedule, data=self.sampler, scaler=self.scaler, noise=self.noise
        )

    def train(self, steps: int) -> dict[str, str]:
        drawing = iter(self.sampler)
        for _ in range(steps):
            ids = torch.tensor(next(drawing))
            self.sampler.consumed()
            batch = ids[:, None] / 11 + torch.rand(2, 4, generator=self.noise)
            self.optimizer.zero_grad()
            self.scaler.scale(self.model(batch).square().mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
        return self.digests()

    def digests(self) -> dict[str, str]:
        return self.protected.digests() | {"rng": exactness.rng_digest()}

    def saved(self) -> Trees:
        shared, own = through_a_checkpoint((self.protected.shared(), self.own()))
        return shared, own

    def own(self) -> dict[str, Any]:
        return self.protected.own() | {"rng": exactness.capture_rng()}

    def restore(self, saved: Trees) -> None:
        own = dict(saved[1])
        rng = own.pop("rng")
        self.protected.restore(saved[0], own)
        exactness.restore_rng(rng)


def through_a_checkpoint(tree: Any) -> Any:
    """The tree as it comes back from storage: JSON, and tensors of their own."""
    flat = flatten(tree)
    skeleton = json.loads(json.dumps(flat.skeleton, allow_nan=False))
    return unflatten(skeleton, {name: tensor.clone() for name, tensor in flat.tensors.items()})


# ── exact round trips ───────────────────────────────────────────────────────────────────────────


def test_three_resumes_end_in_every_bit_of_the_run_that_went_on():
    expected = Training().train(12)
    assert list(expected) == [
        "schedule",
        "data",
        "scaler",
        "noise",
        "optimizer",
        "model",
        "model.buffers",
        "rng",
    ]

    training = Training()
    for steps in (3, 2, 4):
        training.train(steps)
        saved, before = training.saved(), training.digests()
        training = Training(seed=99)
        training.train(1)
        training.restore(saved)
        assert training.digests() == before
    assert training.train(3) == expected


def test_what_is_saved_stays_as_it_was_while_training_goes_on_from_it():
    training = Training()
    training.train(3)
    saved, before = training.saved(), training.digests()
    kept = digest(list(saved))
    for _ in range(2):
        training.restore(saved)
        assert training.digests() == before
        training.train(2)
        assert digest(list(saved)) == kept


def stepped(optimizer: Any, model: nn.Module, steps: int) -> None:
    def closure() -> Any:
        optimizer.zero_grad()
        loss: Any = model(torch.ones(2, 4, dtype=next(model.parameters()).dtype)).square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda of: optim.SGD(of, lr=0.01, momentum=0.9),
    "tensor rate": lambda of: optim.Adam(of, lr=torch.tensor(0.01)),
    "AdamW, looped": lambda of: optim.AdamW(of, foreach=False, amsgrad=True),
    "fused": lambda of: optim.AdamW(of, fused=True),
    "Adagrad": lambda of: optim.Adagrad(of, initial_accumulator_value=0.1),
    **{
        kind.__name__: kind
        for kind in (
            optim.Adadelta,
            optim.Adafactor,
            optim.Adamax,
            optim.ASGD,
            optim.LBFGS,
            optim.NAdam,
            optim.RAdam,
            optim.RMSprop,
            optim.Rprop,
        )
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_an_optimizer_goes_on_to_the_bit(
    make: Callable[[Any], optim.Optimizer], dtype: torch.dtype
):
    def started() -> tuple[nn.Module, optim.Optimizer, Protected]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(dtype)
        optimizer = make(model.parameters())
        protected = Protected()
        protected.add(model=model, optimizer=optimizer)
        return model, optimizer, protected

    model, optimizer, protected = started()
    stepped(optimizer, model, 3)
    saved = through_a_checkpoint((protected.shared(), protected.own()))
    before = protected.digests()
    stepped(optimizer, model, 3)

    other_model, other, restored = started()
    stepped(other, other_model, 1)
    restored.restore(*saved)
    assert restored.digests() == before
    stepped(other, other_model, 3)
    assert restored.digests() == protected.digests()


def test_moments_of_another_dtype_than_their_parameter_s_come_back_as_they_were():
    def started() -> tuple[Protected, optim.AdamW, Tensor]:
        model = nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
        optimizer = optim.AdamW(model.parameters())
        protected = Protected()
        protected.add(model=model, optimizer=optimizer)
        return protected, optimizer, model.weight

    protected, optimizer, weight = started()
    fine = torch.tensor([[1 / 3, 1e-30], [2 / 3, -0.0]])
    optimizer.state[weight] = {
        "step": torch.tensor(2.0, dtype=torch.float64),
        "exp_avg": fine,
        "nested": [fine.double(), {"deep": fine}],
        "word": "kept",
    }
    saved = through_a_checkpoint((protected.shared(), protected.own()))

    restored, other, its_weight = started()
    restored.restore(*saved)

    assert restored.digests()["optimizer"] == protected.digests()["optimizer"]
    assert other.state[its_weight]["exp_avg"].dtype == torch.float32
    assert digest(other.state[its_weight]) == digest(optimizer.state[weight])


SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "lambda": lambda of: lr_scheduler.LambdaLR(of, lambda epoch: 0.9**epoch),
    "milestones": lambda of: lr_scheduler.MultiStepLR(of, [2, 4]),
    "cosine": lambda of: lr_scheduler.CosineAnnealingLR(of, 5),
    "warm restarts": lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 3),
    "one cycle": lambda of: lr_scheduler.OneCycleLR(of, 0.1, 20),
    "cyclic": lambda of: lr_scheduler.CyclicLR(of, 0.1, 0.2),
    "sequence": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.LinearLR(of, total_iters=2), lr_scheduler.MultiStepLR(of, [2])], [3]
    ),
    "chain": lambda of: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(of), lr_scheduler.ExponentialLR(of, 0.9)], optimizer=of
    ),
    "averaging": lambda of: swa_utils.SWALR(of, 0.05),
}


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_schedule_goes_on_to_the_bit(make: Callable[[optim.Optimizer], Any]):
    training = Training(optimizer=sgd, schedule=make)
    training.train(3)
    saved = training.saved()
    expected = training.train(4)
    resumed = Training(optimizer=sgd, schedule=make)
    resumed.train(1)
    resumed.restore(saved)
    assert resumed.train(4) == expected


def test_a_schedule_of_a_measure_keeps_its_infinities():
    def started() -> tuple[lr_scheduler.ReduceLROnPlateau, Protected]:
        schedule = lr_scheduler.ReduceLROnPlateau(sgd([nn.Parameter(torch.ones(1))]), patience=0)
        protected = Protected()
        protected.add(schedule=schedule)
        return schedule, protected

    schedule, protected = started()
    schedule.step(3.0)
    saved = through_a_checkpoint((protected.shared(), protected.own()))
    other, restored = started()
    restored.restore(*saved)
    assert restored.digests() == protected.digests()
    assert other.mode_worse == float("inf")


def test_a_scaler_that_is_switched_off_has_a_state_too():
    protected = Protected()
    protected.add(scaler=torch.amp.GradScaler("cpu", enabled=False))
    protected.restore(protected.shared(), protected.own())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_state_that_an_optimizer_keeps_on_the_host_stays_there():
    def started() -> tuple[nn.Module, optim.Optimizer, Protected]:
        model = nn.Linear(4, 3, device="cuda")
        optimizer = optim.NAdam(model.parameters())
        protected = Protected()
        protected.add(model=model, optimizer=optimizer)
        return model, optimizer, protected

    model, optimizer, protected = started()
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    saved = through_a_checkpoint((protected.shared(), protected.own()))
    other_model, other, restored = started()
    restored.restore(*saved)
    assert restored.digests() == protected.digests()
    state = other.state[next(other_model.parameters())]
    assert {key: value.device.type for key, value in state.items()} == {
        "step": "cpu",
        "mu_product": "cpu",
        "exp_avg": "cuda",
        "exp_avg_sq": "cuda",
    }


# ── what a restore forgets is seen ──────────────────────────────────────────────────────────────


def forgets_momentum(saved: Trees, fresh: Training) -> None:
    saved[0]["optimizer"]["state"] = {}


def forgets_schedule(saved: Trees, fresh: Training) -> None:
    saved[1]["schedule"] = fresh.protected.own()["schedule"]


def forgets_streams(saved: Trees, fresh: Training) -> None:
    saved[1]["rng"] = exactness.capture_rng()


def forgets_data_position(saved: Trees, fresh: Training) -> None:
    saved[1]["data"]["state"]["position"] = 0


@pytest.mark.parametrize(
    ("forget", "component"),
    [
        (forgets_momentum, "optimizer"),
        (forgets_schedule, "schedule"),
        (forgets_streams, "rng"),
        (forgets_data_position, "data"),
    ],
)
def test_a_restore_that_forgets_one_thing_is_caught_at_once_and_the_thing_named(
    forget: Callable[[Trees, Training], None], component: str
):
    training = Training()
    training.train(5)
    saved, before = training.saved(), training.digests()
    expected = training.train(1)

    mutant = Training()
    forget(saved, mutant)
    mutant.restore(saved)

    after = mutant.digests()
    assert [name for name in before if before[name] != after[name]] == [component]
    assert mutant.train(1)["model"] != expected["model"] or component == "schedule"


# ── what does not fit is refused ────────────────────────────────────────────────────────────────


def protecting(model: nn.Module, optimizer: optim.Optimizer, **others: Any) -> Protected:
    protected = Protected()
    protected.add(model=model, optimizer=optimizer, **others)
    return protected


def adam(model: nn.Module) -> optim.Optimizer:
    return optim.Adam(model.parameters())


def refusal(here: Protected, there: Protected) -> list[str]:
    """The lines with which `here` refuses the state of `there`, having changed nothing."""
    before = here.digests()
    with pytest.raises(ValueError, match="does not fit") as caught:
        here.restore(*through_a_checkpoint((there.shared(), there.own())))
    assert here.digests() == before
    first, *lines = str(caught.value).split("\n  ")
    assert first == "the saved state does not fit:"
    assert lines == here.differences(there.shared(), there.own())
    return lines


def layers(**sizes: int) -> Any:
    return nn.ModuleDict({name: nn.Linear(size, 1, bias=False) for name, size in sizes.items()})


def test_missing_extra_and_misshapen_parameters_are_all_listed():
    here, there = layers(a=2, b=3, d=5), layers(a=2, b=4, c=5)
    here["a"].double()
    assert refusal(protecting(here, adam(here)), protecting(there, adam(there))) == [
        "model.c.weight is in the saved state and not here",
        "model.d.weight is here and not in the saved state",
        "model.a.weight is float64[1, 2] and was float32[1, 2]",
        "model.b.weight is float32[1, 3] and was float32[1, 4]",
        "optimizer group 0: parameter model.c.weight is in the saved state and not here",
        "optimizer group 0: parameter model.d.weight is here and not in the saved state",
        "optimizer group 0: parameter model.b.weight has shape [1, 3] and had [1, 4]",
    ]


def test_reordered_parameters_of_an_optimizer_are_named():
    here, there = layers(a=2, b=2, c=2), layers(a=2, b=2, c=2)
    swapped = optim.Adam([here["b"].weight, here["a"].weight, here["c"].weight])
    assert refusal(protecting(here, swapped), protecting(there, adam(there))) == [
        f"optimizer group 0: parameter {place}: give them in the saved order"
        for place in (
            "0 is model.b.weight and was model.a.weight",
            "1 is model.a.weight and was model.b.weight",
        )
    ]


def test_another_optimizer_its_groups_and_its_options_are_named():
    here, there = layers(a=2, b=2), layers(a=2, b=2)
    groups: list[dict[str, Any]] = [
        {"params": there["a"].parameters()},
        {"params": there["b"].parameters(), "mine": 1},
    ]
    lines = refusal(
        protecting(here, optim.SGD(here.parameters())), protecting(there, optim.SGD(groups))
    )
    assert lines == [
        "optimizer has 1 parameter group(s) and had 2",
        "optimizer group 0: parameter model.b.weight is here and not in the saved state",
    ]
    lines = refusal(protecting(here, adam(here)), protecting(there, optim.SGD(there.parameters())))
    assert lines[0] == "optimizer is a torch.optim.adam.Adam and was a torch.optim.sgd.SGD"
    assert "optimizer group 0: option betas is here and not in the saved state" in lines
    assert "optimizer group 0: option momentum is in the saved state and not here" in lines


def test_buffers_ties_and_extra_state_are_compared_as_well():
    here, there = Net(), Net()
    here.norm = nn.BatchNorm1d(3, affine=True, track_running_stats=False)
    here.head.weight = nn.Parameter(torch.ones(3, 4))
    lines = refusal(protecting(here, adam(here)), protecting(there, adam(there)))
    assert lines == [
        "model.head.weight is tied to 'head.weight' here and was to 'embed.weight'",
        "model.norm.running_mean is in the saved state and not here",
        "model.norm.running_var is in the saved state and not here",
        "model.norm.num_batches_tracked is in the saved state and not here",
        "optimizer group 0: parameter model.head.weight is here and not in the saved state",
    ]


def test_components_schedules_and_data_that_differ_are_named_together():
    model = layers(a=2)
    optimizer = adam(model)
    step = lr_scheduler.StepLR(optimizer, 2)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, 2)
    average = swa_utils.AveragedModel(model)
    here = protecting(
        model, optimizer, schedule=step, data=ResumableSampler(20, 4), average=average
    )
    there = protecting(model, optimizer, schedule=cosine, data=ResumableSampler(30, 4, seed=2))
    there.add(noise=torch.Generator())
    assert refusal(here, there) == [
        "component noise is in the saved state and not here",
        "component average is here and not in the saved state",
        "schedule is a StepLR and was a CosineAnnealingLR",
        "data length is 20 and was 30: resume with the data that the run was started with",
        "data seed is 0 and was 2: keep the seed",
    ]


def test_objects_that_changed_places_are_refused_and_not_mixed_up():
    model = layers(a=2)
    model["norm"] = nn.BatchNorm1d(1, affine=False)
    optimizer, average = adam(model), Averages(beta=1)
    here, there = Protected(), Protected()
    here.add(one=model, two=optimizer, three=average)
    there.add(two=model, three=optimizer, one=average)
    there.add(four=model)
    there.check()
    lines = here.differences(there.shared(), there.own())
    assert "two is a torch.optim.adam.Adam and was no optimizer" in lines
    assert "three is a Averages and was a thing of another kind" in lines
    assert "one.a.weight is here and not in the saved state" in lines
    assert "component four is in the saved state and not here" in lines


class Averages:
    """Something with a state of its own making."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_the_state_of_any_other_object_is_compared_by_its_names_and_tensors():
    here, there = Protected(), Protected()
    here.add(average=Averages(beta=0.9, weights=[{"w": torch.ones(2)}], mine=1))
    there.add(average=Averages(beta=0.5, weights=[{"w": torch.ones(3)}], its=1))
    assert refusal(here, there) == [
        "average state its is in the saved state and not here",
        "average state mine is here and not in the saved state",
        "average state.weights[0].w is float32[2] and was float32[3]",
    ]


def test_an_object_that_keeps_what_it_is_given_gets_a_copy():
    average = Averages(weight=torch.ones(2))
    protected = Protected()
    protected.add(average=average)
    own: Any = {"average": {"class": "Averages", "state": {"weight": torch.zeros(2)}}}
    protected.restore({}, own)
    average.state["weight"] += 7
    assert own["average"]["state"]["weight"].tolist() == [0.0, 0.0]


# ── what cannot be protected ────────────────────────────────────────────────────────────────────


class FullyShardedDataParallel(nn.Module):
    """Goes by the name of torch's own."""


def test_every_object_that_cannot_be_protected_is_named_and_none_is_kept():
    protected = Protected()
    with pytest.raises(ValueError, match="name") as caught:
        protected.add(
            model=nn.Linear(1, 1),
            rng=torch.Generator(),
            epoch=3,
            writer=object(),
            big=FullyShardedDataParallel(),
        )
    assert str(caught.value).splitlines() == [
        "rng is a name of the harness' own: choose another",
        "epoch is a int, which has no state_dict and load_state_dict: add them",
        "writer is a object, which has no state_dict and load_state_dict: add them",
        "big is a FullyShardedDataParallel, whose state is sharded; that is not supported: use DDP",
    ]
    assert protected.digests() == {}


def test_a_state_that_no_checkpoint_can_hold_is_refused_when_it_is_protected():
    protected = Protected()
    with pytest.raises(ValueError, match=r"own/average/state/when.*set") as caught:
        protected.add(average=Averages(when={1, 2}, how=print))
    assert "own/average/state/how" in str(caught.value)
    assert protected.digests() == {}


def test_an_optimizer_of_parameters_that_nobody_protects_is_refused():
    model, temperature = nn.Linear(1, 1), nn.Parameter(torch.ones(()))
    optimizer = optim.SGD([*model.parameters(), temperature])
    protected = Protected()
    protected.add(optimizer=optimizer)  # in any order: the model may come later
    protected.add(model=model)
    expected = "optimizer steps parameter 2 of group 0, which is in no protected module"
    with pytest.raises(ValueError, match=expected):
        protected.shared()
    protected.add(temperature=nn.ParameterList([temperature]))
    assert list(protected.shared()["optimizer"]["groups"][0]["parameters"]) == [
        ("model.weight", (1, 1)),
        ("model.bias", (1,)),
        ("temperature.0", ()),
    ]


def test_a_model_without_any_state_may_be_protected():
    protected = Protected()
    protected.add(model=nn.ReLU())
    protected.restore(*through_a_checkpoint((protected.shared(), protected.own())))
    assert list(protected.digests()) == ["model"]


def test_a_buffer_that_has_no_place_in_the_module_any_more_is_named():
    here, there = layers(a=1), layers(a=1)
    there["a"].register_buffer("mask", torch.ones(1), persistent=False)
    expected = ["model.a.mask is a buffer of the saved state and has no place here"]
    assert refusal(protecting(here, adam(here)), protecting(there, adam(there))) == expected


def test_live_trees_are_no_copies():
    training = Training()
    weight = training.protected.shared()["model"]["embed.weight"]
    assert weight is training.model.embed.weight


@pytest.fixture
def lone_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_decides_the_order_of_a_reduction_is_told(lone_group):
    first, second = (
        DistributedDataParallel(nn.Linear(2, 1)),
        DistributedDataParallel(nn.Linear(2, 1), bucket_cap_mb=1),
    )
    second.register_comm_hook(None, default_hooks.allreduce_hook)
    told = reductions([first, second])
    assert (told["ddp.comm_hooks"], told["ddp.1.comm_hooks"]) == ("none", "allreduce_hook")
    assert told["ddp.1.bucket_bytes_cap"] == str(1 << 20) != told["ddp.bucket_bytes_cap"]


class Counting(nn.Linear):
    """Counts how often it is walked through."""

    walks = 0

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        self.walks += 1
        return super().named_parameters(*args, **kwargs)


def test_modules_that_stand_are_walked_through_once_and_looked_at_afresh_afterwards():
    model = Counting(2, 1)
    protected = Protected()
    protected.add(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    before = model.walks
    with protected.standing():
        first = protected.shared(), protected.own(), protected.names(), protected.replicated()
    assert model.walks == before + 1

    model.bias = None  # type: ignore[assignment]
    assert list(protected.names().values()) == ["model.weight"]
    assert list(first[0]["model"]) == ["weight", "bias"]


def test_among_several_ranks_only_what_ddp_keeps_equal_is_shared(lone_group):
    replica, alone = nn.Linear(2, 1), nn.Linear(2, 1)
    wrapped = DistributedDataParallel(replica)
    steps_replica = torch.optim.SGD(replica.parameters(), 0.1, momentum=0.9)
    steps_both = torch.optim.SGD([*replica.parameters(), *alone.parameters()], 0.1, momentum=0.9)
    (wrapped(torch.ones(1, 2)) + alone(torch.ones(1, 2))).sum().backward()
    steps_replica.step()
    steps_both.step()
    protected = Protected(world_size=2)
    protected.add(model=wrapped, teacher=alone, optimizer=steps_replica, both=steps_both)

    assert set(protected.shared()) == {"model", "optimizer"}
    assert set(protected.own()) == {"teacher", "both"}

    saved = through_a_checkpoint((protected.shared(), protected.own()))
    before = protected.digests()
    with torch.no_grad():
        alone.weight.zero_()
        steps_both.state[alone.weight]["momentum_buffer"].zero_()
    assert protected.digests() != before
    protected.restore(*saved)
    assert protected.digests() == before
