"""What a store holds, for people and programs: every place of a save, and how attempts descend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from harness.checkpoint import audit
from harness.checkpoint.lineage import Chain, Departure
from harness.checkpoint.manifest import COMMIT, DamagedError, Place
from harness.checkpoint.objects import Entry
from harness.checkpoint.store import Store, places_in

SCHEMA = 1


class State(StrEnum):
    """What a place is to the run."""

    COMMITTED = "committed"
    SET_ASIDE = "set aside"
    """Found damaged; nobody resumes from it."""
    OFF_THE_CHAIN = "off the chain"
    """Committed by an attempt, or at a step, that is not in the run's history."""
    UNFINISHED = "unfinished"
    """Without a commit: a save in flight, or what is left of one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One place of a save."""

    name: str
    step: int
    attempt: int
    size_bytes: int
    age_s: float | None
    """Since it was committed; None where the storage does not say."""
    state: State
    reason: str = ""
    """Why it is set aside."""
    verified: bool | None = None
    """Every byte is as written; None if nobody looked."""
    damage: str = ""
    """What is not as written."""


@dataclass(frozen=True, slots=True)
class Line:
    """Where one attempt began."""

    attempt: int
    parent: int | None
    step: int
    on_chain: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """All of it."""

    run_id: str
    root: str
    rows: Sequence[Row]
    lineage: Sequence[Line]

    def to_json(self) -> dict[str, Any]:
        """The form for programs; it changes only with its schema."""
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "root": self.root,
            "checkpoints": [asdict(row) for row in self.rows],
            "lineage": [asdict(line) for line in self.lineage],
        }


def listed(store: Store, now: datetime, verify: Callable[[Place], None] | None = None) -> Listing:
    """What `store` holds; `verify`, where given, raises `DamagedError` for what is damaged."""
    chain, departures, held = store.chain(), store.departures(), store.listing()
    return Listing(
        run_id=store.run_id,
        root=store.root,
        rows=[_row(store, place, chain, held, now, verify) for place in places_in(held)],
        lineage=_lineage(departures, chain),
    )


def _lineage(departures: Mapping[int, Departure], chain: Chain) -> list[Line]:
    return [
        Line(attempt, departure.parent, departure.step, attempt in chain.limits)
        for attempt, departure in sorted(departures.items())
    ]


def _row(
    store: Store,
    place: Place,
    chain: Chain,
    held: Mapping[str, Entry],
    now: datetime,
    verify: Callable[[Place], None] | None,
) -> Row:
    size = sum(held[name].size_bytes for name in held if name.startswith(f"{place.name}/"))
    commit = held.get(f"{place.name}/{COMMIT}")
    if commit is None:
        return Row(place.name, place.step, place.attempt, size, None, State.UNFINISHED)
    state, reason = _state(store, place, chain)
    verified, damage = (None, "") if verify is None else _verified(verify, place)
    age_s = max(now.timestamp() - commit.written_s, 0.0) if commit.written_s else None
    return Row(place.name, place.step, place.attempt, size, age_s, state, reason, verified, damage)


def _state(store: Store, place: Place, chain: Chain) -> tuple[State, str]:
    aside = audit.was_set_aside(store, place)
    if aside is not None:
        return State.SET_ASIDE, f"{aside.rejection}: {aside.reason}"
    on_chain = chain.accepts(place.step, place.attempt)
    return (State.COMMITTED if on_chain else State.OFF_THE_CHAIN), ""


def _verified(verify: Callable[[Place], None], place: Place) -> tuple[bool, str]:
    try:
        verify(place)
    except DamagedError as error:
        return False, str(error)
    return True, ""


def now() -> datetime:
    """The wall clock, for ages."""
    return datetime.now(UTC)
