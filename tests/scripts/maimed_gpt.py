"""`examples/train_gpt.py`, with what the environment asks for done to it.

KILL       `attempt:rank:step,…`: that rank kills itself as that step of that attempt begins, …
COMMITTED  … once a checkpoint of this step or a later one is there, if this is given.
WAIT       likewise: that rank waits there for somebody to kill it.
MUTANT     what restoring leaves out: `momentum`, `schedule`, `rng` or `data`; or `buckets`, which
           leaves DDP's own order of reduction as it is.
The rest of the command line is the example's.
"""

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness import exactness, points
from harness.components import Protected
from harness.optimizer import OptimizerPart
from harness.parts import OtherPart
from harness.points import Point


def end_as_asked() -> None:
    """Arm the start of a step with this process' death, or with the wait for it."""
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    attempt = int(os.environ.get("HARNESS_ATTEMPT", restarts + 1))  # plain torchrun counts restarts
    here = (attempt, int(os.environ["RANK"]))
    for variable, end in (("KILL", die), ("WAIT", wait)):
        for place in filter(None, os.environ.get(variable, "").split(",")):
            attempt, rank, step = map(int, place.split(":"))
            if (attempt, rank) == here:
                points.arm(Point.STEP_START, countdown(step, end))


def die() -> None:
    kept = Path(os.environ.get("HARNESS_RUN_DIR", "")) / "checkpoints"
    least, until_s = int(os.environ.get("COMMITTED", "0")), time.monotonic() + 60
    while newest_in(kept) < least and time.monotonic() < until_s:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def newest_in(kept: Path) -> int:
    """The last step that is committed; 0 for none."""
    return max((int(it.parent.name.split("-")[1]) for it in kept.glob("*/commit.json")), default=0)


def wait() -> None:
    while True:
        signal.pause()


def countdown(steps: int, end: Callable[[], None]) -> Callable[[], None]:
    """Comes to its `end` as its process begins its `steps`-th step."""
    left = [steps]

    def reached() -> None:
        left[0] -= 1
        if left[0] == 0:
            end()

    return reached


def forget(component: str) -> None:
    """Make every restore from here on leave `component` as it is after a fresh start."""
    whole = Protected.restore

    def partial(self: Protected, shared: dict[str, Any], own: dict[str, Any]) -> None:
        if component == "schedule":
            # The schedule's own restart also sets the rate, as a script would have it that
            # builds a new schedule and saves none.
            part = self._parts["schedule"]
            assert isinstance(part, OtherPart)
            fresh = part.thing.state_dict()
            own = {**own, "schedule": {**own["schedule"], "state": fresh}}
        if component == "data":
            state = {**own["data"]["state"], "position": 0}
            own = {**own, "data": {**own["data"], "state": state}}
        whole(self, shared, own)
        if component == "momentum":
            stepped = self._parts["optimizer"]
            assert isinstance(stepped, OptimizerPart)
            for state in stepped.optimizer.state.values():
                state["exp_avg"] = torch.zeros_like(state["exp_avg"])

    Protected.restore = partial  # type: ignore[method-assign]  # maiming it is the point


mutant = os.environ.get("MUTANT", "")
if mutant == "rng":
    exactness.restore_rng = lambda tree: None
elif mutant == "buckets":
    exactness.settle_buckets = lambda ddp: None
elif mutant:
    forget(mutant)
end_as_asked()
examples = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(examples))
runpy.run_path(str(examples / "train_gpt.py"), run_name="__main__")
