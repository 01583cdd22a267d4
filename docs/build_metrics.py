"""Writes the table of docs/metrics.md from the one place that knows it: `python docs/build_metrics.py`."""

from pathlib import Path

from harness.metrics import FAMILIES, PREFIX

HERE = Path(__file__).parent
BEGIN = "| `harness_…` | kind | labels | meaning |\n|---|---|---|---|\n"


def table() -> str:
    """A row for each metric."""
    return BEGIN + "".join(
        f"| `{name.removeprefix(PREFIX)}` | {family.kind} | {', '.join(family.labels)} | {family.help} |\n"
        for name, family in FAMILIES.items()
    )


if __name__ == "__main__":
    page = HERE / "metrics.md"
    page.write_text(page.read_text().partition(BEGIN)[0] + table())
