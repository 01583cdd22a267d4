"""What `harness simulate` is asked for: flags as people type them, read into costs, failures, options."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.quantities import UNITS_S, checked, duration_s
from harness.recovery import Stage
from harness.simulation import traces
from harness.simulation.failures import Failures, Instants, Lemons, Racks, Renewal
from harness.simulation.laws import Constant, Exponential, Law, LogNormal, Weibull
from harness.simulation.options import (
    Corruption,
    Exposure,
    FastTier,
    Maintenance,
    Options,
    Spares,
    Stragglers,
)
from harness.theory import best_interval_s


@dataclass(frozen=True, slots=True)
class Asked:
    """A job to simulate."""

    mtbf_s: float | None
    """None where failures come at given instants."""
    save_s: float
    restart_s: float
    horizon_s: float
    intervals_s: Sequence[float]
    seeds: Sequence[int]
    failures: Failures
    options: Options

    @property
    def is_textbook(self) -> bool:
        """Whether the exact form holds: exponential gaps and no option."""
        law = self.failures.gap if isinstance(self.failures, Renewal) else None
        return isinstance(law, Exponential) and self.options == Options()

    @property
    def ranks(self) -> int:
        """As far as the way to fail says: eight to a node."""
        return 8 * self.failures.nodes if isinstance(self.failures, Racks | Lemons) else 1


def intervals_s(text: str) -> list[float]:
    """Intervals of `2,4,8min` or `90s,14min`, in order: a number without a unit has the next one's."""
    parts = [part.strip() for part in text.split(",")]
    unit = ""
    read: list[float] = []
    for part in reversed(parts):
        bare = part.rstrip("".join({letter for name in UNITS_S for letter in name}))
        unit = part[len(bare) :] or unit
        read.append(checked("--tau", duration_s(bare + unit), above=0))
    return sorted(set(read))


def around_s(save_s: float, mtbf_s: float) -> list[float]:
    """Intervals from an eighth of the best one to eight times that, a quarter of a doubling apart."""
    best_s = best_interval_s(save_s, mtbf_s)
    return [best_s * 2 ** (place / 4) for place in range(-12, 13)]


def restart(text: str) -> tuple[float, Mapping[Stage, Law]]:
    """A restart as one duration, or in parts: `teardown=5s,init=2min,restore=4min`. Raises `ValueError`."""
    if "=" not in text:
        return checked("--restart", duration_s(text), at_least=0), {}
    known = [stage.value for stage in Stage if stage is not Stage.DETECT]
    stages: dict[Stage, Law] = {}
    for part in text.split(","):
        name, _, length = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise ValueError(f"unknown part {name!r} of a restart; known: {', '.join(known)}")
        stages[Stage(name)] = Constant(checked(f"--restart {name}", duration_s(length), at_least=0))
    return sum(law.mean_s for law in stages.values()), stages


def failures(
    mtbf_s: float | None, law: str, trace: Path | None, racks: str, lemons: str
) -> Failures:
    """How failures come. Raises `ValueError` for two ways at once, and for none."""
    ways = {"--trace": trace, "--racks": racks, "--lemons": lemons}
    given = [name for name, value in ways.items() if value] + ["--law"] * (law != "exponential")
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} say two things of how failures come: give one")
    if trace is not None:
        seen = traces.instants_s(trace)
        return Instants(seen) if mtbf_s is None else Renewal(traces.gaps(seen, mtbf_s))
    if racks:
        nodes, per_rack, node, rack = _fields(
            "--racks", racks, "nodes,per-rack,node-mtbf,rack-mtbf"
        )
        return Racks(_whole(nodes), _whole(per_rack), duration_s(node), duration_s(rack))
    if mtbf_s is None:
        raise ValueError("the mean time between failures is missing: give --mtbf, of the whole job")
    if lemons:
        nodes, share, worse, *after = _fields(
            "--lemons", lemons, "nodes,share,times-worse[,replaced-after]"
        )
        replaced = _whole(after[0]) if after else None
        return Lemons(_whole(nodes), mtbf_s, _number(share), _number(worse), replaced)
    return Renewal(gap(law, mtbf_s))


