"""What the log says of slow ranks: `StepTimed` of all ranks, brought together and judged.

Ranks are compared whenever each of them has told of its steps up to the same one. A delay counts
from there on, also of a step that is redone later: it was waited for.
"""

from dataclasses import dataclass, field

from harness.events import StepTimed
from harness.signals.straggler import Comparison, Lag, Reference, Share, Watch, compare


@dataclass(slots=True)
class Told:
    """What a rank told since all were compared."""

    step: int = 0
    steps: int = 0
    own_ns: int = 0
    wait_ns: int = 0
    data_ns: int = 0
    compute_ns: int = 0

    def add(self, event: StepTimed) -> None:
        """It tells of some more steps."""
        self.step = event.step
        self.steps += event.steps
        self.own_ns += event.steps * event.own_ns
        self.wait_ns += event.steps * event.wait_ns
        self.data_ns += event.steps * event.data_ns
        # Older logs do not say what a rank was slow at.
        is_split = event.data_ns or event.compute_ns
        self.compute_ns += event.steps * (event.compute_ns if is_split else event.own_ns)

    def share(self) -> Share:
        """The means of a step."""
        steps = self.steps
        return Share(
            self.own_ns // steps,
            self.wait_ns // steps,
            self.data_ns // steps,
            self.compute_ns // steps,
        )


@dataclass(slots=True)
class Episode:
    """A rank was the straggler for some time."""

    rank: int
    lag: Lag
    """What it was slow at in the end."""
    since_step: int
    since_ns: int
    """When it was named."""
    until_ns: int | None = None
    """When it no longer was, or its attempt was over."""
    delay_ns: int = 0
    """In each step, in the median, in the end."""
    share: float = 0.0
    """Of the usual own time."""


@dataclass(slots=True)
class Stragglers:
    """Who was waited for, and how long."""

    waited_ns: int = 0
    """The job waited for its slowest rank, all together."""
    compared: int = 0
    last: Comparison | None = None
    """The newest one of the present attempt."""
    named: int = 0
    """How often a rank was named."""
    episodes: list[Episode] = field(default_factory=list)
    """The last so many."""
    open: int = 0
    """Of them: those that are not over."""
    reference: Reference = field(default_factory=Reference)
    slow_blocks: int = 0
    """Of `reference`: those in which the whole job was slow."""
    blocks: int = 0
    watch: Watch = field(default_factory=Watch)
    told: dict[int, Told] = field(default_factory=dict)
    newest: int = 0
    """The last step that any rank told of, and …"""
    arrived: int = 0
    """… how many did."""
    is_warm: bool = False
    """The first comparison of the attempt is behind it: a step that warms up is nobody's fault."""
    ranks: int = 0

    def resume(self, ranks: int, at_ns: int) -> None:
        """An attempt of so many ranks begins to train."""
        self._end(self.standing, at_ns)
        self.open = 0
        if ranks != self.ranks:
            self.reference = Reference()
        self.ranks, self.last, self.is_warm = ranks, None, False
        self.watch, self.told = Watch(), {}
        self.newest = self.arrived = 0

    def time(self, rank: int, event: StepTimed, at_ns: int, keep: int) -> None:
        """Rank `rank` of the present attempt tells of its steps."""
        if not 0 <= rank < self.ranks or event.steps < 1:
            return
        told = self.told.setdefault(rank, Told())
        if event.step > self.newest:
            self.newest, self.arrived = event.step, 0
        self.arrived += event.step == self.newest != told.step
        told.add(event)
        if self.arrived == self.ranks:
            self._compare(event.step, at_ns, keep)

    @property
    def standing(self) -> list[Episode]:
        """Those who are the stragglers now, the slowest first."""
        if not self.open:
            return []
        standing = [one for one in self.episodes if one.until_ns is None]
        return sorted(standing, key=lambda one: -one.share)

    @property
    def is_slow(self) -> bool:
        """All ranks are slower than the run has been, and no single one is to blame."""
        return self.reference.is_slow

    def _compare(self, step: int, at_ns: int, keep: int) -> None:
        shares = [self.told[rank].share() for rank in range(self.ranks)]
        steps = self.told[0].steps
        self.told, self.arrived = {}, 0
        self.last = compare(shares)
        if not self.is_warm:
            self.is_warm = True
            return
        self.compared += 1
        self.waited_ns += steps * self.last.wait_ns
        if self.reference.add(self.last.pace_ns):
            self.blocks += 1
            self.slow_blocks += self.reference.is_slow
        self.watch.add(self.last)
        if self.open or self.watch.stands_out():
            self._judge(step, at_ns, keep)

    def _judge(self, step: int, at_ns: int, keep: int) -> None:
        standing = {one.rank: one for one in self.standing}
        found = self.watch.stragglers(tuple(standing))
        for straggler in found:
            episode = standing.pop(straggler.rank, None)
            if episode is None:
                episode = Episode(straggler.rank, straggler.lag, step, at_ns)
                self.episodes.append(episode)
                self.named += 1
            episode.lag, episode.delay_ns = straggler.lag, straggler.delay_ns
            episode.share = straggler.share
        self._end(list(standing.values()), at_ns)
        del self.episodes[:-keep]
        self.open = len(found)

    def _end(self, episodes: list[Episode], at_ns: int) -> None:
        for episode in episodes:
            episode.until_ns = at_ns
