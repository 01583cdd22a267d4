"""What a dashboard asks: every query of every panel, variable and annotation, read from the committed JSON."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.build import INTO

FILES = ("run.json", "fleet.json")


@dataclass(frozen=True, slots=True)
class Asked:
    """One query and where it stands."""

    dashboard: str
    panel: str
    ref: str
    expr: str
    instant: bool

    def __str__(self) -> str:
        """Where it stands, in words."""
        return f"{self.dashboard}, {self.panel!r}, query {self.ref}"


def document(name: str) -> dict[str, Any]:
    """A committed dashboard."""
    read: dict[str, Any] = json.loads((INTO / name).read_text())
    return read


def queries() -> Sequence[Asked]:
    """All of both dashboards: panels and annotations."""
    return [asked for name in FILES for asked in (*_of_panels(name), *_of_annotations(name))]


def variables() -> Sequence[str]:
    """The queries that fill the variables, as Grafana writes them."""
    return [
        variable["query"]["query"]
        for name in FILES
        for variable in document(name)["templating"]["list"]
        if variable["type"] == "query"
    ]


def filled(expr: str, values: Mapping[str, str]) -> str:
    """`expr` with `$name` replaced as Grafana does it."""
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


def _of_panels(name: str) -> Iterator[Asked]:
    for panel in document(name)["panels"]:
        for target in panel.get("targets", ()):
            instant = target.get("instant", False)
            yield Asked(name, panel["title"], target["refId"], target["expr"], instant)


def _of_annotations(name: str) -> Iterator[Asked]:
    for one in document(name)["annotations"].get("list", ()):
        yield Asked(name, f"marks: {one['name']}", "A", one["expr"], instant=False)
