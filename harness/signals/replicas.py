"""Whether all ranks still hold the same weights: one number per block of the model, gathered by all.

Nothing is drawn, changed or added up in another order. A bit that flips in a gradient before the
reduction leaves all replicas equal and wrong: that is for the audit (`recompute.py`).
"""

import logging
from collections.abc import Callable

import torch
from torch import distributed as dist

from harness.events import Reaction, ReplicasCompared
from harness.optimizer import Names
from harness.settings import Settings
from harness.signals.blocks import ALL, grouped
from harness.signals.hashing import hashed
from harness.signals.late import Late
from harness.signals.majority import Verdict, judge
from harness.signals.unsound import corrupt
from harness.voice import Voice

LOG = logging.getLogger("harness")


class Replicas:
    """One rank's part in comparing. `names` gives what DDP keeps equal, when it is asked."""

    def __init__(
        self,
        voice: Voice,
        settings: Settings,
        rank: int,
        world_size: int,
        late: bool,
        names: Callable[[], Names],
    ) -> None:
        self._voice = voice
        self._every = settings.replicas_every_steps if world_size > 1 else 0
        self._fails = settings.on_replica_mismatch == Reaction.FAIL
        self._rank = rank
        self._world_size = world_size
        self._late = late
        self._names = names
        self._step = 0
        self._compared = -1
        self._pending: tuple[int, tuple[str, ...], Late] | None = None
        self._differ = False

    def finish(self, step: int, last: bool) -> None:
        """Step number `step` is done; called by all ranks alike. Raises `CorruptionError`."""
        self._step = step
        self.settle()
        if self._every and (last or step % self._every == 0):
            self._begin()
        if last or not self._late:
            self.settle()

    def vouch(self) -> None:
        """Before a save: the weights after the last step are equal, or this raises."""
        if self._every and self._fails and self._compared != self._step:
            self._begin()
        self.settle()

    def settle(self) -> None:
        """Read what was gathered."""
        pending, self._pending = self._pending, None
        if pending is not None:
            step, groups, gathered = pending
            self._tell(step, judge(groups, gathered.tensor().tolist()))

    def _begin(self) -> None:
        names = self._names()
        parameters = list(names)
        groups = {name: it for name, it in grouped(list(names.values())).items() if name != ALL}
        if not groups:
            return
        self._compared = self._step
        mine = torch.stack([hashed([parameters[p] for p in it]) for it in groups.values()])
        rows = [torch.empty_like(mine) for _ in range(self._world_size)]
        dist.all_gather(rows, mine)
        self._pending = self._step, tuple(groups), Late(torch.stack(rows))

    def _tell(self, step: int, verdict: Verdict) -> None:
        self._voice.tell(ReplicasCompared(step, verdict.groups, verdict.ranks))
        if not verdict.groups:
            self._differ = False
            return
        said = words(step, verdict)
        if self._fails:
            raise corrupt(said, self._rank, verdict.ranks)
        if self._voice.leads and not self._differ:
            LOG.warning("harness: %s", said)
        self._differ = True


def words(step: int, verdict: Verdict) -> str:
    """What was found, for people."""
    if verdict.is_ambiguous:
        return (
            f"the weights of the ranks differ after step {step} in {verdict.blocks}, and no majority of"
            " ranks says which are right"
        )
    return (
        f"the weights of rank {verdict.odd} after step {step} are not those of the others:"
        f" {verdict.blocks}"
    )
