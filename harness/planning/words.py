"""Durations and amounts in the words of a plan."""


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
