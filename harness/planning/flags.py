"""The flags of `harness plan`, with their help, and what they and the measured runs ask together."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.commands import Whole
from harness.fleet import Level
from harness.planning import asked as asking
from harness.planning.asked import Asked, Rate
from harness.planning.levers import Memory, Place
from harness.planning.measured import Seen
from harness.planning.presets import PRESETS, Known
from harness.quantities import checked, duration_s

Text = Annotated[str, Parameter(allow_leading_hyphen=True)]
"""A quantity may be mistyped as a negative one; it is told so like any other mistake."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What people type."""

    preset: str = ""
    """Published figures: llama3, 100k, rsc-1, rsc-2, 8-gpu-node; other flags override them."""
    from_: Annotated[list[Path], Parameter(name="--from", consume_multiple=True, negative="")] = (
        field(default_factory=list)
    )
    """Run directories: plan with what was measured there; other flags override it."""
    gpus: Text = ""
    """Sizes: 16384, or 1024,4096, or 16384..100000 (doubled from the first on)."""
    mtbf_per_gpu: Text = ""
    """Mean time between failures of ONE GPU: 50677h. Give exactly one of this and the next three."""
    mtbf_per_node: Text = ""
    """… of one node: 154d."""
    mtbf_job: Text = ""
    """… of the whole job, at the one size given: 3.1h."""
    seen: Text = ""
    """Failures of the whole job that were counted in a time of training: 3/100h."""
    mtbf: Text = ""
    """Refused: say of what, by one of the four above."""
    gpus_per_node: Annotated[int, Whole] = 8
    """For a mean per node."""
    save: Text = ""
    """How long a save blocks training: 33s. Default: until --state is written to --storage."""
    state: Text = ""
    """Size of a checkpoint: 4GB/gpu, or 65TB in all."""
    storage: Text = ""
    """Sustained rate of the storage: 2TB/s for all, or 120MB/s/gpu."""
    burst: Text = ""
    """Its peak, in the same form: another lever."""
    restart: Text = ""
    """From a failure until training is back: 10min."""
    memory_tier: Text = ""
    """The job also saves to memory: node (its own) or peer (another node's)."""
    memory_save: Text = "3s"
    """How long a save to memory blocks training (the default is illustrative)."""
    memory_restart: Text = "2min"
    """A restart from memory (the default is illustrative)."""
    memory_share: float | None = None
    """Failures that the memory tier serves: 0.23 on the node, 0.8 on a peer, by Llama 3's causes."""
    stragglers: Text = ""
    """Unequal devices: noise[,slow-share,slowdown]: 0.02,0.0001,1.5."""
    price: Text = ""
    """Of a GPU: 2.5/gpu-hour."""
    target: float | None = None
    """A goodput: say what would have to be true for it."""
    flops: Text = ""
    """All that is to be computed: 3.8e25."""
    per_gpu: Text = ""
    """What a GPU computes: 400TFLOP/s."""
    days: float = 30.0
    """Length of the run whose spread is told."""
    json: Annotated[bool, Parameter(negative="")] = False
    """One JSON object instead of tables."""


NOTHING_ASKED = Flags()


def preset(flags: Flags) -> Known | None:
    """The published figures that were named, if any were. Raises `ValueError` for a name without any."""
    if flags.preset and flags.preset not in PRESETS:
        raise ValueError(f"unknown preset {flags.preset!r}; known: {', '.join(PRESETS)}")
    return PRESETS.get(flags.preset)


def asked(flags: Flags, seen: Seen | None = None) -> Asked:
    """What the flags ask. Raises `ValueError`, one line, for what cannot be."""
    flags = _filled(flags, preset(flags))
    if not flags.gpus and seen is None:
        raise ValueError("--gpus missing: how large is the job? 16384, or 16384..100000")
    _refuse_halves(flags)
    sizes = [seen.devices] if seen is not None and not flags.gpus else asking.sizes(flags.gpus)
    return Asked(
        sizes=sizes,
        rate=_rate(flags, sizes, seen),
        save_s=_save_s(flags, seen),
        commit_s=None if seen is None or flags.save else seen.commit_s,
        restart_s=_duration("--restart", flags.restart, None if seen is None else seen.restart_s),
        state=_state(flags, seen),
        storage=asking.speed_of("--storage", flags.storage, "2TB/s") if flags.storage else None,
        burst=asking.speed_of("--burst", flags.burst, "7TB/s") if flags.burst else None,
        place=_place(flags.memory_tier),
        share=flags.memory_share,
        memory=Memory(
            checked("--memory-save", duration_s(flags.memory_save), above=0),
            checked("--memory-restart", duration_s(flags.memory_restart), at_least=0),
        ),
        stragglers=asking.stragglers(flags.stragglers),
        price=asking.price(flags.price),
        target=None
        if flags.target is None
        else checked("--target", flags.target, above=0, at_most=1),
        training=asking.training(flags.flops, flags.per_gpu),
        horizon_s=86_400 * checked("--days", flags.days, above=0),
    )


