"""Where a rank's state comes from, and where it is kept: found in `join`, loaded before the first step, saved after.

What belongs to the state is `Protected`'s matter, and how it is written that of `checkpoint`.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed import Store

from harness import events, exactness, session
from harness.checkpoint.lineage import Departure
from harness.checkpoint.load import Found
from harness.checkpoint.named import Folder, check, sweep
from harness.checkpoint.overlap import Overlap, pays
from harness.checkpoint.recollection import Recollection
from harness.checkpoint.refusals import told_as_outage
from harness.checkpoint.restore import choose
from harness.checkpoint.save import Checkpointer
from harness.checkpoint.tell import said, warn
from harness.checkpoint.whereabouts import whereabouts
from harness.components import Protected
from harness.events import Tier
from harness.intervals.begin import Overheard, begun, keeps_memory
from harness.membership import Membership, another_client
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals import rollback
from harness.slots import Mark
from harness.storage import checkpoint_store
from harness.voice import Voice

LOG = logging.getLogger("harness")
DURABLE_WITHIN_S = 600.0
"""How long the last save may take to become durable before the run counts as failed."""


class Keeping:
    """One rank's part of it, in one attempt: `choose`, `load` and `begin`, in this order, then the rest."""

    def __init__(
        self,
        member: Membership,
        messages: Store,
        agreed: session.Session,
        settings: Settings,
        voice: Voice,
        protected: Protected,
        device: torch.device,
        threads: int,
    ) -> None:
        self._member = member
        self._messages = messages
        self._run_id = agreed.run_id
        self._attempt = agreed.attempt
        self._first_attempt = agreed.first_attempt
        self._run_dir = RunDir.at(agreed.run_dir)
        self._settings = settings
        self._voice = voice
        self._protected = protected
        self._device = device
        cores = len(os.sched_getaffinity(0)), member.local_world_size, threads
        is_on = pays(settings.overlap, device.type, *cores)
        self._overlap = Overlap(protected.still, warn, is_on)
        self._saver: Checkpointer | None = None

    # ── before the first step ───────────────────────────────────────────────────────────────

    def choose(self, launcher: int) -> None:
        """Find the newest state that all ranks could verify; `launcher` is who started them.

        Raises `RestoreError` where there is none that may be started from.
        """
        with told_as_outage(self._settings.checkpoints or str(self._run_dir.checkpoints)):
            self._store = checkpoint_store(self._run_dir, self._run_id, self._settings)
            self._voice.show(mark=Mark.RESTORING)
            self._voice.tell(events.RestoreStarted())
            self._found = self._chosen(launcher)
        step, tier = (0, None) if self._found is None else (self._found.step, self._tier())
        self._voice.tell(events.StateFound(step, tier))

    def load(
        self, total: int, reductions: Mapping[str, str], vouch: Callable[[Tier], None]
    ) -> events.TrainingResumed:
        """Put the chosen state in place, if there is one; what is to be told of that.

        `reductions` are the job's, and `vouch` raises where a state is not to be kept. Raises
        `ValueError` for a state that does not belong here.
        """
        now = exactness.fingerprint(self._device, self._member.world_size, reductions)
        self._saver = self._checkpointer(now, vouch)
        self._memory.close()
        if self._member.rank == 0:
            session.note_environment(self._run_dir, now)
        if self._found is None:
            return events.TrainingResumed(0, None, total_steps=total)
        return self._loaded(self._found, now, total)

    def begin(self) -> None:
        """Training begins: get the memory that saves will need, and let go of what was loaded."""
        assert self._saver is not None
        self._saver.prepare(self._protected.shared, self._own, fresh=self._found is None)
        self._found = None  # its tensors are as large as the state

    # ── after steps ─────────────────────────────────────────────────────────────────────────

    def at_boundary(self, step: int) -> None:
        """Save the state after `step` steps where that is due; called by all ranks alike."""
        assert self._saver is not None
        saver = self._saver
        if self._cadence.at_boundary(step, saver.commit_s, memory=saver.keeps_memory):
            self._saver.every_steps = self._cadence.every(Tier.STORAGE)
            self._saver.memory_every = self._cadence.every(Tier.MEMORY)
            with self._protected.standing():
                self._saver.at_step(step, self._protected.shared, self._own)

    def before_step(self) -> None:
        """Called by each protected optimizer."""
        self._overlap.announce()
        self.settle()

    def settle(self) -> None:
        """Before what may be copied beside training changes: have it copied."""
        if self._saver is not None:
            self._saver.settle()

    def save_last(self, step: int) -> None:
        """Save the state after `step` steps and wait until it is durable. Raises `RuntimeError`."""
        assert self._saver is not None
        self._voice.show(mark=Mark.SAVING)
        self._saver.at_step(step, self._protected.shared, self._own, force=True)
        durable = self._saver.finish(DURABLE_WITHIN_S)
        self._saver.close(over=durable)
        if not durable:
            raise RuntimeError(
                f"the state after step {step} did not become durable: see the lines above"
            )

    def forget_copies(self) -> None:
        """Have no later attempt go on from what is in memory: the storage has what is sound."""
        if self._saver is not None:
            self._saver.forget_copies()

    def digests(self) -> dict[str, str]:
        """Of the whole state as it is now, by component."""
        return {**self._protected.digests(), "rng": exactness.rng_digest()}

    def _own(self) -> dict[str, Any]:
        return {**self._protected.own(), "rng": exactness.capture_rng()}

    # ── what there is to go on from ─────────────────────────────────────────────────────────

    def _chosen(self, launcher: int) -> Found | None:
        member, departures = self._member, self._store.departures()
        # Before any attempt has begun there is nothing that one could have left.
        savers = self._savers() if departures and self._keeps() else []
        place = member.rank, member.world_size
        self._memory = Recollection(savers, self._run_id, *place, self._folder(launcher))
        asked = self._settings.resume
        return choose(
            self._store,
            another_client(self._messages),
            rank=member.rank,
            world_size=member.world_size,
            attempt=self._attempt,
            resume=session.resume_from(asked, departures, self._attempt, self._first_attempt),
            recorder=self._voice,
            alive=self._voice.slot.beat,
            memory=self._memory,
            before=self._before(departures),
        )

    def _before(self, departures: Mapping[int, Departure]) -> int | None:
        """Of how many steps the state may be at most, after a loss that jumped."""
        if self._settings.on_spike != "rollback" or self._member.rank != 0:
            return None
        return rollback.before(self._run_dir, departures)

    def _tier(self) -> Tier:
        """Where the chosen state was."""
        return Tier.STORAGE if self._memory.resumed is None else Tier.MEMORY

    def _loaded(self, found: Found, now: Mapping[str, str], total: int) -> events.TrainingResumed:
        if found.step > total:
            raise ValueError(
                f"the run is at step {found.step} already, past the {total} asked for: ask for more,"
                " or name another run directory"
            )
        self._check_environment(found.fingerprint, now)
        own = dict(found.own)
        rng = own.pop("rng")
        self._protected.restore(found.shared, own)
        if found.new_rank:
            exactness.seed_all(self._settings.seed, self._member.rank, found.step)
        else:
            exactness.restore_rng(rng)
        if self._settings.digest_every_steps:
            self._voice.write(events.StateDigested(found.step, self.digests()))
        return events.TrainingResumed(found.step, self._tier(), found.saved_by, total)

    def _check_environment(self, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Refuse, or say, that the resumed run may differ in its bits from one that never stopped."""
        differences = exactness.mismatches(saved, now)
        if not differences:
            return
        # Other ranks add in another order: whoever starts fewer or more has chosen other bits.
        if self._settings.exact and saved.get("world_size") == now["world_size"]:
            raise ValueError("\n  ".join(["this is not where the state was saved:", *differences]))
        if self._member.rank == 0:
            LOG.warning("harness: bits may differ from here on: %s", "; ".join(differences))

    # ── who keeps it ────────────────────────────────────────────────────────────────────────

    def _checkpointer(self, now: Mapping[str, str], vouch: Callable[[Tier], None]) -> Checkpointer:
        member, keeps = self._member, self._keeps()
        if keeps_memory(self._settings) and not keeps and (member.rank, self._attempt) == (0, 1):
            LOG.warning(
                "harness: no copies in memory, for nobody here holds them: start by harness run,"
                " or give a memory_dir; memory_every = off says no more of it"
            )
        self._cadence = begun(
            self._settings,
            another_client(self._messages),
            self._run_dir,
            self._voice,
            member.rank,
            memory=keeps,
        )
        return Checkpointer(
            self._store,
            another_client(self._messages),
            rank=member.rank,
            world_size=member.world_size,
            attempt=self._attempt,
            recorder=Overheard(self._voice, self._cadence.saved),
            fingerprint=now,
            every_steps=self._cadence.every(Tier.STORAGE),
            keep=self._settings.keep,
            slot=self._voice.slot,
            saver=os.environ.get("HARNESS_SAVER", ""),
            memory_every=self._cadence.every(Tier.MEMORY) if keeps else None,
            memory=self._memory,
            vouch=vouch,
            overlap=self._overlap,
        )

    def _keeps(self) -> bool:
        """There is to be a memory tier: someone holds what ranks leave."""
        held = bool(os.environ.get("HARNESS_SAVER") or self._settings.memory_dir)
        return held and keeps_memory(self._settings)

    def _folder(self, launcher: int) -> Folder | None:
        """Where copies in memory have names, if they have; ours from here on."""
        place = self._settings.memory_dir
        if not (place and self._keeps()):
            return None
        check(place)
        folder = Folder.of(place, self._run_id)
        try:
            folder.claim(self._run_dir, launcher)  # held until this process ends
            folder.clear(self._member.rank)
        except OSError as error:
            raise ValueError(f"memory_dir = {place!r} cannot be used: {said(error)}") from error
        if self._member.rank == 0:
            sweep(place, folder)
        return folder

    def _savers(self) -> list[str]:
        """Where memory may be held: at our saver, or at that of a launcher that was killed."""
        mine, earlier = os.environ.get("HARNESS_SAVER", ""), whereabouts(self._run_dir)
        return [address for address in (mine, earlier) if address]
