"""What can be said of the dashboards without a server: up to date, in form, well spelt, about metrics that exist."""

import pytest

from dashboards import build
from dashboards.checks import asked, names, schema, syntax


def test_the_committed_dashboards_are_what_is_built():
    for name, document in build.dashboards().items():
        assert (build.INTO / name).read_text() == build.text(document), (
            "run: python -m dashboards.build"
        )


def test_every_query_parses():
    assert syntax.mistakes() == []


def test_every_metric_that_is_shown_exists_and_every_one_that_exists_is_shown():
    assert names.mistakes() == []


def test_every_panel_says_what_it_shows():
    panels = [panel for name in asked.FILES for panel in asked.document(name)["panels"]]
    silent = [p["title"] for p in panels if p["type"] != "row" and not p.get("description")]
    assert silent == []


def test_no_panel_lies_on_another():
    for name in asked.FILES:
        taken: set[tuple[int, int]] = set()
        for panel in asked.document(name)["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert not cells & taken, panel["title"]
            assert max(x for x, _ in cells) < 24, panel["title"]
            taken |= cells


def test_the_dashboards_have_the_form_that_grafana_s_types_give():
    if not schema.is_made():
        pytest.skip(
            "the schemas are made by `make dashboards`, which has npm fetch Grafana's types"
        )
    assert schema.mistakes(schema.schemas()) == []


def test_the_number_of_a_phase_is_its_place():
    from dashboards.queries import ONE, coded

    selector = 'harness_phase{job_name="$job_name",run_id="$run_id",phase="%s"}'
    assert coded("phase", "phase", ["work", "down"], ONE) == (
        f"1 * (max({selector % 'work'}) == 1)\n  or 2 * (max({selector % 'down'}) == 1)"
    )
