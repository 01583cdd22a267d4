"""Writes the dashboards as JSON: `python -m dashboards.build`. What stands in `grafana/` is written here and nowhere else.

It is the classic model, in the form of Grafana 10: newer ones bring it up to date when they load it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from dashboards import badput, failures, fleet, ranks, run, saves, training
from dashboards.panels import DARK, SOURCE, VERMILLION, AnyPanel
from dashboards.queries import LATELY, ONE

INTO = Path(__file__).with_name("grafana")
_SCHEMA_OF_GRAFANA_10 = 38
_STRAY = ("auto", "auto_min", "auto_count")
"""The builder writes these keys of interval variables into every variable."""
_STATE_METRIC = "harness_launcher_up"
"""Every run has it, whatever became of it."""

Rows = Sequence[tuple[str, Sequence[AnyPanel]]]


def dashboards() -> Mapping[str, dict[str, Any]]:
    """Every dashboard by the name of its file."""
    return {"run.json": _plain(_run()), "fleet.json": _plain(_fleet())}


def text(document: Mapping[str, Any]) -> str:
    """The file's text."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files."""
    for name, document in dashboards().items():
        (INTO / name).write_text(text(document))
        print(f"wrote {INTO / name}")


def _run() -> dashboard.Dashboard:
    rows: Rows = (
        ("Now", run.now()),
        ("Time", run.time()),
        ("Training", training.learning()),
        ("Failures", failures.failures()),
        ("Checkpoints", saves.checkpoints()),
        ("Ranks", ranks.ranks()),
    )
    board = _board(
        "harness-run", "Run", "One training run: what it does, what it costs, whether it learns."
    )
    board.with_variable(_label("job_name", _STATE_METRIC))
    board.with_variable(_label("run_id", f'{_STATE_METRIC}{{job_name="$job_name"}}'))
    faults = ONE.struck("faults_injected_total", LATELY, "fault", "scope")
    restarts = ONE.struck("restarts_total", LATELY, "cause")
    board.annotation(_mark("Restarts", restarts, "restart: {{cause}}", DARK))
    board.annotation(_mark("Faults", faults, "{{fault}} ({{scope}})", VERMILLION))
    return _filled(board, rows)


def _fleet() -> dashboard.Dashboard:
    rows: Rows = (("Now", fleet.now()), ("Runs", fleet.runs()), ("Badput", badput.badput()))
    board = _board(
        "harness-fleet", "Fleet", "All runs: which are well, and what they lose to what."
    )
    board.with_variable(_label("job_name", _STATE_METRIC, many=True))
    board.with_variable(_label("run_id", f'{_STATE_METRIC}{{job_name=~"$job_name"}}', many=True))
    return _filled(board, rows)


def _board(uid: str, title: str, description: str) -> dashboard.Dashboard:
    board = dashboard.Dashboard(f"Harness: {title}").uid(uid).description(description)
    board.tags(["harness"]).refresh("10s").time("now-1h", "now").timezone("browser")
    board.tooltip(model.DashboardCursorSync.CROSSHAIR).editable()
    source = dashboard.DatasourceVariable("datasource").type("prometheus").label("Prometheus")
    others = dashboard.DashboardLink("Harness").type(model.DashboardLinkType.DASHBOARDS)
    others.tags(["harness"]).keep_time(True).include_vars(False).as_dropdown(False)
    others.icon("").target_blank(False).tooltip("").url("")
    return board.with_variable(source).link(others)


def _filled(board: dashboard.Dashboard, rows: Rows) -> dashboard.Dashboard:
    for title, panels in rows:
        board.with_row(dashboard.Row(title))
        for panel in panels:
            board.with_panel(panel)
    return board


def _label(name: str, metric: str, *, many: bool = False) -> dashboard.QueryVariable:
    variable = dashboard.QueryVariable(name).label(name.replace("_", " ")).datasource(SOURCE)
    variable.query({"query": f"label_values({metric}, {name})", "refId": name})
    variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable.sort(model.VariableSort.ALPHABETICAL_ASC)
    if many:
        everything = model.VariableOption(text="All", value="$__all", selected=True)
        variable.multi(True).include_all(True).all_value(".+").current(everything)
    return variable


def _mark(name: str, expr: str, title: str, color: str) -> dashboard.AnnotationQuery:
    mark = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color)
    return (
        mark.expr(expr)
        .step("10s")
        .title_format(title)
        .target(prometheus.Dataquery().expr(expr).ref_id("Anno"))
    )


def _plain(board: dashboard.Dashboard) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    document["schemaVersion"] = _SCHEMA_OF_GRAFANA_10
    for variable in document["templating"]["list"]:
        for key in _STRAY:
            variable.pop(key, None)
    for number, panel in enumerate(document["panels"], start=1):
        panel["id"] = number
        if panel["type"] == "table":
            del panel["options"]["footer"]  # of Grafana 10 and 11; the later ones have none
    return document


if __name__ == "__main__":
    main()
