"""What the docs say of the code is held against the code."""

import os
import re
import runpy
from pathlib import Path

from harness.rundir import RunDir

ROOT = Path(__file__).parent.parent
ROOMS = ("harness", "launch", "faultinject", "dashboards")


def test_whats_here_names_every_module_once():
    named = re.findall(
        r"`((?:harness|launch|faultinject|dashboards)/[\w/]+\.py)`", text("docs/whats-here.md")
    )
    modules = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert sorted(named) == sorted(modules)


def test_every_module_states_its_law():
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            assert path.read_text().startswith('"""'), path


def test_the_page_of_what_is_public_is_up_to_date():
    builder = runpy.run_path(str(ROOT / "docs" / "build_api.py"))
    assert text("docs/api.md") == builder["page"](), "run: python docs/build_api.py"


def test_prometheus_is_told_of_the_file_that_a_run_writes():
    config = ROOT / "dashboards" / "prometheus.yml"
    (named,) = re.findall(r"- (\S+\.json)", config.read_text())
    found = Path(os.path.normpath(config.parent / named))
    assert found == RunDir.at(ROOT / "runs" / "demo").exporter


def text(name: str) -> str:
    return (ROOT / name).read_text()
