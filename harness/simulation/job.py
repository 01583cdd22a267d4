"""A job that trains, saves, fails and comes back, told as the events of a run.

With the default options it is the textbook loop of `loop.py` to the last bit. A step is what is done
between two saves; each attempt opens with one that holds no work, so that warm-up is what it is set
to. A step that a failure ends is said to be finished at that instant, and is lost at the next resume.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.events import (
    AttemptStarted,
    Cause,
    DrainRequested,
    Entry,
    FailureDetected,
    Outcome,
    RunFinished,
    RunStarted,
    SaveStarted,
    SaveUnblocked,
    Tier,
    TrainingFinished,
)
from harness.recovery import Stage
from harness.simulation.comeback import Stages, way_back, whole
from harness.simulation.draws import stream
from harness.simulation.failures import Failure, Failures
from harness.simulation.loop import Costs
from harness.simulation.options import Options
from harness.simulation.rounds import fast_comes_first, round_of
from harness.simulation.saves import Saved, Saves
from harness.simulation.spares import Pool
from harness.simulation.teller import Teller
from harness.simulation.trouble import NODE_LOSS, Blame, Stop, Trouble, blamed

TOOL = "simulate"


@dataclass(frozen=True, slots=True)
class Appearance:
    """What its log says of a simulated job beside its costs and failures."""

    run_id: str = "simulated"
    ranks: int = 1
    ranks_per_node: int = 8
    save_bytes: int = 0
    blames: Sequence[Blame] = NODE_LOSS


class SimulatedJob:
    """One run; `entries` tells it from the start, once."""

    now_s: float = 0.0
    """How far the run has come."""
    kept_s: float = 0.0
    """Work that it holds, by the clock …"""
    useful_s: float = 0.0
    """… and as it would have taken without stragglers."""

    def __init__(
        self,
        costs: Costs,
        failures: Failures,
        options: Options,
        seed: int,
        appearance: Appearance = Appearance(),
    ) -> None:
        self._costs, self._options, self._appearance = costs, options, appearance
        self._trouble = Trouble(failures, options.corruption, options.exposure, seed)
        self._teller = Teller(appearance.save_bytes)
        self._round = round_of(costs, options)
        self._saves = Saves()
        self._pool = None if options.spares is None else Pool(options.spares.count)
        self._factor = 1.0
        every_s = math.inf if options.maintenance is None else options.maintenance.every_s
        self._maintenance_s = every_s
        self._stages, self._detection, self._tier, self._repair, self._blame, self._slow = (
            stream(seed, purpose)
            for purpose in ("stages", "detection", "tier", "repair", "blame", "slow")
        )

    def entries(self) -> Iterator[Entry]:
        """Everything that happens, in order."""
        teller = self._teller
        teller.say(0.0, RunStarted(self._appearance.run_id, self._appearance.ranks, TOOL))
        self._begin(0.0, Stage.RENDEZVOUS, {})
        while self.now_s < self._costs.horizon_s:
            if not teller.heard:
                self._skip()
            self._interval()
            yield from teller.told
            teller.told.clear()
        teller.say(self.now_s, TrainingFinished(teller.step))
        left_s = teller.durable_s(self.now_s)
        teller.say(left_s, RunFinished(Outcome.FINISHED, "the simulated time is over"))
        yield from teller.told

    def goodput(self) -> float:
        """Run to the end without a word: the share of the time that was kept as undisturbed work."""
        self._teller.heard = False
        for _ in self.entries():
            pass
        return self.useful_s / self.now_s

    # ── an interval ─────────────────────────────────────────────────────────────────────────

    def _interval(self) -> None:
        """Work until a save is due, and the save; or as much of both as there is before a failure."""
        tier, work_s, leaves = self._due()
        if leaves and work_s <= 0:
            self._leave()
            return
        worked_s = self.now_s + work_s
        saved_s = worked_s + self._save_s(tier)
        stop = self._trouble.stop(self.now_s)
        if stop.at_s < saved_s:
            self._cut_short(tier, worked_s, stop)
            return
        self._complete(tier, work_s, worked_s, saved_s)
        if leaves:
            self._leave()

    def _skip(self) -> None:
        """Pass over the rounds in which nothing happens, from a state in storage to the like."""
        trouble, stored = self._trouble, self._saves.newest_stored
        if stored.worked_s != self.kept_s:
            return
        until_s = min(trouble.stop(self.now_s).at_s, self._maintenance_s, self._costs.horizon_s)
        if trouble.corrupt_s > self.now_s:
            until_s = min(until_s, trouble.corrupt_s)
        count = self._round.undisturbed(self.now_s, stored.durable_s, until_s)
        if count == 0:
            return
        self.now_s += count * self._round.lasts_s
        self.kept_s += count * self._round.work_s
        self.useful_s += count * self._round.work_s / self._factor
        self._teller.step += count * self._round.saves
        self._keep(Tier.STORAGE, self.now_s - self._costs.save_s)

    def _due(self) -> tuple[Tier, float, bool]:
        """The next save, the work before it, and whether the job leaves after it."""
        # More than an interval may have been done, where the save for it failed.
        done_s = self.kept_s - self._saves.newest_stored.worked_s
        tier, work_s = Tier.STORAGE, max(0.0, self._costs.interval_s - done_s)
        fast = self._options.fast
        if fast is not None and fast_comes_first(fast, work_s):
            tier, work_s = Tier.MEMORY, fast.interval_s
        if self._maintenance_s - self.now_s < work_s:
            return Tier.STORAGE, self._maintenance_s - self.now_s, True
        return tier, work_s, False

    def _save_s(self, tier: Tier) -> float:
        fast = self._options.fast
        return fast.save_s if fast is not None and tier is Tier.MEMORY else self._costs.save_s

    def _complete(self, tier: Tier, work_s: float, worked_s: float, saved_s: float) -> None:
        teller, useful_s = self._teller, work_s / self._factor
        teller.finish_step(worked_s)
        if self._options.stragglers is not None:
            teller.time_step(worked_s, useful_s, work_s)
        teller.say(worked_s, SaveStarted(teller.step, tier))
        teller.say(saved_s, SaveUnblocked(teller.step, tier))
        self.now_s = saved_s
        self.kept_s += work_s
        self.useful_s += useful_s
        self._keep(tier, worked_s)

    def _keep(self, tier: Tier, taken_s: float) -> None:
        """The state of `taken_s` is copied; it will be durable after those before it."""
        durable_s = self.now_s
        if tier is Tier.STORAGE:
            before_s = self._saves.newest_stored.durable_s
            durable_s = max(self.now_s, before_s) + self._options.commit_s
        step, attempt = self._teller.step, self._teller.attempt
        saved = Saved(step, tier, attempt, taken_s, durable_s, self.kept_s, self.useful_s)
        self._hold(saved)
        if self._options.fast is not None and tier is Tier.STORAGE:
            # What goes to storage passes through the fast tier, and stays there as well.
            self._hold(saved._replace(tier=Tier.MEMORY, durable_s=self.now_s))
        if self._trouble.corrupt_s > self.now_s:
            self._saves.prune(self.now_s)

    def _hold(self, saved: Saved) -> None:
        self._saves.add(saved)
        self._teller.commit(saved)

    def _leave(self) -> None:
        """Planned maintenance: everything is saved; the job leaves, and starts again afterwards."""
        planned = self._options.maintenance
        assert planned is not None
        since_s = self.now_s
        left_s = self._teller.durable_s(since_s)
        self._teller.say(since_s, DrainRequested(left_s - since_s))
        self._teller.say(left_s, RunFinished(Outcome.DRAINED, "planned maintenance"))
        back_s = left_s + planned.down_s
        self._teller.say(back_s, RunStarted(self._appearance.run_id, self._appearance.ranks, TOOL))
        while self._maintenance_s <= back_s:
            self._maintenance_s += planned.every_s
        stages = self._options.stages or whole(self._costs.restart_s)
        self._begin(back_s, Stage.RENDEZVOUS, stages)

    # ── failures ────────────────────────────────────────────────────────────────────────────

    def _cut_short(self, tier: Tier, worked_s: float, stop: Stop) -> None:
        self._teller.finish_step(min(worked_s, stop.at_s))
        if stop.at_s >= worked_s:
            self._teller.say(worked_s, SaveStarted(self._teller.step, tier))
        while True:
            following = self._come_back(stop)
            if following is None:
                return
            stop = Stop(following.at_s, following)

    def _come_back(self, stop: Stop) -> Failure | None:
        """From a stop to the next attempt at work; gives the failure that strikes on the way, if any."""
        detected_s, stands, wait_s = stop.at_s, True, 0.0
        rejected: Sequence[Saved] = ()
        if stop.failure is not None:
            detected_s += self._options.detection.quantile_s(self._detection())
            fast = self._options.fast
            stands = fast is not None and self._tier() < fast.share
            wait_s = self._wait_s(stop.failure, detected_s)
        self._teller.give_up(stop.at_s, detected_s)
        self._saves.fail(stop.at_s, memory_stands=stands)
        if stop.failure is None:
            rejected = self._saves.reject_after(self._trouble.corrupt_s)
        self._teller.say(detected_s, self._declared(stop.failure))
        following = self._trouble.on_the_way(stop, detected_s)
        begun = self._begin(
            detected_s, Stage.STACKS, self._stages_from_newest(), rejected, wait_s, following
        )
        return None if begun else following

    def _declared(self, failure: Failure | None) -> FailureDetected:
        if failure is None:
            return FailureDetected(None, Cause.CORRUPTION, "the numbers are wrong")
        blame = blamed(self._appearance.blames, self._blame())
        rank = failure.nodes[0] * self._appearance.ranks_per_node if failure.nodes else None
        return FailureDetected(rank, blame.cause, blame.reason)

    def _wait_s(self, failure: Failure, detected_s: float) -> float:
        if self._pool is None or self._options.spares is None:
            return 0.0
        law = self._options.spares.repair
        repairs_s = [law.quantile_s(self._repair()) for _ in failure.nodes or (0,)]
        return self._pool.replace(detected_s, repairs_s) - detected_s

    def _stages_from_newest(self) -> Stages:
        fast = self._options.fast
        if fast is not None and self._saves.newest.tier is Tier.MEMORY:
            return whole(fast.restart_s)
        return self._options.stages or whole(self._costs.restart_s)

    def _begin(
        self,
        since_s: float,
        since: Stage,
        stages: Stages,
        rejected: Sequence[Saved] = (),
        wait_s: float = 0.0,
        hit: Failure | None = None,
    ) -> bool:
        """Begin an attempt from the newest state; False if `hit` ends it before training is back."""
        resumed, ranks = self._saves.newest, self._appearance.ranks
        way = way_back(
            since_s,
            since,
            stages,
            self._stages,
            resumed=resumed,
            rejected=rejected,
            ranks=ranks,
            wait_s=wait_s,
        )
        begun = self._teller.attempt
        for at_s, event in way:
            if hit is not None and hit.at_s < at_s:
                if self._teller.attempt == begun:  # no attempt yet that could fail
                    self._teller.say(hit.at_s, AttemptStarted(ranks))
                return False
            self._teller.say(at_s, event)
            self.now_s = at_s
        self._teller.step = resumed.step + 1
        self.kept_s, self.useful_s = resumed.worked_s, resumed.useful_s
        self._train(resumed)
        return True

    def _train(self, resumed: Saved) -> None:
        """Training is back: how fast it is, and what may stop it, is drawn anew."""
        if self._teller.attempt > 1:
            self._trouble.train(self.now_s, resumed.taken_s)
        slow = self._options.stragglers
        if slow is not None:
            self._factor = slow.factor(slow.slow_devices(self._slow()))
