"""Everything that is known of a run at one moment, for whoever draws metrics from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from harness.account import Account
from harness.histogram import Histogram
from harness.phases import Phase
from harness.sightings import Scope
from harness.slots import Slot

Values = Mapping[tuple[str, ...], float | Histogram]
"""By the family's own labels."""

MOST_RANKS = 512
"""In a run of more ranks, what is told of each rank is told of a few of them."""
SLOWEST = 8
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Present:
    """Everything that a scrape says, as it was read."""

    job_name: str
    run_id: str
    device: str
    account: Account
    is_led: bool
    """A launcher lives."""
    up: Sequence[bool]
    """By rank: whether its process lives."""
    slots: Mapping[int, Slot]
    """By rank: of the newest attempt alone."""
    boot_ns: int = 0
    """Unix time at which the clock of the slots was 0."""
    planned: frozenset[tuple[str, Scope]] = frozenset()
    """The kinds of faults that the run is to meet, with what they act on."""
    targets: Sequence[float] = ()
    """Losses of which it is told when they were reached."""

    @property
    def phase(self) -> Phase:
        """What the run is doing: a log alone would say `work` for ever once all have been killed."""
        if self.account.phase is Phase.FINISHED or self.is_led:
            return self.account.phase
        return Phase.DOWN


def one(value: float | None) -> Values:
    """The values of a family without labels of its own; None where nothing is known."""
    return {} if value is None else {(): value}


def by_rank(values: Mapping[int, float], slow_is_low: bool = False) -> Values:
    """The value of each rank; above `MOST_RANKS` those of the slowest, and quantiles as if they were ranks."""
    if len(values) <= MOST_RANKS:
        return {(str(rank),): value for rank, value in values.items()}
    ordered = sorted(values.items(), key=lambda item: item[1], reverse=slow_is_low)
    told: dict[tuple[str, ...], float] = {
        (name,): ordered[ceil(share * len(ordered)) - 1][1] for name, share in _SHARES.items()
    }
    return told | {(str(rank),): value for rank, value in ordered[-SLOWEST:]}
