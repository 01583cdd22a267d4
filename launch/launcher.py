"""A launcher's life around its attempts: what is opened before the first, and closed after the last.

The order matters. The fork server is forked while this process is warm, has one thread and has opened
nothing; all that can be refused is refused before the first rank starts.
"""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from torch.distributed.run import config_from_args

from harness import beginning, events, exactness, settings, slots, storage
from harness.arming import arm_from
from harness.checkpoint.store import StoreError
from harness.events import EXIT_CODES, Outcome
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.settings import Settings
from harness.slots import Mark
from launch import (
    capacity,
    companions,
    forkserver,
    preparation,
    processes,
    respawn,
    served,
    warm,
    witness,
)
from launch.aftermath import Aftermath
from launch.agent import Agent, Ranks
from launch.beside import Beside, Recipe
from launch.between import View
from launch.companions import EXPORTER, INJECTOR, SAVER
from launch.course import Course, counted
from launch.ends import Ending
from launch.environment import Shared
from launch.flags import UsageError
from launch.lookout import Lookout
from launch.options import Options
from launch.preparation import Prepared
from launch.requests import Requests
from launch.respawn import GivenUp
from launch.resuming import check_resume
from launch.spawner import Spawner
from launch.voice import Chronicle, Voice
from launch.watch import Watch

SAVER_TIMEOUT_S = 60.0
"""How long a saver may take, once the ranks are gone, for what it has in hand."""
NONE_NAMED = ("", "none")
"""What torchrun's `--rdzv-id` is when nobody gave one."""


def launch(asked: Options, threads: str | None) -> int:
    """Run what was asked for; gives the exit status. `threads` is the user's OMP_NUM_THREADS.

    Raises `UsageError`. In a rank, which is a fork of this process, it ends in `SystemExit`.
    """
    prepared = preparation.prepare(asked, os.environ)
    spawner, asked, lines = _spawner(asked)
    processes.adopt_orphans()
    try:
        ranks = _ranks(asked, prepared, threads)
        with preparation.held(prepared.run_dir), preparation.undone_if_refused(prepared):
            launcher = _Launcher(asked, prepared, ranks)
            for line in lines:
                launcher.warn(line)
            preparation.write_down(prepared, asked, ranks.world_size, launcher.warn)
            _belong_to(prepared.run_dir)
            ending = launcher.run(spawner)
    finally:
        spawner.close()
    return EXIT_CODES[ending.outcome]


def _belong_to(run_dir: RunDir) -> None:
    """Have this process, and all that it starts, know the run; and be hit there, if it is asked for."""
    os.environ["HARNESS_RUN_DIR"] = str(run_dir.path)
    try:
        arm_from(os.environ, "launcher")
    except ValueError as error:
        raise UsageError(str(error)) from None


def _spawner(asked: Options) -> tuple[Spawner, Options, Sequence[str]]:
    """Fork the fork server, or start it as a bare interpreter where this process cannot be forked.

    Gives also what is asked for from here on, and a line for each module that is not preloaded.
    """
    if asked.cold:
        return Spawner.execute(asked.program, "asked for by --cold"), asked, ()
    warm.load()
    if cold := warm.obstacle():
        return Spawner.execute(asked.program, cold), asked, ()
    try:
        harmful = warm.preload(asked.preload, asked.program.folder)
    except ImportError as error:
        raise UsageError(f"--preload {error}") from None
    if not harmful:
        return Spawner.fork(forkserver.start_warm(asked.program)), asked, ()
    kept = tuple(name for name in asked.preload if name not in harmful)
    lines = [
        f"--preload goes without {name}: {harm}, so each rank imports it by itself"
        for name, harm in harmful.items()
    ]
    return Spawner.execute(asked.program, "", kept), replace(asked, preload=kept), lines


def _without_a_log_dir(asked: Namespace) -> Namespace:
    """The flags without the directory that torch makes for its agent's logs as it reads them, and leaves behind."""
    return Namespace(**vars(asked) | {"log_dir": os.devnull})


def _ranks(asked: Options, prepared: Prepared, threads: str | None) -> Ranks:
    """Count the ranks, and settle what they are told.

    Counting devices may touch them, so not before the fork server is forked.
    """
    world_size = capacity.ranks(asked.ranks)
    try:
        config, _, _ = config_from_args(_without_a_log_dir(asked.torch))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise UsageError(str(error)) from None
    wanted = settings.values(prepared.record.settings).threads
    given = int(threads) if threads is not None and threads.isdecimal() else 0
    run_id = prepared.record.run_id
    return Ranks(
        world_size=world_size,
        role=config.role,
        max_restarts=asked.limits.restarts,
        shared=Shared(
            run_dir=prepared.run_dir,
            run_id=run_id,
            elastic_id=run_id if config.run_id in NONE_NAMED else config.run_id,
            settings=prepared.record.settings,
            threads=exactness.threads_for(wanted or given, world_size),
            saver=companions.saver_address(),
        ),
    )


