"""A rank's cadence as its settings ask for it, and what it learns from: the log, and saves as they happen."""

import time
from collections.abc import Callable

from harness.checkpoint.messages import Channel, Messages
from harness.checkpoint.tell import Records
from harness.events import Event, SaveStarted, SaveUnblocked, Tier
from harness.intervals import history
from harness.intervals.asked import Off, parse
from harness.intervals.cadence import Cadence
from harness.rundir import RunDir
from harness.settings import Settings
from harness.voice import Voice


def begun(
    settings: Settings,
    messages: Messages,
    run_dir: RunDir,
    voice: Voice,
    rank: int,
    *,
    memory: bool,
) -> Cadence:
    """The cadence of rank `rank` of an attempt, whose ranks alone `messages` reaches.

    Without `memory` there is no memory tier, whatever is asked of it.
    """
    kept = parse(settings.memory_every, Tier.MEMORY) if memory else Off()
    asked = {Tier.MEMORY: kept, Tier.STORAGE: parse(settings.storage_every, Tier.STORAGE)}
    cadence = Cadence(asked, Channel(messages, "cadence/"), rank, voice.tell)
    if cadence.moves and rank == 0:
        history.read_beside(run_dir, cadence.learn)
    return cadence


def keeps_memory(settings: Settings) -> bool:
    """True unless the memory tier is turned off."""
    return not isinstance(parse(settings.memory_every, Tier.MEMORY), Off)


class Overheard:
    """A recorder on whose way to the log it is noted how long each save stops training."""

    def __init__(self, records: Records, saved: Callable[[Tier, float, bool], None]) -> None:
        self._records = records
        self._saved = saved
        self._since_s: dict[tuple[Tier, int], tuple[float, bool]] = {}

    def write(self, event: Event) -> None:
        """Write it; see `Records`."""
        match event:
            case SaveStarted(step, tier, rest):
                self._since_s[tier, step] = time.monotonic(), rest
            case SaveUnblocked(step, tier) if (tier, step) in self._since_s:
                since_s, rest = self._since_s.pop((tier, step))
                self._saved(tier, time.monotonic() - since_s, rest)
            case _:
                pass
        self._records.write(event)
