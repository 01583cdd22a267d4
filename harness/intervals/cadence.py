"""Every rank saves at the same steps: rank 0 says from time to time how often, and when it will next.

A word holds from the boundary at which all ranks hear it until the next word, whose step it names. So
no rank ever waits for a word that is not due, or acts on one that another has not heard.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import msgspec

from harness.checkpoint.messages import Channel
from harness.checkpoint.tell import said, warn
from harness.events import Event, IntervalChosen, Tier
from harness.intervals.asked import Asked, Auto, Off, Seconds, Steps
from harness.intervals.choice import FIRST, Decision, History, Measured, decide

PERIOD_S, LONGEST_PERIOD_S = 1.0, 32.0
"""Between two words; doubled by each that changes nothing."""
LONGEST_PERIOD_STEPS = 1000
"""Steps may become slow after a word, and no interval may stay beyond its bound for long."""
_KEPT_WORDS = 100
_RECENT = 32


@dataclass(frozen=True, slots=True)
class Word:
    """What rank 0 says."""

    every: Mapping[str, int]
    """Steps between saves, by tier; 0 is never."""
    next_step: int
    """The boundary of the next word."""


class Cadence:
    """One rank's part of it. `channel` reaches the other ranks of the attempt alone."""

    def __init__(
        self,
        asked: Mapping[Tier, Asked],
        channel: Channel,
        rank: int,
        tell: Callable[[Event], None],
        clock_s: Callable[[], float] = time.monotonic,
        within_s: float = 2400.0,
    ) -> None:
        """`within_s` is how long a word that is due is waited for: rank 0 may evaluate alone."""
        self._asked = asked
        self._channel = channel
        self._rank = rank
        self._tell = tell
        self._clock_s = clock_s
        self._within_s = within_s
        self._every = {tier: one.count for tier, one in asked.items() if isinstance(one, Steps)}
        self._moving = [tier for tier, one in asked.items() if isinstance(one, Auto | Seconds)]
        self._words = 0
        self._next_step: int | None = None
        self._behind = False
        self._period_s = PERIOD_S
        self._history: History | None = None
        self._told: dict[Tier, tuple[int, bool]] = {}
        self._began_s = self._boundary_s = clock_s()
        self._blocked_s = self._commit_s = 0.0
        self._has_memory = True
        self._steps_s: deque[float] = deque(maxlen=_RECENT)
        self._saves_s: dict[Tier, deque[float]] = {}

    @property
    def moves(self) -> bool:
        """The intervals are not all given in steps."""
        return bool(self._moving)

    def every(self, tier: Tier) -> int:
        """Steps between saves to `tier`; 0 is never. Before the first word, what all ranks guess."""
        return self._every.get(tier, FIRST[tier][0] if tier in self._moving else 0)

    def learn(self, history: History) -> None:
        """What the log says of the run, on rank 0, from any thread; nothing is chosen before."""
        self._history = history

    def saved(self, tier: Tier, blocked_s: float, rest: bool = False) -> None:
        """A save to `tier` stopped training for so long; for the `rest` of the last copy, once more."""
        seconds = self._saves_s.setdefault(tier, deque(maxlen=_RECENT))
        seconds.append(blocked_s + (seconds.pop() if rest and seconds else 0.0))
        self._blocked_s += blocked_s

    def at_boundary(self, step: int, commit_s: float = 0.0, *, memory: bool = True) -> bool:
        """Hear what holds after `step` finished steps; False if this rank does not know, and says so.

        Called by all ranks after each step, with how long the last commit took, if there was one,
        and whether copies in `memory` are kept at all.
        """
        self._commit_s, self._has_memory = commit_s, memory
        self._time_step()
        if not self._moving:
            return True
        if self._next_step is None:
            self._next_step = step
        try:
            while self._next_step <= step:
                self._take(self._decided(step) if self._rank == 0 else self._heard())
        except Exception as error:  # noqa: BLE001  # such as a message store that has gone
            if not self._behind:
                warn(f"rank {self._rank} does not know how often to save: {said(error)}")
            self._behind = True
        else:
            self._behind = False
        return not self._behind

    def _time_step(self) -> None:
        now_s = self._clock_s()
        self._steps_s.append(max(1e-9, now_s - self._boundary_s - self._blocked_s))
        self._boundary_s, self._blocked_s = now_s, 0.0

    def _take(self, word: Word) -> None:
        self._every.update({Tier(name): steps for name, steps in word.every.items()})
        self._next_step = word.next_step
        self._words += 1

    def _heard(self) -> Word:
        within_s = 0.0 if self._behind else self._within_s
        _, message = self._channel.hear(f"word/{self._words}", within_s=within_s)
        return msgspec.json.decode(message, type=Word)

    # ── rank 0 ──────────────────────────────────────────────────────────────────────────────

    def _decided(self, step: int) -> Word:
        of = self._measured()
        decisions = {tier: self._decision(tier, of) for tier in self._moving}
        changed = [self._tell_of(tier, one, of) for tier, one in decisions.items()]
        settled = self._history is not None and not any(changed)
        self._period_s = min(2 * self._period_s, LONGEST_PERIOD_S) if settled else PERIOD_S
        every = {tier.value: one.steps for tier, one in decisions.items()}
        steps = min(round(self._period_s / of.step_s), LONGEST_PERIOD_STEPS)
        word = Word(every, step + max(1, steps))
        self._channel.post(f"word/{self._words}", msgspec.json.encode(word))
        if self._words >= _KEPT_WORDS:
            self._channel.forget([f"word/{self._words - _KEPT_WORDS}"])
        return word

    def _measured(self) -> Measured:
        history = self._history or History()
        up_s = history.up_s + self._clock_s() - self._began_s
        mine = {tier: median(seconds) for tier, seconds in self._saves_s.items()}
        costs = {**history.save_s, **mine}
        in_use = {t: s for t, s in costs.items() if not isinstance(self._asked[t], Off)}
        if not self._has_memory:  # there is no room for it now, or nobody who holds it
            in_use.pop(Tier.MEMORY, None)
        if (
            Tier.STORAGE in in_use
        ):  # it writes the copy that memory has, which is then counted there
            in_use[Tier.STORAGE] += in_use.get(Tier.MEMORY, 0.0)
        history = replace(history, up_s=up_s)
        return Measured(median(self._steps_s), in_use, history, self._commit_s)

    def _decision(self, tier: Tier, of: Measured) -> Decision:
        asked = self._asked[tier]
        assert isinstance(asked, Auto | Seconds)
        now = self._every.get(tier)
        if self._history is None:
            return decide(tier, now, asked, Measured(of.step_s, {}, History()), alone=True)
        now = self._history.steps.get(tier, now) if tier not in self._told else now
        # A tier that has never saved, such as one without room, answers for no failure.
        return decide(tier, now, asked, of, alone=of.save_s.keys() <= {tier})

    def _tell_of(self, tier: Tier, decision: Decision, of: Measured) -> bool:
        """Record a choice that is another than the last; True if it is."""
        if self._history is None:
            return False
        now = (decision.steps, decision.optimal_s is None)
        if self._told.get(tier) == now:
            return False
        self._told[tier] = now
        self._tell(
            IntervalChosen(
                tier=tier,
                steps=decision.steps,
                seconds=decision.steps * of.step_s,
                optimal_s=decision.optimal_s,
                inputs=of.inputs(tier),
                reason=decision.reason,
            )
        )
        return True
