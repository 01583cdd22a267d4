"""What a report says of the health of training: the last readings, and everything that was found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.events import LossSpiked, Place
from harness.report.spread import counted, number
from harness.signals.blocks import ALL
from harness.signals.findings import Comparisons, Findings, Nonfinite

_FAR = 2
"""How many blocks are named whose weights move most."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line on a screen."""

    text: str
    is_bad: bool = False


def lines(findings: Findings) -> Iterator[Line]:
    """What there is to say; nothing where nothing was read and nothing found."""
    if findings.grad_norm is not None:
        yield Line(f"gradient norm: {findings.grad_norm:.4g}{_clipping(findings)}")
    if ALL in findings.update_to_weight:
        yield Line(_ratios(findings))
    if findings.nonfinite_steps:
        last = _origin(findings.nonfinite)
        whose = "" if last.rank is None else f" of rank {last.rank}"
        told = f"NaN or Inf in {counted(findings.nonfinite_steps, 'step')}"
        where = f"the last in the {last.place}{whose} at step {last.step}"
        yield Line(f"{told}, {where}: {last.reaction}", is_bad=True)
    if findings.last_spike is not None:
        yield Line(_spikes(findings.spikes, findings.last_spike), is_bad=True)
    yield from _compared("weights", "comparison", findings.replicas)
    yield from _compared("recomputed gradients", "audit", findings.audits)


def _origin(found: Sequence[Nonfinite]) -> Nonfinite:
    """Of the last step that had one: a rank's loss, where one told of it, before the gradient of all."""
    last = found[-1]
    of_step = [it for it in found if (it.attempt, it.step) == (last.attempt, last.step)]
    return next((it for it in of_step if it.place is Place.LOSS), last)


def _spikes(count: int, last: LossSpiked) -> str:
    return (
        f"the loss spiked {counted(count, 'time')}, the last at step {last.step}: {last.loss:.4f}"
        f" after a median of {last.usual:.4f}"
    )


def _compared(what: str, noun: str, of: Comparisons) -> Iterator[Line]:
    if not of.unequal:
        if of.made:
            yield Line(f"{what} equal on all ranks in {counted(of.made, noun)}")
        return
    last = of.mismatches[-1]
    ranks = ", ".join(map(str, last.ranks))
    whose = f"rank {ranks} stood alone" if ranks else "no majority says which"
    told = f"{what} differed between ranks in {of.unequal} of {counted(of.made, noun)}"
    yield Line(f"{told}, the last at step {last.step}: {whose}", is_bad=True)


def _clipping(findings: Findings) -> str:
    if findings.clip_norm is None:
        return ""
    share = findings.clipped / findings.clips if findings.clips else 0.0
    return f" before clipping to {findings.clip_norm:g}; {share:.1%} of steps were clipped"


def _ratios(findings: Findings) -> str:
    ratios = dict(findings.update_to_weight)
    text = f"update to weight: {ratios.pop(ALL):.2e}"
    most = sorted(ratios, key=lambda name: -ratios[name])[:_FAR]
    told = ", ".join(f"{name} {ratios[name]:.2e}" for name in most)
    return f"{text} (most in {told})" if told else text


def health(findings: Findings) -> dict[str, Any]:
    """The same for programs."""
    norm, line = findings.grad_norm, findings.clip_norm
    return {
        "step": findings.health_step,
        "grad_norm": None if norm is None else number(norm),
        "clip_norm": None if line is None else number(line),
        "clips": findings.clips,
        "clipped": findings.clipped,
        "update_to_weight": {
            name: number(ratio) for name, ratio in findings.update_to_weight.items()
        },
        "nonfinite_steps": findings.nonfinite_steps,
        "nonfinite": [
            {
                "step": one.step,
                "attempt": one.attempt,
                "rank": one.rank,
                "place": one.place.value,
                "reaction": one.reaction.value,
            }
            for one in findings.nonfinite
        ],
        "loss_spikes": findings.spikes,
        "last_loss_spike": _spike(findings.last_spike),
        "replicas": _comparisons(findings.replicas),
        "audits": _comparisons(findings.audits),
    }


def _spike(last: LossSpiked | None) -> dict[str, Any] | None:
    if last is None:
        return None
    return {"step": last.step, "loss": number(last.loss), "usual": number(last.usual)}


def _comparisons(of: Comparisons) -> dict[str, Any]:
    return {
        "made": of.made,
        "unequal": of.unequal,
        "mismatches": [
            {
                "step": one.step,
                "attempt": one.attempt,
                "groups": list(one.groups),
                "ranks": list(one.ranks),
            }
            for one in of.mismatches
        ],
    }