def _refuse_halves(flags: Flags) -> None:
    """Raise `ValueError` for a flag that means nothing without another one."""
    if flags.memory_share is not None and not flags.memory_tier:
        raise ValueError("--memory-share without --memory-tier: say where it lies, node or peer")
    if flags.burst and not flags.storage:
        raise ValueError("--burst without --storage: a peak is compared with what is sustained")


def _filled(flags: Flags, known: Known | None) -> Flags:
    """The flags, and the preset's figures where they say nothing."""
    if known is None:
        return flags
    says_rate = any(_means(flags).values()) or flags.seen or flags.from_
    says_save = flags.save or (flags.state and flags.storage) or flags.from_
    return replace(
        flags,
        gpus=flags.gpus or ("" if flags.from_ else known.gpus),
        mtbf_per_gpu=flags.mtbf_per_gpu if says_rate else known.mtbf_per_gpu,
        mtbf_per_node=flags.mtbf_per_node if says_rate else known.mtbf_per_node,
        save=flags.save if says_save else known.save,
        restart=flags.restart or ("" if flags.from_ else known.restart),
    )


def _means(flags: Flags) -> dict[Level, str]:
    return {
        Level.DEVICE: flags.mtbf_per_gpu,
        Level.NODE: flags.mtbf_per_node,
        Level.JOB: flags.mtbf_job,
    }


_NAMES = {
    Level.DEVICE: "--mtbf-per-gpu",
    Level.NODE: "--mtbf-per-node",
    Level.JOB: "--mtbf-job",
}


def _rate(flags: Flags, sizes: list[int], seen: Seen | None) -> Rate | None:
    if flags.mtbf:
        raise ValueError(
            f"--mtbf {flags.mtbf} of what? Say --mtbf-per-gpu, --mtbf-per-node or --mtbf-job"
        )
    given = {level: text for level, text in _means(flags).items() if text}
    if len(given) + bool(flags.seen) > 1:
        names = [*(_NAMES[level] for level in given), *(["--seen"] if flags.seen else [])]
        raise ValueError(f"{' and '.join(names)} say two things of one rate: give one")
    if len(sizes) > 1 and (Level.JOB in given or flags.seen):
        raise ValueError(
            "--mtbf-job and --seen hold for one size, and --gpus has several: give --mtbf-per-gpu"
        )
    per_node = int(
        checked("--gpus-per-node", flags.gpus_per_node, at_least=1, at_most=asking.MOST_GPUS)
    )
    for level, text in given.items():
        return Rate(level, checked(_NAMES[level], duration_s(text), above=0), per_node)
    if flags.seen:
        known, level = asking.counted(flags.seen), Level.JOB
    elif seen is not None:
        known, level = seen.rate, Level.DEVICE
    else:
        return None
    return Rate(level, known.mtbf_s or known.mtbf_at_least_s(), per_node, known)


def _save_s(flags: Flags, seen: Seen | None) -> float | None:
    written = flags.state and flags.storage
    measured = None if seen is None or written else seen.save_s
    if measured is not None and not flags.save:
        return max(measured, 1e-9)
    return checked("--save", duration_s(flags.save), above=0) if flags.save else None


def _state(flags: Flags, seen: Seen | None) -> asking.PerSize | None:
    if flags.state:
        return asking.size_of("--state", flags.state, "4GB/gpu")
    if seen is not None and seen.state_bytes is not None:
        return asking.PerSize(seen.state_bytes, per_gpu=False)
    return None


def _duration(flag: str, text: str, otherwise: float | None) -> float | None:
    return checked(flag, duration_s(text), at_least=0) if text else otherwise


def _place(text: str) -> Place | None:
    if not text:
        return None
    if text not in list(Place):
        raise ValueError(f"unknown --memory-tier {text!r}; known: {', '.join(Place)}")
    return Place(text)