def mean_s(of: Failures) -> float | None:
    """Mean time between failures of the job at its start; None where there is none to tell."""
    match of:
        case Renewal():
            return of.gap.mean_s
        case Racks() | Lemons():
            return of.mtbf_s
        case _:
            return None


def gap(text: str, mean_s: float) -> Law:
    """A law of the gaps: `exponential`, `weibull:SHAPE`, `lognormal:CV`. Raises `ValueError`."""
    name, _, parameter = text.partition(":")
    known: dict[str, Callable[[float, float], Law]] = {"weibull": Weibull, "lognormal": LogNormal}
    if name == "exponential" and not parameter:
        return Exponential(mean_s)
    if name not in known or not parameter:
        raise ValueError(f"unknown law {text!r}; known: exponential, weibull:SHAPE, lognormal:CV")
    return known[name](mean_s, _number(parameter))


def options(
    *,
    stages: Mapping[Stage, Law],
    restart_s: float,
    restart_spread: float,
    detection: str,
    commit: str,
    in_restarts: bool,
    memory_tier: str,
    maintenance: str,
    stragglers: str,
    corruption: str,
    spares: str,
) -> Options:
    """Everything beyond the textbook."""
    if restart_spread:
        known = stages or {Stage.SPAWN: Constant(restart_s)}
        stages = {stage: LogNormal(law.mean_s, restart_spread) for stage, law in known.items()}
    return Options(
        exposure=Exposure.ALWAYS if in_restarts else Exposure.TRAINING,
        detection=Constant(duration_s(detection)),
        stages=stages,
        commit_s=duration_s(commit),
        fast=_fast(memory_tier) if memory_tier else None,
        maintenance=_maintenance(maintenance) if maintenance else None,
        stragglers=_stragglers(stragglers) if stragglers else None,
        corruption=_corruption(corruption) if corruption else None,
        spares=_spares(spares) if spares else None,
    )


def _fast(text: str) -> FastTier:
    interval, save, back, share = _fields("--memory-tier", text, "interval,save,restart,share")
    return FastTier(duration_s(interval), duration_s(save), duration_s(back), _number(share))


def _maintenance(text: str) -> Maintenance:
    every, down = _fields("--maintenance", text, "every,down")
    return Maintenance(duration_s(every), duration_s(down))


def _stragglers(text: str) -> Stragglers:
    form = "devices,noise[,slow-share,slowdown]"
    devices, noise, *slow = _fields("--stragglers", text, form)
    if len(slow) == 1:
        raise ValueError(f"--stragglers {text!r} is not {form}")
    share, slowdown = (_number(one) for one in slow or ("0", "1"))
    return Stragglers(_whole(devices), _number(noise), share, slowdown)


def _corruption(text: str) -> Corruption:
    every, lag = _fields("--corruption", text, "mean-gap,mean-lag")
    return Corruption(Exponential(duration_s(every)), Exponential(duration_s(lag)))


def _spares(text: str) -> Spares:
    count, repair = _fields("--spares", text, "count,mean-repair")
    return Spares(_whole(count), Exponential(duration_s(repair)))


def _fields(flag: str, text: str, form: str) -> list[str]:
    """The values of a flag that takes several, as many as `form` has names; those in [] may be left out."""
    parts = [part.strip() for part in text.split(",")]
    names = form.replace("[", "").replace("]", "").split(",")
    least = len(form.partition("[")[0].split(","))
    if not least <= len(parts) <= len(names):
        raise ValueError(f"{flag} {text!r} is not {form}")
    return parts


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a number: write for example 0.8")
    return number


def _whole(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number: write for example 64") from None
