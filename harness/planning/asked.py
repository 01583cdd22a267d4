"""What `harness plan` is asked for: the job at each size, and which input is missing for one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.fleet import FailureRate, Level, job_mtbf_s
from harness.planner import FastTier, Job
from harness.planning.levers import SERVED, Means, Memory, Place, Stragglers
from harness.quantities import BYTES, checked, duration_s, quantity

MOST_GPUS = 10**9


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something fails, and what it is that does."""

    level: Level
    mtbf_s: float
    """The estimate; the lower bound where no failure was seen."""
    per_node: int = 8
    known: FailureRate | None = None
    """What it was counted from, at the same level; None where it was given."""

    @property
    def is_bound(self) -> bool:
        """No failure was seen: the true mean is longer than this, with 95 % confidence."""
        return self.known is not None and self.known.failures == 0

    def job_s(self, gpus: int, mtbf_s: float | None = None) -> float:
        """The mean time between failures of a job on `gpus`; of another mean where one is given."""
        mean_s = self.mtbf_s if mtbf_s is None else mtbf_s
        return job_mtbf_s(mean_s, self.level, gpus, self.per_node)

    def within_s(self, gpus: int) -> tuple[float, float | None] | None:
        """What the job's mean lies between: 5 % are beyond either bound; None where it was given."""
        if self.known is None:
            return None
        most_s = self.known.mtbf_at_most_s()
        least_s = self.job_s(gpus, self.known.mtbf_at_least_s())
        return least_s, None if most_s is None else self.job_s(gpus, most_s)


@dataclass(frozen=True, slots=True)
class PerSize:
    """An amount that is one for all, or one for each GPU."""

    amount: float
    per_gpu: bool

    def at(self, gpus: int) -> float:
        """The amount of a job on `gpus`."""
        return self.amount * gpus if self.per_gpu else self.amount


