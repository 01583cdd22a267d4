"""torch's elastic agent with our own way to start, watch and end ranks, on one node.

A seam to torch's agent: nothing else in this package knows it. What differs from torchrun: deaths wake
us, survivors die at once and with their children, each attempt meets on a store of its own, and the
number of an attempt is the job's.
"""

import signal
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from harness.drain import REQUEST
from harness.rundir import RunDir
from launch import processes, witness
from launch.environment import ADDRESS, Place, Shared, environment
from launch.exits import Drained, Exit, Failed, Finished, Going, Judgement, judge
from launch.orders import Order
from launch.processes import STOPPED, UnkillableError
from launch.spawner import Spawner

STORE_TIMEOUT = timedelta(minutes=5)
STOP_TIMEOUT_S = 60.0


class StartError(Exception):
    """An attempt has no place for what its ranks say."""


class FreshStore(RendezvousHandler):
    """One node's rendezvous: there is nobody to wait for, only a store to open.

    A new server for each attempt. Ranks that share one with a former attempt read the addresses of
    dead peers in it and dial them: that made 9 of 13 of torchrun's restarts hang, fail or burn.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.store: TCPStore | None = None

    def get_backend(self) -> str:
        """Name of this rendezvous."""
        return "harness"

    @property
    def use_agent_store(self) -> bool:
        """Ranks connect to the launcher's store and host none."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Open the next attempt's store on a free port; the former one's is closed."""
        self.store = None
        self.store = TCPStore(
            ADDRESS, 0, is_master=True, wait_for_workers=False, timeout=STORE_TIMEOUT
        )
        return RendezvousInfo(self.store, 0, 1, RendezvousStoreInfo(ADDRESS, self.store.port))

    def is_closed(self) -> bool:
        """Never."""
        return False

    def set_closed(self) -> None:
        """Nothing to close: no other node takes part."""

    def num_nodes_waiting(self) -> int:
        """Of other nodes: none."""
        return 0

    def get_run_id(self) -> str:
        """The elastic run id."""
        return self._run_id

    def shutdown(self) -> bool:
        """Close the store."""
        self.store = None
        return True


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the agent needs to know of the job."""

    world_size: int
    role: str
    max_restarts: int
    shared: Shared


class Agent(SimpleElasticAgent):
    """Starts, watches and stops the ranks of one attempt after the other, as `lead` tells it."""

    attempt: int
    """Number of the attempt that runs, or ran last."""
    exits: dict[int, Exit]
    """How ranks of this attempt ended, by rank; those that we ended are not among them."""

    def __init__(self, ranks: Ranks, spawner: Spawner, lead: Callable[["Agent"], bool]) -> None:
        self._stores = FreshStore(ranks.shared.elastic_id)
        super().__init__(
            WorkerSpec(
                role=ranks.role,
                local_world_size=ranks.world_size,
                rdzv_handler=self._stores,
                entrypoint="harness run",
                max_restarts=ranks.max_restarts,
            )
        )
        self.ranks = ranks
        self.spawner = spawner
        self.attempt = 0
        self.exits = {}
        self._lead = lead
        self._first = 0
        """Attempt with which this launch began."""
        self._starts = 0

    def start(self, attempt: int) -> None:
        """Start every rank of a new attempt. Raises `StartError`, and none is started then."""
        self.attempt, self.exits = attempt, {}
        self._first = self._first or attempt
        self._initialize_workers(self._worker_group)
        self._starts += 1

    def do_without_saver(self) -> None:
        """Ranks that start from now on save by themselves."""
        self.ranks = replace(self.ranks, shared=replace(self.ranks.shared, saver=""))

    def take_exits(self) -> None:
        """Learn of the ranks that ended. Raises `ForkServerLostError` if that took them along."""
        for ended in self.spawner.ended():
            rank = rank_of(ended.name)
            self.exits[rank] = witness.exit_of(self.run_dir, self.attempt, rank, ended)

    def judgement(self) -> Judgement:
        """What the exits so far mean."""
        joined = witness.any_joined(self.run_dir, self.attempt, self.ranks.world_size)
        return judge(self.exits, self.ranks.world_size, joined=joined)

    def alive(self) -> list[int]:
        """Ranks that are not known to have ended."""
        return [rank for rank in range(self.ranks.world_size) if rank not in self.exits]

    def pids(self) -> dict[int, int]:
        """Processes of the ranks that are not known to have ended."""
        workers = self._worker_group.workers
        return {rank: workers[rank].id for rank in self.alive()}

    def signal(self, number: int) -> None:
        """Send a signal to every rank that lives."""
        self.spawner.signal(number, [name_of(rank) for rank in self.alive()], forced=True)

    def wake(self, ranks: Sequence[int]) -> list[int]:
        """Have those of `ranks` go on that live and were stopped by a signal; gives which."""
        pids = self.pids()
        stopped = [
            rank for rank in ranks if rank in pids and processes.state(pids[rank]) == STOPPED
        ]
        if stopped:
            self.spawner.signal(signal.SIGCONT, [name_of(rank) for rank in stopped], forced=True)
        return stopped

    def request_drain(self) -> None:
        """Ask the ranks, through their store, to save at the next step boundary and leave."""
        assert self._stores.store is not None
        self._stores.store.set(REQUEST, "the launcher")

    def drain_request(self) -> str:
        """Who was told to leave, if any rank was; empty if none."""
        store = self._stores.store
        return store.get(REQUEST).decode() if store is not None and store.check([REQUEST]) else ""

    def stop(self) -> None:
        """Kill every process of the attempt, at once, with all of its children."""
        self._stop_workers(self._worker_group)

    def kill_orphans(self, spared: Container[int]) -> None:
        """Kill every child of this process but those in `spared`. Raises `UnkillableError`."""
        if left := processes.kill_children(spared, STOP_TIMEOUT_S):
            raise UnkillableError(self.attempt, left, STOP_TIMEOUT_S)

    @property
    def run_dir(self) -> RunDir:
        """Where the run is kept."""
        return self.ranks.shared.run_dir

    # ── what torch's agent asks of a subclass ───────────────────────────────────────────────

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:  # noqa: ARG002
        finished = self._lead(self)
        state = WorkerState.SUCCEEDED if finished else WorkerState.STOPPED
        return RunResult(state, return_values=dict.fromkeys(range(self.ranks.world_size)))

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Without torch's records, which look up the host's name: seconds, where DNS is slow."""
        self._rendezvous(worker_group)
        for rank, pid in self._start_workers(worker_group).items():
            worker_group.workers[rank].id = pid
        worker_group.state = WorkerState.HEALTHY

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        try:
            self.run_dir.log(self.attempt, 0, "out").parent.mkdir(parents=True, exist_ok=True)
            self.run_dir.incident(self.attempt).mkdir(parents=True, exist_ok=True)
            folder = str(Path.cwd())  # which somebody may have deleted
        except OSError as error:
            raise StartError(
                f"attempt {self.attempt} cannot be started: {error}; once that is mended, launch it"
                " again to go on"
            ) from error
        assert self._stores.store is not None
        port = self._stores.store.port
        orders = [self._order(worker.global_rank, port, folder) for worker in worker_group.workers]
        return {rank_of(name): pid for name, pid in self.spawner.start(orders).items()}

    def _order(self, rank: int, port: int, folder: str) -> Order:
        place = Place(
            rank=rank,
            world_size=self.ranks.world_size,
            role=self.ranks.role,
            attempt=self.attempt,
            first_attempt=self._first,
            restarts=self._starts,
            max_restarts=self.ranks.max_restarts,
            port=port,
        )
        return Order(
            name=name_of(rank),
            environment=environment(place, self.ranks.shared),
            directory=folder,
            output=str(self.run_dir.log(self.attempt, rank, "out")),
            errors=str(self.run_dir.log(self.attempt, rank, "err")),
            stacks=str(self.run_dir.stacks(self.attempt, rank)),
        )

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        if self.spawner.stop(STOP_TIMEOUT_S) is None:
            left = processes.children(self.spawner.pid)
            raise UnkillableError(self.attempt, left, STOP_TIMEOUT_S)
        worker_group.state = WorkerState.STOPPED

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:  # noqa: ARG002
        self.take_exits()
        match self.judgement():
            case Going():
                return RunResult(WorkerState.HEALTHY)
            case Finished():
                return RunResult(WorkerState.SUCCEEDED)
            case Drained() | Failed():
                return RunResult(WorkerState.FAILED)

    def _shutdown(self, death_sig: Any = None, timeout: int = 30) -> None:  # noqa: ARG002
        """End the fork server, which no rank outlives, and the store."""
        self.spawner.close()
        self._stores.shutdown()

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:  # noqa: ARG002
        """Our own log has every duration; see `_initialize_workers`."""
        yield

    def _record_worker_events(self, result: RunResult) -> None:
        """Our own log has every exit; see `_initialize_workers`."""


def name_of(rank: int) -> str:
    """Name of a rank's process."""
    return f"rank-{rank}"


def rank_of(name: str) -> int:
    """The rank whose process is called so."""
    return int(name.removeprefix("rank-"))
