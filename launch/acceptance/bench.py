"""The runs that the checks look at: each is made once, when it is first asked for, within what time is left."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness.report import report
from harness.rundir import RunDir

JOB = Path(__file__).with_name("job.py")
PLAN = """\
schema = 1
seed = 4
max_faults = {kills}

[arrival]
uniform = {{ min_s = {least_s:.3f}, max_s = {most_s:.3f} }}

[[faults]]
kind = "kill"
target = "rank 0"

[[faults]]
kind = "kill"
target = "any rank"
weight = 2
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the job is."""

    width: int
    layers: int
    batch: int
    """Of each rank."""
    steps: int
    kills: int


SIZES: Mapping[str, Size] = {
    "cuda": Size(1024, 12, 64, 600, 6),  # 100 M parameters, 1.2 GB of state
    "cpu": Size(32, 2, 8, 300, 3),
}

Harness = Callable[[Sequence[str], float], int]
"""Runs `harness ARGUMENTS…` for so many seconds at most; its exit status. Raises `TimeoutError`."""


class RunError(Exception):
    """A run that a check needs did not end well."""


class Bench:
    """Makes the runs."""

    def __init__(
        self, device: str, ranks: int, folder: Path, harness: Harness, within_s: float
    ) -> None:
        self.device, self.ranks, self.size = device, ranks, SIZES[device]
        self._folder, self._harness = folder, harness
        self._until_s = time.monotonic() + within_s
        self.twin = cache(self._twin)
        self.broken = cache(self._broken)
        self.overlapped = cache(self._overlapped)

    def left_s(self) -> float:
        """How much time is left."""
        return self._until_s - time.monotonic()

    def report(self, run: RunDir) -> dict[str, Any]:
        """What the run came to."""
        return report(run).to_json()

    def step_ms(self, *, is_bare: bool, turn: int) -> float:
        """Milliseconds of a step, with or without the harness. Raises `RunError`."""
        name = f"{'bare' if is_bare else 'timed'}-{turn}"
        run = self._run(name, ["--no-exact"], ["--bare"] if is_bare else [])
        told = re.search(r"^step_ms (\S+)", run.log(1, 0, "out").read_text(), re.MULTILINE)
        if told is None:
            raise RunError(
                f"the run {name!r} was restarted, so its steps were not timed: see {run.path}/logs"
            )
        return float(told[1])

    def _twin(self) -> RunDir:
        return self._copying("twin", "off")

    def _overlapped(self) -> RunDir:
        return self._copying("overlapped", "on")

    def _copying(self, name: str, overlap: str) -> RunDir:
        """A copy to memory in every other step; each step ends when the device has done it."""
        return self._run(name, ["--memory-every", "2 steps", "--overlap", overlap], ["--settle"])

    def _broken(self) -> RunDir:
        """Kills spread over as long as the twin worked."""
        gap_s = self.report(self.twin())["state_seconds"]["work"] / (self.size.kills + 1)
        plan = PLAN.format(kills=self.size.kills, least_s=0.5 * gap_s, most_s=gap_s)
        path = self._folder / "kills.toml"
        path.write_text(plan)
        return self._run("broken", ["--memory-every", "2 steps", "--faults", str(path)])

    def _run(self, name: str, flags: Sequence[str], more: Sequence[str] = ()) -> RunDir:
        """Raises `RunError`."""
        run = RunDir.at(self._folder / name)
        size = self.size
        command = ["run", "--run", str(run.path), "--nproc-per-node", str(self.ranks)]
        command += ["--no-metrics", "--quiet", "--max-restarts", str(10 * size.kills), *flags]
        command += [str(JOB), "--width", str(size.width), "--layers", str(size.layers)]
        command += ["--batch", str(size.batch), "--steps", str(size.steps), *more]
        try:
            status = self._harness(command, max(1.0, self.left_s()))
        except TimeoutError:
            raise RunError(f"the run {name!r} was not done when time was over") from None
        if status != 0:
            raise RunError(f"the run {name!r} ended with status {status}: see {run.path}/logs")
        return run
