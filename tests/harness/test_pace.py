import torch
from torch import nn

from harness import slots
from harness.pace import Pace
from harness.slots import SlotWriter, Stage


def test_own_time_ends_at_the_last_gradient():
    model, pace = nn.Linear(3, 2), Pace()
    pace.watch(model)
    pace.start()
    model(torch.ones(1, 3)).sum().backward()
    started_ns, ready_ns = pace._host._instants_ns
    passed = pace.stop()
    assert passed.own_ns == passed.compute_ns == ready_ns - started_ns > 0
    assert passed.wait_ns > 0


def test_the_optimizer_and_the_loop_s_own_code_are_own_time_and_the_reduction_is_not():
    model, pace = nn.Linear(3, 2), Pace()
    optimizer = torch.optim.SGD(model.parameters())
    pace.watch(model)
    pace.watch_optimizer(optimizer)
    pace.start()
    pace.enter(Stage.LOADING)
    pace.enter(Stage.COMPUTING)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    passed = pace.stop()
    at_ns = pace._host._instants_ns  # start, loading, loaded, gradient, updating, updated, end
    assert passed.wait_ns == at_ns[4] - at_ns[3]
    assert passed.data_ns == at_ns[2] - at_ns[1]
    assert passed.compute_ns == at_ns[3] - at_ns[2] + at_ns[5] - at_ns[4]
    assert passed.own_ns + passed.wait_ns == at_ns[6] - at_ns[0]


def test_without_gradients_all_of_a_step_is_its_own():
    pace = Pace()
    pace.watch(nn.Linear(3, 2))
    pace.start()
    assert pace.stop().wait_ns == 0


def test_an_evaluation_inside_a_step_is_not_waiting():
    model, pace = nn.Linear(3, 2), Pace()
    pace.watch(model)
    pace.start()
    model(torch.ones(1, 3)).sum().backward()
    pace.set_aside(3_600_000_000_000)
    assert pace.stop().wait_ns == 0


def test_an_evaluation_before_the_last_gradient_is_no_own_time():
    model, pace = nn.Linear(3, 2), Pace()
    pace.watch(model)
    pace.start()
    pace.set_aside(3_600_000_000_000)
    model(torch.ones(1, 3)).sum().backward()
    assert pace.stop().own_ns == 0

    pace.start()
    pace.set_aside(3_600_000_000_000)
    assert pace.stop().own_ns == 0


def test_watching_changes_no_gradient():
    torch.manual_seed(0)
    model, batch = nn.Linear(3, 2), torch.randn(5, 3)
    model(batch).square().sum().backward()
    assert model.weight.grad is not None
    plain = model.weight.grad.clone()
    model.zero_grad()
    Pace().watch(model)
    model(batch).square().sum().backward()
    assert torch.equal(model.weight.grad, plain)


def test_what_a_step_passes_shows_in_the_slot(tmp_path):
    with SlotWriter(tmp_path / "0", attempt=0) as writer:
        model, pace = nn.Linear(3, 2), Pace(writer)
        optimizer = torch.optim.SGD(model.parameters())
        pace.watch(model)
        pace.watch_optimizer(optimizer)
        stages = []

        def note(*_: object) -> None:
            slot = slots.read(tmp_path / "0")
            assert slot is not None
            stages.append(slot.stage)

        optimizer.register_step_pre_hook(note)
        for step in (1, 2):
            pace.start()
            note()
            model(torch.ones(1, 3)).sum().backward()
            note()
            optimizer.step()
            note()
            pace.stop()
            writer.update(step=step)
    # Which gradient is the last is known from the second step on.
    assert stages == [
        *(Stage.BEGUN, Stage.COMPUTING, Stage.UPDATING, Stage.UPDATED),
        *(Stage.BEGUN, Stage.REDUCING, Stage.UPDATING, Stage.UPDATED),
    ]
