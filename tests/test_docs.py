"""What the docs say of the code is held against the code."""

import os
import re
import runpy
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness import cli
from harness.points import Point
from harness.rundir import RunDir
from harness.settings import DEFAULTS
from launch.flags import make_parser

ROOT = Path(__file__).parent.parent
ROOMS = ("harness", "launch", "faultinject", "dashboards")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMAND = re.compile(r"harness ((?:(?:faults|checkpoint) )?[a-z-]+)\b([^`\n]*)")


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


def test_every_link_of_a_page_leads_to_what_is_there():
    links = [
        (page, *link.partition("#")[::2])
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if not link.startswith("http")
    ]
    assert [link for link in links if not leads(*link)] == []
    assert (ROOT / "README.md", "docs/planning.md", "") in links


def test_every_file_that_a_page_names_is_there():
    rooms = "|".join([*ROOMS, "examples", "benchmarks", "tests", "docs"])
    named = [
        (page.name, name)
        for page in PAGES
        for name in re.findall(rf"`((?:{rooms})/[\w./-]*)`", page.read_text())
    ]
    assert [name for name in named if not (ROOT / name[1]).exists()] == []


def test_every_flag_that_a_page_gives_a_command_is_one_of_its_flags(capsys):
    given = {
        (command, flag)
        for page in PAGES
        for command, rest in COMMAND.findall(page.read_text().replace("\\\n", " "))
        for flag in FLAG.findall(re.split(r"\s#|;|\.py\b", rest)[0])
    }
    known = {command: flags(command, capsys) for command, _ in given}
    assert {(command, flag) for command, flag in given if flag not in known[command]} == set()
    assert ("run", "--faults") in given
    assert ("checkpoint import", "--script") in given


def test_every_default_that_a_page_gives_is_the_default():
    given = {
        (flag.replace("-", "_"), float(number))
        for page in PAGES
        for flag, number in [
            *re.findall(r"`--([a-z-]+)`(?:\s+seconds)?\s\(([\d.]+)(?: s)?\)", page.read_text()),
            *(
                (flag, n)
                for n, flag in re.findall(r"\| ([\d.]+) s[^|]*\| `--([a-z-]+)`", page.read_text())
            ),
        ]
    }
    parser = make_parser()
    defaults = {name: DEFAULTS.get(name, parser.get_default(name)) for name, _ in given}
    assert {(name, number) for name, number in given if defaults[name] != number} == set()
    assert {"keep", "grace", "hang_after", "save_limit"} <= defaults.keys()


def test_the_points_that_a_page_calls_all_are_all():
    (said,) = re.findall(r"unknown point 'save\.foo'; known: (.+)", text("docs/faults.md"))
    assert said == ", ".join(sorted(Point))


def test_commands_that_plan_print_what_the_docs_show(capsys, monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    seen = Counter[str]()
    for page in PAGES:
        for command, shown in sessions(page.read_text()):
            seen[command[0]] += 1
            assert cli.main(command) == 0
            assert missing(shown, capsys.readouterr().out) == [], f"{page.name}: {command}"
    assert seen.keys() == {"plan", "simulate", "faults"}


def sessions(page: str) -> Iterator[tuple[list[str], str]]:
    """The commands in a page that need nothing but themselves, each with what is shown of its output."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            if re.match(r"harness (?:plan|simulate|faults show) ", line):
                yield shlex.split(line, comments=True)[1:], shown


def missing(shown: str, printed: str) -> list[str]:
    """The lines of `shown` that are not in `printed` in this order; `…` is whatever was left out."""
    lines = iter([line.rstrip() for line in printed.splitlines()])
    return [line for line in shown.splitlines() if line not in ("", "…") and line not in lines]


def flags(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with suppress(SystemExit):
        cli.main([*command.split(), "--help"])
    return set(FLAG.findall(capsys.readouterr().out))


def leads(page: Path, path: str, part: str) -> bool:
    """True if a link in `page` to `path#part` finds both."""
    target = page.parent / path if path else page
    return target.exists() and (not part or part in headings(target.read_text()))


def headings(page: str) -> set[str]:
    """What a link may say after `#`, as GitHub makes it of headings."""
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    found = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def text(name: str) -> str:
    return (ROOT / name).read_text()
