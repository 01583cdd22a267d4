"""What a report says of the health of training: the last readings, and everything that was found."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.report.spread import counted, number
from harness.signals.blocks import ALL
from harness.signals.findings import Findings

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
        last = findings.nonfinite[-1]
        whose = "" if last.rank is None else f" of rank {last.rank}"
        told = f"NaN or Inf in {counted(findings.nonfinite_steps, 'step')}"
        where = f"the last in the {last.place}{whose} at step {last.step}"
        yield Line(f"{told}, {where}: {last.reaction}", is_bad=True)


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
    }