@dataclass(frozen=True, slots=True)
class Training:
    """What has to be computed, for the calendar."""

    flops: float
    flops_per_gpu_s: float

    def duration_s(self, gpus: int) -> float:
        """Without any interruption."""
        return self.flops / (self.flops_per_gpu_s * gpus)


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that was said; None is what was not."""

    sizes: Sequence[int]
    rate: Rate | None
    save_s: float | None
    commit_s: float | None
    restart_s: float | None
    state: PerSize | None
    storage: PerSize | None
    burst: PerSize | None
    place: Place | None
    share: float | None
    memory: Memory
    stragglers: Stragglers | None
    price: float | None
    target: float | None
    training: Training | None
    horizon_s: float

    def missing(self) -> list[str]:
        """The flags without which there is no goodput."""
        needed = {
            "--mtbf-per-gpu (or --mtbf-per-node, --mtbf-job)": self.rate,
            "--save (or --state and --storage)": self.blocks_s(self.sizes[0]),
            "--restart": self.restart_s,
        }
        return [flag for flag, value in needed.items() if value is None]

    def job(self, gpus: int) -> Job:
        """The job on `gpus`. Raises `ValueError` for one that could never end a save."""
        assert self.rate is not None
        assert self.restart_s is not None
        mtbf_s, save_s = self.rate.job_s(gpus), self.blocks_s(gpus)
        assert save_s is not None
        if mtbf_s <= save_s:
            raise ValueError(
                f"on {gpus:,} GPUs the job fails every {mtbf_s:.3g} s, which is no longer than a save"
                f" ({save_s:.3g} s): hardly a save would ever end; give other --gpus, or faster saves"
            )
        slowdown = 1.0 if self.stragglers is None else self.stragglers.factor(gpus)
        bare = Job(mtbf_s, save_s, self.restart_s, self._commits_s(gpus), slowdown=slowdown)
        return bare if self.place is None else self._with_memory(bare)

    def blocks_s(self, gpus: int) -> float | None:
        """How long a save blocks training: as said, or until everything is written; None if unknown."""
        return self._writes_s(gpus) if self.save_s is None else self.save_s

    def means(self, gpus: int) -> Means:
        """What levers need beside the job."""
        ratio = None
        if self.burst is not None and self.storage is not None:
            ratio = self.burst.at(gpus) / self.storage.at(gpus)
        return Means(
            devices=gpus,
            memory=self.memory,
            writes_block=self.save_s is None,
            storage_known=self.state is not None and self.storage is not None,
            burst_ratio=ratio,
            stragglers=self.stragglers,
        )

    def _writes_s(self, gpus: int) -> float | None:
        if self.state is None or self.storage is None:
            return None
        return self.state.at(gpus) / self.storage.at(gpus)

    def _commits_s(self, gpus: int) -> float:
        """From the end of the stall until the save is durable."""
        written_s = self._writes_s(gpus)
        if self.save_s is None:
            return 0.0
        return self.commit_s or 0.0 if written_s is None else max(0.0, written_s - self.save_s)

    def _with_memory(self, job: Job) -> Job:
        assert self.place is not None
        tier = self.memory.tier(self.place, job)
        share = SERVED[self.place] if self.share is None else self.share
        fast = FastTier(tier.save_s, tier.restart_s, share)
        return Job(job.mtbf_s, job.save_s, job.restart_s, job.commit_s, fast, job.slowdown)


# ── as people type it ───────────────────────────────────────────────────────────────────────────


def sizes(text: str) -> list[int]:
    """`16384`, `1024,4096`, or `16384..100000`: from there on doubled, and the last one. Raises `ValueError`."""
    first, between, last = text.partition("..")
    if not between:
        return sorted({_gpus(part) for part in text.split(",")})
    size, most = _gpus(first), _gpus(last)
    if size > most:
        raise ValueError(f"--gpus {text!r} runs backwards: write {last}..{first}")
    ladder = []
    while size < most:
        ladder.append(size)
        size *= 2
    return [*ladder, most]


def _gpus(text: str) -> int:
    try:
        count = int(text.replace("_", ""))
    except ValueError:
        form = "16384, 1024,4096 or 16384..100000"
        raise ValueError(f"--gpus {text!r} is not a number of GPUs: write {form}") from None
    checked("--gpus", count, at_least=1, at_most=MOST_GPUS)
    return count


def size_of(flag: str, text: str, example: str) -> PerSize:
    """`4GB/gpu`, or of the whole job `65TB`."""
    return _per_size(flag, text, BYTES, "", example)


def speed_of(flag: str, text: str, example: str) -> PerSize:
    """`2TB/s`, or for each GPU `120MB/s/gpu`."""
    return _per_size(flag, text, BYTES, "/s", example)


def _per_size(flag: str, text: str, units: Mapping[str, float], per: str, example: str) -> PerSize:
    whole = {f"{name}{per}": value for name, value in units.items()}
    per_gpu = text.strip().endswith("/gpu")
    amount = quantity(
        text.strip().removesuffix("/gpu") if per_gpu else text, whole, f"{flag} {example}"
    )
    return PerSize(checked(flag, amount, above=0), per_gpu)


def training(flops: str, per_gpu: str) -> Training | None:
    """What is to be computed, and how fast; None where neither is said. Raises `ValueError` for one alone."""
    if not flops and not per_gpu:
        return None
    if not flops or not per_gpu:
        raise ValueError("--flops and --per-gpu go together: 3.8e25 at 400TFLOP/s on each GPU")
    rates = {f"{p}FLOP/s": 10.0**n for p, n in (("G", 9), ("T", 12), ("P", 15))}
    totals = {"": 1.0, "FLOP": 1.0, "FLOPs": 1.0}
    return Training(
        checked("--flops", quantity(flops, totals, "--flops 3.8e25"), above=0),
        checked("--per-gpu", quantity(per_gpu, rates, "--per-gpu 400TFLOP/s"), above=0),
    )


def price(text: str) -> float | None:
    """Of an hour of one GPU, in any currency."""
    if not text:
        return None
    units = {"/gpu-hour": 1.0, "/gpu-h": 1.0}
    return checked("--price", quantity(text, units, "--price 2.5/gpu-hour"), at_least=0)


def counted(text: str) -> FailureRate:
    """`3/100h`: failures, and the time in which they were counted. Raises `ValueError`."""
    failures, slash, time = text.partition("/")
    if not slash or not failures.strip().isdecimal():
        raise ValueError(f"--seen {text!r} is not failures/time: write for example 3/100h")
    return FailureRate(int(failures), checked("--seen", duration_s(time), above=0))


def stragglers(text: str) -> Stragglers | None:
    """`noise[,slow-share,slowdown]`; None for no text. Raises `ValueError`."""
    if not text:
        return None
    try:
        figures = [float(part) for part in text.split(",")]
    except ValueError:
        figures = []
    if len(figures) not in (1, 3):
        raise ValueError(f"--stragglers {text!r} is not noise[,slow-share,slowdown]: 0.02,0.001,2")
    return Stragglers(*figures)
