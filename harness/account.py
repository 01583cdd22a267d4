"""Everything that is known and counted about a run. How entries change it is decided in `fold.py`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.events import IntervalChosen, Outcome, Tier, TrainingResumed
from harness.histogram import Histogram
from harness.ledger import Ledger, Rollback
from harness.phases import Phase
from harness.recent import Recent
from harness.recovery import Recovery
from harness.saves import Checkpoints
from harness.segments import Meter, Segment
from harness.sightings import Faults
from harness.signals.findings import Findings
from harness.signals.speed import Speed
from harness.signals.tally import Stragglers
from harness.tallies import Helper, Lows, Rank, Reading

KEEP = 256
"""How many of the last restarts, faults, rejections and validations a running fold lists."""


@dataclass(slots=True)
class Account:
    """The state of the fold: plain data of bounded size, to be read by anyone and changed by `Fold`.

    Every count and every total only rises, whatever entry comes next.
    """

    keep: int = KEEP
    at_ns: int = 0
    """Instant of the last entry."""
    start_ns: int | None = None
    late: int = 0
    """Entries that came after the horizon had passed them, and were applied there."""
    base: Phase = Phase.DOWN
    """Where the end of a save or an evaluation leads back to."""

    run_id: str = ""
    tool: str = ""
    lives: int = 0
    """How many launchers took up the run."""
    interventions: int = 0
    """Lives after one that did not finish: somebody started the run again."""
    outcome: Outcome | None = None
    """Of the last life, if it has ended."""
    outcome_reason: str = ""
    attempts: int = 0
    """How many attempts were begun."""
    dead_attempt: int = -1
    """This attempt and all before it are over: what their ranks still write moves nothing."""
    holder: int = -1
    """The attempt that resumed last, and so holds the steps."""
    holder_ranks: int = 0
    """Its ranks."""
    resumed: TrainingResumed | None = None
    """From where it did."""
    idle: bool = True
    """The attempt has not come to the end of a step."""
    last_step_at_ns: int | None = None
    restore_since_ns: int = 0

    meter: Meter = field(default_factory=Meter)
    ledger: Ledger = field(default_factory=Ledger)
    rollbacks: int = 0
    last_rollback: Rollback | None = None
    tokens_useful: int = 0
    tokens_redone: int = 0
    total_steps: int | None = None
    """The step that the loop is to end at, if it was told."""
    loss: float | None = None
    loss_step: int | None = None
    validations: list[Reading] = field(default_factory=list)
    lows: Lows = field(default_factory=Lows)
    step_durations: Histogram = field(default_factory=Histogram)
    ranks: dict[int, Rank] = field(default_factory=dict)
    recovery: Recovery = field(default_factory=Recovery)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    faults: Faults = field(default_factory=Faults)
    findings: Findings = field(default_factory=Findings)
    helpers: dict[str, Helper] = field(default_factory=dict)
    """Those that were started again, by name."""
    intervals: dict[Tier, IntervalChosen] = field(default_factory=dict)
    """The last choice of each tier that chooses."""
    recent: Recent = field(default_factory=Recent)
    stragglers: Stragglers = field(default_factory=Stragglers)
    speed: Speed = field(default_factory=Speed)

    @property
    def phase(self) -> Phase:
        """What the run was doing at the last entry."""
        return self.meter.phase

    @property
    def attempt(self) -> int:
        """The newest attempt; -1 before the first."""
        return self.meter.attempt

    @property
    def world_size(self) -> int:
        """Ranks of the newest attempt."""
        return self.meter.ranks

    @property
    def totals(self) -> Mapping[Phase, int]:
        """Settled time by phase; it sums to `wall_ns`."""
        return self.meter.totals

    @property
    def rank_totals(self) -> Mapping[Phase, int]:
        """The same times the ranks of the time: what was paid for."""
        return self.meter.rank_totals

    @property
    def cut_short_ns(self) -> int:
        """Of the save stalls: those that a failure ended."""
        return self.meter.cut_short_ns

    @property
    def lost_ns(self) -> int:
        """Of work and evaluation: what the run went back behind."""
        return self.ledger.lost_ns

    @property
    def wall_ns(self) -> int:
        """All settled time since the run first started."""
        return 0 if self.start_ns is None else self.meter.settled_ns - self.start_ns

    @property
    def step(self) -> int:
        """The last finished step that the run holds."""
        return self.ledger.step

    @property
    def validation(self) -> Reading | None:
        """The last loss on held-out data."""
        return self.validations[-1] if self.validations else None

    def unsettled(self, now_ns: int) -> list[Segment]:
        """The time since `wall_ns` ended, as it will be counted if nothing fails."""
        meter = self.meter
        if meter.phase in (Phase.DOWN, Phase.FINISHED):
            return []
        end_ns = max(now_ns, meter.since_ns)
        return [*meter.pending, Segment(meter.phase, meter.since_ns, end_ns, meter.attempt)]
