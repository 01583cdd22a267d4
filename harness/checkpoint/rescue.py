"""What is in memory and in no storage yet, made durable before the memory goes.

A run that fails for good, or that is to leave while a rank dies, has newer copies than commits. The
saver holds all that a commit is made of, so that whoever starts the run again loses no more than a
failure would have cost.
"""

from collections.abc import Callable, Mapping, Sequence

from harness.checkpoint.commit import SaveError, check_layouts, publish
from harness.checkpoint.lineage import Chain, Departure
from harness.checkpoint.manifest import Place
from harness.checkpoint.share import reports, write_shard
from harness.checkpoint.slot import Kept, whole
from harness.checkpoint.store import Store
from harness.checkpoint.tell import said, warn
from harness.checkpoint.upkeep import discard
from harness.events import Event, SaveCommitted, Tier

_EXPONENTS = {
    "F64": ("<u8", 52, 11),
    "F32": ("<u4", 23, 8),
    "C64": ("<u4", 23, 8),
    "F16": ("<u2", 10, 5),
    "BF16": ("<u2", 7, 8),
}
"""Of each type of numbers: how they are read, bits of the fraction, bits of the exponent."""
_AT_ONCE = 1 << 20


def rescue(
    found: Sequence[Kept], open_store: Callable[[], Store], tell: Callable[[Event, int], None]
) -> None:
    """Commit the newest whole state in memory if it is newer than what is committed. Raises nothing.

    One that holds NaN or Inf, or was damaged, is left for the next older one: nobody looked it through
    when it was copied.
    """
    try:
        if not (states := whole(found)):
            return
        store = open_store()
        departures = store.departures()
        chain = store.chain_of(departures)
        committed = [it.step for it in store.committed() if chain.accepts(it.step, it.attempt)]
        accepted = [it for it in states if chain.accepts(it.step, it.attempt)]
        for copied in sorted(accepted, reverse=True):
            if copied.step <= max(committed, default=0):
                return
            place = _named(copied, chain, departures, store.places())
            if place is not None and (size := _tried(store, place, states[copied])) is not None:
                tell(SaveCommitted(place.step, Tier.STORAGE, size), place.attempt)
                return
    except BaseException as error:  # noqa: BLE001  # some storage errors are no `Exception`
        warn(f"what is in memory cannot be saved: {said(error)}")


def _tried(store: Store, place: Place, shares: Sequence[Kept]) -> int | None:
    """The size of what was committed; None, with a line, for a state that is not to be kept."""
    if spoilt := next(filter(_is_spoilt, shares), None):
        rank = spoilt.label.rank
        warn(f"the copy of step {place.step} is not saved: rank {rank}'s share holds NaN or Inf")
        return None
    try:
        return _written(store, place, shares)
    except SaveError as error:
        warn(f"the copy of step {place.step} is not saved: {error}")
        return None


def _named(
    place: Place, chain: Chain, departures: Mapping[int, Departure], used: Sequence[Place]
) -> Place | None:
    """Where the state is to go; None where none may be committed.

    The newest attempt alone may commit. A state that it began from, and has not got beyond, is its own.
    """
    attempt = chain.newest
    assert attempt is not None, "it has chosen: the chain accepts a state"
    if place.attempt != attempt and departures[attempt].step != place.step:
        return None
    trials = [it.trial for it in used if (it.step, it.attempt) == (place.step, attempt)]
    return Place(place.step, attempt, max(trials, default=0) + 1)


def _written(store: Store, place: Place, shares: Sequence[Kept]) -> int:
    """Write, describe and commit; the size in bytes. Raises what the storage does, and leaves nothing then."""
    described = [kept.about.share for kept in shares]
    check_layouts([share.layout for share in described])
    store.begin(place)
    try:
        names, written = [], []
        for kept in shares:
            for shard, sealed in zip(kept.about.share.shards, kept.files, strict=True):
                record = write_shard(shard, kept.memory, place, store)
                if record != sealed:
                    raise SaveError(f"{shard.name} is not what was copied: its memory was damaged")
                names.append(shard.name)
                written.append(record)
        fingerprint = shares[0].about.fingerprint
        return publish(store, place, reports(described, names, written), fingerprint, lambda: None)
    except BaseException:
        discard(store, place)
        raise


def _is_spoilt(kept: Kept) -> bool:
    """True if a rank's share holds NaN or Inf."""
    for shard in kept.about.share.shards:
        at = shard.begin + shard.header_bytes
        for piece in shard.pieces:
            end = at + piece.part.size_bytes
            if holds_nonfinite(kept.memory[at:end], piece.spec.dtype):
                return True
            at = end
    return False


def holds_nonfinite(data: memoryview, dtype: str) -> bool:
    """True if one of the numbers is NaN or Inf; of types that are not looked at, never."""
    if dtype not in _EXPONENTS or not len(data):
        return False
    import numpy as np  # most savers never need it

    form, fraction, exponent = _EXPONENTS[dtype]
    mask = ((1 << exponent) - 1) << fraction
    words = np.frombuffer(data, dtype=form)
    portions = (words[at : at + _AT_ONCE] for at in range(0, len(words), _AT_ONCE))
    return any(bool(((portion & words.dtype.type(mask)) == mask).any()) for portion in portions)
