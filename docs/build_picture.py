"""Draws a run's report as `docs/report.svg`: `python docs/build_picture.py runs/demo`."""

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.report import rendered, report
from harness.rundir import RunDir

WIDTH = 84
PICTURE = Path(__file__).with_name("report.svg")


def main(run: str) -> None:
    """Write the picture."""
    run_dir = RunDir.at(run)
    told = rendered(report(run_dir), run_dir.path.name, width=WIDTH, color=True)
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text.from_ansi(told))
    title = f"harness report {run}"
    drawn = console.export_svg(title=title, font_aspect_ratio=0.61)
    # No fonts from the network: whoever looks has a monospaced one.
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1])
