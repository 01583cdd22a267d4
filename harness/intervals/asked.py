"""What people may ask of a tier: saves so many steps or seconds apart, as it turns out best, or none.

A bare number is never guessed to be some unit.
"""

import re
from dataclasses import dataclass

from harness.events import Tier
from harness.quantities import duration_s

FORMS = "'20 steps', '30s', 'auto', 'auto 10s..10min' or 'off'"
"""Everything that can be asked for, by example."""
_LONGEST = 80
"""No interval takes more characters; what a damaged file holds is not repeated whole."""
_STEPS = re.compile(r"(\d{1,18}) ?steps?")
_AUTO = re.compile(r"auto(?: (.*)\.\.(.*))?")


@dataclass(frozen=True, slots=True)
class Steps:
    """So many steps."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} step{'s' * (self.count != 1)}"


@dataclass(frozen=True, slots=True)
class Seconds:
    """So many seconds."""

    count: float

    def __str__(self) -> str:
        return f"{self.count:g}s"


Length = Steps | Seconds
"""A stretch of training."""


@dataclass(frozen=True, slots=True)
class Auto:
    """Whatever turns out best between two bounds; where they contradict each other, the upper one holds."""

    least: Length
    most: Length


@dataclass(frozen=True, slots=True)
class Off:
    """Never, but for the last state of a run."""


Asked = Steps | Seconds | Auto | Off


def in_steps(length: Length, step_s: float) -> float:
    """`length` in steps that take `step_s` seconds."""
    return length.count / step_s if isinstance(length, Seconds) else length.count


LEAST: Length = Steps(1)
MOST: dict[Tier, Length] = {Tier.MEMORY: Seconds(600.0), Tier.STORAGE: Seconds(1800.0)}
"""What is never exceeded where nobody says otherwise: a belief about failures may be wrong."""


def parse(text: str, tier: Tier) -> Asked:
    """What `text` asks of `tier`. Raises `ValueError` that names the rule and the way out."""
    words = " ".join(text.split())
    if len(words) > _LONGEST:
        raise ValueError(f"{words[:_LONGEST]!r}… is no interval: write {FORMS}")
    if words == "off":
        return Off()
    if (bounds := _AUTO.fullmatch(words)) is not None:
        least = _length(bounds[1] or "") if (bounds[1] or "").strip() else LEAST
        most = _length(bounds[2] or "") if (bounds[2] or "").strip() else MOST[tier]
        if isinstance(least, type(most)) and least.count > most.count:
            raise ValueError(
                f"{text!r} has bounds the wrong way round: write the smaller one first"
            )
        return Auto(least, most)
    return _length(words)


def _length(text: str) -> Length:
    words = text.strip()
    steps = _STEPS.fullmatch(words)
    if words == "0" or (steps is not None and int(steps[1]) == 0):
        raise ValueError(f"{text!r} is no interval: write 'off' for none")
    if steps is not None:
        return Steps(int(steps[1]))
    try:
        length_s = duration_s(words)
    except ValueError as error:
        raise ValueError(f"{error}; or write {FORMS}") from None
    if not 0 < length_s < 1e9:
        raise ValueError(f"{text!r} is no interval: write 'off' for none, or a time above 0")
    return Seconds(length_s)
