"""Numbers with units, as people type them, and whether a number can be what it is said to be.

Inside, everything is seconds; a bare number is never guessed to be some unit.
"""

import math
import re
import sys
from collections.abc import Mapping

UNITS_S: Mapping[str, float] = {
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3_600.0,
    "d": 86_400.0,
    "y": 365.25 * 86_400.0,
}
"""Seconds in each unit of time that a duration may carry; a year has 365.25 days."""

BYTES: Mapping[str, float] = {
    **{f"{prefix}B": 1e3**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))},
    **{f"{prefix}iB": 2.0 ** (10 * power) for power, prefix in enumerate("KMGTP", 1)},
}
"""Bytes in each unit of size."""

_QUANTITY = re.compile(r"\s*([+-]?[\d_.]+(?:[eE][+-]?\d+)?)\s*(.*?)\s*")
_DURATION = re.compile(r"\s*([+-]?[\d_.]+(?:[eE][+-]?\d+)?)\s*([^\W\d_]*)\s*")


def duration_s(text: str) -> float:
    """Seconds of `33s`, `3.1 h`, `54d`. Raises `ValueError` for a missing or unknown unit."""
    matched = _DURATION.fullmatch(text)
    units = ", ".join(UNITS_S)
    try:
        number, unit = (float(matched[1]), matched[2]) if matched else (math.nan, "")
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{text!r} is not a duration: write a number and its unit, one of {units}")
    if not unit:
        raise ValueError(f"{text!r} has no unit: write for example {text.strip()}s; units: {units}")
    if unit not in UNITS_S:
        raise ValueError(f"unknown unit {unit!r} in {text!r}; known: {units}")
    return number * UNITS_S[unit]


def losses(text: str) -> list[float]:
    """The losses of `2.8,2.6,2.4`, the highest first: the order in which a run meets them. Raises `ValueError`."""
    try:
        found = {float(part) for part in text.split(",")}
    except ValueError:
        found = set()
    if not found or not all(math.isfinite(loss) for loss in found):
        raise ValueError(f"{text!r} is not a list of losses: write for example 2.8,2.6,2.4")
    return sorted(found, reverse=True)


def quantity(text: str, units: Mapping[str, float], example: str) -> float:
    """The number of `4GB/gpu`, times what its unit stands for. Raises `ValueError` for any other unit."""
    matched = _QUANTITY.fullmatch(text)
    try:
        number, unit = (float(matched[1]), matched[2]) if matched else (math.nan, "")
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{text!r} is not a number with a unit: write for example {example}")
    if unit not in units:
        known = ", ".join(name or "none" for name in units)
        kind = f"unknown unit {unit!r} in {text!r}" if unit else f"{text!r} has no unit"
        raise ValueError(f"{kind}: write for example {example}; units: {known}")
    return number * units[unit]


def checked(
    name: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> float:
    """`value`, if it is a finite number within the bounds. Raises `ValueError` if not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        unit = " in seconds" if name.endswith("_s") else ""
        raise ValueError(f"{name} = {value!r} is not a number{unit}: give a plain number")  # noqa: TRY004  # what people give is wrong, not the program
    if not abs(value) <= sys.float_info.max:  # a whole number may be larger than any float
        raise ValueError(f"{name} = {value!r} is not finite: give a plain number")
    if above is not None and not value > above:
        raise ValueError(f"{name} = {value!r} is not above {above}: give a larger one")
    if at_least is not None and not value >= at_least:
        raise ValueError(f"{name} = {value!r} is below {at_least}: give a larger one")
    if at_most is not None and not value <= at_most:
        raise ValueError(f"{name} = {value!r} is above {at_most}: give a smaller one")
    return value
