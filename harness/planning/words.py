"""Durations, tables and counts in the words of a plan."""

from harness.fleet import FailureRate


def duration(duration_s: float) -> str:
    """Three figures and the unit that suits."""
    for unit, unit_s, least in (("years", 31_557_600.0, 1.0), ("d", 86_400.0, 10.0)):
        if duration_s >= least * unit_s:
            return f"{duration_s / unit_s:,.3g} {unit}" if unit == "d" else _years(duration_s)
    for unit, unit_s, least in (("h", 3_600.0, 1.0), ("min", 60.0, 1.0), ("s", 1.0, 1.0)):
        if duration_s >= least * unit_s:
            return f"{duration_s / unit_s:.3g} {unit}"
    return f"{1000 * duration_s:.3g} ms"


def _years(duration_s: float) -> str:
    years = duration_s / 31_557_600.0
    return f"{years:,.0f} years" if years >= 100 else f"{years:.3g} years"


def table(rows: list[list[str]], left: int = 1) -> list[str]:
    """Rows of equal length in columns: the first `left` to the left, the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


FEW = 30
"""Failures below which a mean says next to nothing without its bounds."""


def counted_rate(known: FailureRate, of: str) -> str:
    """What a count says of a mean time between failures: bounds, and no more."""
    what = f"{known.failures} failure{'' if known.failures == 1 else 's'}"
    seen = f"{what} in {duration(known.up_s)} of {of}"
    least_s, most_s = known.mtbf_at_least_s(), known.mtbf_at_most_s()
    if most_s is None or known.mtbf_s is None:
        return f"{seen}: the MTBF is over {duration(least_s)} (95 %), and no more is known of it"
    bounds = f"between {duration(least_s)} and {duration(most_s)} (90 %)"
    if known.failures >= FEW:
        return f"{seen}: an MTBF of {_quotient(known.mtbf_s)}, {bounds}"
    return f"{seen} are not an MTBF of {_quotient(known.mtbf_s)}: it is {bounds}"


def _quotient(mtbf_s: float) -> str:
    """With a decimal, as people would write it."""
    if mtbf_s < 60:
        return duration(mtbf_s)
    return f"{mtbf_s / 60:.1f} minutes" if mtbf_s < 3_600 else f"{mtbf_s / 3_600:,.1f} hours"
