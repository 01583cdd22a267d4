"""Whether every query parses, with values for the variables as a user's would be."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import promql_parser

from dashboards.checks.asked import filled, queries

RULES = Path(__file__).parent.parent / "prometheus"
VALUES = {
    "job_name": "gpt",
    "run_id": "gpt-1a2b3c4d",
    "__range": "3600s",
    "__rate_interval": "20s",
}


def mistakes() -> Sequence[str]:
    """What a parser has against them."""
    found = []
    for asked in queries():
        try:
            promql_parser.parse(filled(asked.expr, VALUES))
        except ValueError as error:
            found.append(f"{asked}: {error}\n{asked.expr}")
    return found


def rules() -> Sequence[str]:
    """What Prometheus has against the rules, where both are here."""
    files = sorted(str(path) for path in RULES.glob("*rules*.yml"))
    promtool = shutil.which("promtool")
    if promtool is None or not files:
        return []
    checked = subprocess.run(
        [promtool, "check", "rules", *files], capture_output=True, text=True, check=False
    )
    return [] if checked.returncode == 0 else [checked.stderr]
