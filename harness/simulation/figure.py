"""Draws a study: goodput against the interval, with what the runs can and cannot tell apart."""

from pathlib import Path
from typing import TYPE_CHECKING

from harness.simulation.asked import Asked
from harness.simulation.study import Study
from harness.simulation.tell import exact, first_order
from harness.theory import young_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMS = (".svg", ".png", ".pdf")


def check(path: Path) -> None:
    """Raise `ValueError` where no figure could be written to `path`, before anything is simulated."""
    if path.suffix not in FORMS:
        raise ValueError(f"--figure {path} has no known ending; known: {', '.join(FORMS)}")
    try:
        import matplotlib as _  # noqa: F401  # its presence is the question
    except ImportError as error:
        raise ValueError(
            "--figure needs matplotlib: pip install 'resilience-harness[figures]'"
        ) from error


def draw(asked: Asked, of: Study, path: Path) -> None:
    """Write the figure; the same study makes the same file."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "harness", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _runs(axes, asked, of)
        if asked.mtbf_s is not None:
            _forms(axes, asked)
        _axes(axes, asked, of)
        dated = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, metadata=dated)


def _runs(axes: "Axes", asked: Asked, of: Study) -> None:
    minutes = [point.interval_s / 60 for point in of.points]
    runs = f"{len(asked.seeds)} × {asked.horizon_s / 86_400:g} days"
    low = [100 * point.low for point in of.points]
    high = [100 * point.high for point in of.points]
    axes.fill_between(minutes, low, high, color="C0", alpha=0.18, lw=0, label="9 in 10 runs")
    mean = [100 * point.mean for point in of.points]
    axes.plot(minutes, mean, "o-", color="C0", ms=4, label=f"simulated, mean of {runs}")
    alike = [(point.interval_s / 60, 100 * point.mean) for point in of.alike]
    axes.plot(
        *zip(*alike, strict=True),
        "o",
        color="C2",
        ms=9,
        mfc="none",
        mew=2,
        label="cannot be told from the best",
    )


def _forms(axes: "Axes", asked: Asked) -> None:
    assert asked.mtbf_s is not None
    first, last = asked.intervals_s[0], asked.intervals_s[-1]
    steps = [first * (last / first) ** (place / 200) for place in range(201)]
    minutes = [interval_s / 60 for interval_s in steps]
    curve = [100 * (exact(asked, interval_s) or 0) for interval_s in steps]
    rough = [100 * (first_order(asked, interval_s) or 0) for interval_s in steps]
    name = "exact form" if asked.is_textbook else "exact form of the textbook job"
    axes.plot(minutes, curve, color="C1", lw=1.5, label=name)
    axes.plot(minutes, rough, "--", color="C3", lw=1.2, label="first order, 1/(1 + overhead)")
    young = young_s(asked.save_s, asked.mtbf_s) / 60
    axes.axvline(young, color="0.4", lw=1, ls=":", label=f"Young √(2δM) = {young:.3g} min")


def _axes(axes: "Axes", asked: Asked, of: Study) -> None:
    axes.set_xscale("log")
    ticks = [2.0**power for power in range(-8, 20)]
    shown = [t for t in ticks if asked.intervals_s[0] <= 60 * t <= asked.intervals_s[-1]]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
    axes.set_xlabel("work between two saves (minutes)")
    axes.set_ylabel("goodput (%)")
    best = f"best {of.best.interval_s / 60:.3g} min, {of.best.mean:.1%}"
    axes.set_title(f"Goodput against the interval between saves: {best}", loc="left")
    axes.grid(visible=True, alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
