"""Whether the dashboards have the form that Grafana's own types give: TypeScript, made into JSON Schema, held against them.

npm fetches the types once, into `build/grafana-schema`, which git ignores.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from dashboards.checks.asked import FILES, document

_HERE = Path(__file__).parent.parent / "schema"
_INTO = _HERE.parent.parent / "build" / "grafana-schema"
_SOURCES = ("package.json", "package-lock.json", "generate.mjs", "tsconfig.json")

Schemas = Mapping[str, Mapping[str, Any]]


def is_made() -> bool:
    """Whether there are schemas, made by what stands here now."""
    return (_INTO / "schemas.json").exists() and all(
        (_INTO / name).exists() and (_INTO / name).read_text() == (_HERE / name).read_text()
        for name in _SOURCES
    )


def schemas() -> Schemas:
    """The schemas, made if they are not there. Needs npm and node."""
    if not is_made():
        _make()
    read: Schemas = json.loads((_INTO / "schemas.json").read_text())
    return read


def mistakes(given: Schemas) -> Sequence[str]:
    """What does not have the form."""
    found = []
    for name in FILES:
        whole = document(name)
        found += [f"{name}: {line}" for line in _against(given["dashboard"], _common(whole))]
        for panel in whole["panels"]:
            found += [f"{name}, {panel['title']!r}: {line}" for line in _of_panel(given, panel)]
    return found


def _common(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what a mark's data source reads for itself: Grafana's types know it for built-in marks alone."""
    own = ("expr", "step", "target", "titleFormat")
    marks = [
        {key: value for key, value in mark.items() if key not in own}
        for mark in whole["annotations"].get("list", ())
    ]
    return {**whole, "annotations": {"list": marks}}


def _of_panel(given: Schemas, panel: Mapping[str, Any]) -> Iterator[str]:
    """A dashboard's schema leaves open what the kinds of panels say for themselves."""
    kind = panel["type"].replace("-", "")
    if kind == "row":
        return
    yield from _against(given[f"{kind} options"], panel["options"])
    custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom")
    if custom:
        yield from _against(given[f"{kind} custom"], custom)


def _against(schema: Mapping[str, Any], value: object) -> Iterator[str]:
    for error in jsonschema.Draft7Validator(schema).iter_errors(value):
        yield f"{error.json_path}: {error.message[:300]}"


def _make() -> None:
    _INTO.mkdir(parents=True, exist_ok=True)
    for name in _SOURCES[:2]:
        shutil.copyfile(_HERE / name, _INTO / name)
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(["npm", "ci", *quiet], cwd=_INTO, check=True)  # noqa: S607 - whichever npm is on PATH
    for name in _SOURCES[2:]:
        shutil.copyfile(_HERE / name, _INTO / name)
    subprocess.run(["node", "generate.mjs", "schemas.json"], cwd=_INTO, check=True)  # noqa: S607
