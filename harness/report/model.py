"""What a report says: figures drawn from a timeline, and nothing that was not in the log.

Durations are integer nanoseconds until they leave here; `to_json` is their public form, in seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.goodput import Split
from harness.recovery import Stage
from harness.report.health import health
from harness.report.records import Checkpoints, Comeback, FaultFate
from harness.report.slowness import Slowness
from harness.report.spread import Spread, number, seconds
from harness.report.throughput import Throughput
from harness.segments import Segment
from harness.signals.findings import Findings
from harness.tallies import Helper, Reading

SCHEMA = 1


class Standing(StrEnum):
    """Where the run stands: how its last launcher left it, or that it is there still."""

    FINISHED = "finished"
    FAILED = "failed"
    DRAINED = "drained"
    INTERRUPTED = "interrupted"
    GOING = "going"
    LOST = "lost"
    """Its launcher died without a word."""
    EMPTY = "empty"
    """Nothing has happened yet."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run, told."""

    standing: Standing
    reason: str
    run_id: str
    tool: str
    world_size: int
    phase: str
    attempts: int
    lives: int
    """How many launchers took up the run."""
    interventions: int
    split: Split
    unsettled_ns: int
    """After the wall time: what the log does not yet say the meaning of."""
    step: int
    useful_steps: int
    redone_steps: int
    lost_steps: int
    tokens: int
    restarts: int
    """Failures after which the same launcher began another attempt."""
    burnt: int
    comebacks: Sequence[Comeback]
    """Every failure, with or without a way back."""
    faults: Sequence[FaultFate]
    checkpoints: Checkpoints
    loss: float | None
    validations: Sequence[Reading]
    final_digest: str | None
    findings: Findings
    segments: Sequence[Segment]
    helpers: Mapping[str, Helper] = field(default_factory=dict)
    """Processes that serve the job and had to be started again, by name."""
    notes: Sequence[str] = ()
    """What could not be read."""
    slowness: Slowness = field(default_factory=Slowness)
    throughput: Throughput = field(default_factory=Throughput)

    @property
    def durations(self) -> Spread:
        """How long the run took to come back: from the last finished step to the next first one."""
        return Spread.of(ns for one in self.comebacks if (ns := one.duration_ns) is not None)

    @property
    def durations_since_fault(self) -> Spread:
        """The same from the instant of the fault, where the tape tells it."""
        return Spread.of(ns for one in self.comebacks if (ns := one.since_fault_ns) is not None)

    @property
    def regaining(self) -> Spread:
        """How long it took from there until it was as far again as before."""
        return Spread.of(ns for one in self.comebacks if (ns := one.regaining_ns) is not None)

    def stage_share(self, stage: Stage) -> float:
        """Which part of all coming back that stage took."""
        whole_ns = sum(ns for one in self.comebacks for ns in one.stages_ns.values())
        in_it_ns = sum(one.stages_ns.get(stage, 0) for one in self.comebacks)
        return in_it_ns / whole_ns if whole_ns else 0.0

    def stage(self, stage: Stage) -> Spread:
        """How long one part of coming back took."""
        return Spread.of(one.stages_ns[stage] for one in self.comebacks if stage in one.stages_ns)

    def to_json(self) -> dict[str, Any]:
        """The public form, in seconds; `wall_ns` and `state_ns` are exact."""
        of = self.split
        stages = {stage.value: self.stage(stage).to_json() for stage in Stage}
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "tool": self.tool,
            "world_size": self.world_size,
            "outcome": self.standing.value,
            "reason": self.reason,
            "phase": self.phase,
            "goodput": of.goodput,
            "goodput_rests_on_failures": len(self.comebacks),
            "wall_s": seconds(of.wall_ns),
            "wall_ns": of.wall_ns,
            "state_seconds": {phase.value: seconds(ns) for phase, ns in of.state_ns.items()},
            "state_ns": {phase.value: ns for phase, ns in of.state_ns.items()},
            "lost_work_s": seconds(of.lost_ns),
            "badput_s": {kind: seconds(ns) for kind, ns in of.coarse_ns().items()},
            "unsettled_s": seconds(self.unsettled_ns),
            "attempts": self.attempts,
            "lives": self.lives,
            "manual_interventions": self.interventions,
            "steps": self.step,
            "useful_steps": self.useful_steps,
            "redone_steps": self.redone_steps,
            "lost_steps": self.lost_steps,
            "tokens": self.tokens,
            "restarts": self.restarts,
            "burnt_restarts": self.burnt,
            "restart_s": {**self.durations.to_json(), "phases": stages},
            "restart_since_fault_s": self.durations_since_fault.to_json(),
            "regaining_s": self.regaining.to_json(),
            "restart_records": [one.to_json() for one in self.comebacks],
            "faults": [one.to_json() for one in self.faults],
            "checkpoints": self.checkpoints.to_json(),
            "loss": None if self.loss is None else number(self.loss),
            "validation_loss": _validations(self.validations),
            "health": health(self.findings),
            "final_digest": self.final_digest,
            "helpers": {
                name: {"restarts": one.restarts, "last_reason": one.reason}
                for name, one in self.helpers.items()
            },
            "stragglers": self.slowness.to_json(),
            **self.throughput.to_json(),
            "notes": list(self.notes),
        }


def _validations(readings: Sequence[Reading]) -> dict[str, Any]:
    first_and_last = (readings[0], readings[-1]) if readings else (None, None)
    told = [one and {"step": one.step, "loss": number(one.value)} for one in first_and_last]
    return {"count": len(readings), "first": told[0], "last": told[1]}