class _Launcher:
    """What is open while attempts run."""

    def __init__(self, asked: Options, prepared: Prepared, ranks: Ranks) -> None:
        self._asked = asked
        self._run_dir = prepared.run_dir
        self._record = prepared.record
        self._continued = prepared.continued
        self._ranks = ranks
        self._voice = Voice()

    def run(self, spawner: Spawner) -> Ending:
        """Lead the run to its end, and report it. Raises `UsageError` for storage that is not its own."""
        try:
            asked = settings.values(self._record.settings)
            store = storage.probed_store(self._run_dir, self._record.run_id, asked, self.warn)
        except (StoreError, OSError) as error:
            raise UsageError(str(error)) from None
        newest = self._run_dir.newest_attempt()
        check_resume(self._run_dir, store, asked.resume)
        self._announce()
        began_ns = beginning.began_ns(self._run_dir, os.getpid())
        with preparation.writing(self._run_dir):
            self._run_dir.launcher_log.open("ab").close()  # what stands beside the job writes there
            recorder = Chronicle(self._run_dir, self._record.run_id, self._voice.complain)
        with ExitStack() as stack:
            stack.enter_context(closing(recorder))
            watch = stack.enter_context(Watch())
            started = events.RunStarted(self._record.run_id, self._ranks.world_size)
            recorder.write(started, began_ns)
            beside = self._beside(stack, watch, recorder)
            requests = Requests(recorder, self._asked.grace_s, self._say)
            course = Course(
                renewed=self._renewed,
                claim_attempt=lambda: storage.claim_attempt(
                    store, max(newest, recorder.attempt), lambda: self._make_room(asked)
                ),
                recorder=recorder,
                watch=watch,
                requests=requests,
                aftermath=Aftermath(recorder, self._asked.limits, self._say),
                beside=beside,
                lookout=Lookout(self._asked.hangs, self._say),
                view=self._view(stack),
                say=self._say,
            )
            agent = Agent(self._ranks, spawner, course.lead)
            agent.run()
            self._close(beside, recorder, course.ending, requests.left_s)
            watch.afterwards = EXIT_CODES[course.ending.outcome]
        self._report(course.ending)
        return course.ending

    def _make_room(self, asked: Settings) -> None:
        storage.make_room(self._run_dir, self._record.run_id, asked, self.warn)

    def _beside(self, stack: ExitStack, watch: Watch, recorder: Recorder) -> Beside:
        log, complain = self._run_dir.launcher_log, self._voice.complain
        beside = Beside(self._recipes(), log, watch, recorder, self._say, complain)
        served.forget_dead(self._run_dir)
        stack.callback(beside.stop_all)
        beside.start()
        return beside

    def _close(self, beside: Beside, recorder: Recorder, ending: Ending, left_s: float) -> None:
        """The saver's last word counts, the injector accounts for its faults, the exporter shows the end.

        Where the run did not end by itself the machine is wanted back, within `left_s` or at once.
        """
        own_end = ending.outcome in (Outcome.FINISHED, Outcome.FAILED)
        least_s = SAVER_TIMEOUT_S if own_end else companions.STOP_TIMEOUT_S
        beside.stop(SAVER, max(least_s, left_s))
        beside.stop(INJECTOR)
        recorder.write(events.RunFinished(ending.outcome, ending.reason))
        if ending.outcome is Outcome.FAILED:
            with served.address_kept(self._run_dir):
                beside.stop_all()
        else:
            beside.stop_all()
            served.forget_dead(self._run_dir)

    def _recipes(self) -> Iterator[Recipe]:
        path, address = self._run_dir.path, self._ranks.shared.saver
        yield Recipe(SAVER, companions.saver(path, address, self._asked.linger_s), outlives=True)
        if self._record.armed:
            yield Recipe(INJECTOR, companions.injector(path), may_finish=True)
        if self._asked.metrics:
            asked = self._asked
            where = asked.metrics_port, asked.metrics_host, asked.metrics_access
            yield Recipe(EXPORTER, companions.exporter(path, *where))

    def _renewed(self, dead: Spawner, lived_s: Sequence[float]) -> Spawner:
        """A fork server in the place of one that died: as warm, unless that died again and again."""
        again = respawn.decide(lived_s)
        cold = f"of the warm fork server: {again.reason}" if isinstance(again, GivenUp) else ""
        return Spawner.execute(self._asked.program, dead.cold or cold, self._asked.preload)

    def _announce(self) -> None:
        for note in self._asked.notes:
            self._say(note)
        verb = "continuing" if self._continued else "starting"
        self._say(f"{verb} {self._run_dir.path}, {counted(self._ranks.world_size)}")
        slot = slots.read(self._run_dir.slot(0))
        if slot is not None and slot.mark is Mark.FINISHED:
            self._say(f"it finished step {slot.step} already: ranks go on if that is not the last")

    def _view(self, stack: ExitStack) -> View:
        if self._asked.quiet:
            return _Blind()
        from launch.live import Live

        return stack.enter_context(Live(self._run_dir))

    def _report(self, ending: Ending) -> None:
        line = f"{ending.outcome}: {ending.reason}" if ending.reason else str(ending.outcome)
        if ending.outcome is Outcome.FAILED:
            self._voice.complain(f"harness run: {line}")
        else:
            self._say(line)
        if ending.outcome is Outcome.FINISHED and not witness.uses_library(self._run_dir):
            self._say("no rank called harness.join: nothing was saved, and no hang was looked for")
        if self._asked.quiet:
            return
        from harness import report

        try:
            self._say(report.summary(self._run_dir))
        except Exception as error:  # noqa: BLE001 - how a run ended does not hang on its report
            self._say(f"no report: {error!r}; see `harness report {self._run_dir.path}`")

    def warn(self, line: str) -> None:
        """Something that people should know, whether or not they want to hear of the run."""
        self._voice.complain(f"harness run: {line}")

    def _say(self, line: str) -> None:
        if not self._asked.quiet:
            self._voice.say(line)


class _Blind:
    """Shows nothing."""

    def poll(self) -> None:
        """See `View`."""
