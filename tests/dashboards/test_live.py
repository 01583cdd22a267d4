"""The dashboards before a live Prometheus that scrapes a real job under kills, and drawn by Chromium."""

import pytest

from dashboards.checks import live, look, scene

pytestmark = pytest.mark.processes


def test_every_query_gives_series_and_every_panel_has_something_to_draw(tmp_path):
    for lacking in (scene.missing(), look.missing()):
        if lacking is not None:
            pytest.skip(lacking)
    look.pages(tmp_path / "pages")
    with scene.scene(tmp_path, tmp_path / "pages", gap_s=1) as watched:
        assert live.mistakes(watched) == []
        assert look.mistakes(watched, tmp_path) == []
