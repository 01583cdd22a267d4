"""What a user's Prometheus and Grafana are given: it parses, and it names files that are there."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.checks.scene import ROOT

HOME = ROOT / "dashboards"


def read(name: str) -> Any:
    return yaml.safe_load((HOME / name).read_text())


def test_every_file_that_compose_mounts_is_there():
    mounts = [
        volume.split(":")[0]
        for service in read("compose.yml")["services"].values()
        for volume in service["volumes"]
        if volume.startswith("./")
    ]
    assert len(mounts) >= 4
    assert [mount for mount in mounts if not (HOME / mount).exists()] == []


def test_grafana_finds_the_dashboards_and_prometheus():
    (provider,) = read("grafana/provisioning/dashboards/harness.yml")["providers"]
    (source,) = read("grafana/provisioning/datasources/harness.yml")["datasources"]
    services = read("compose.yml")["services"]
    assert f"./grafana:{provider['options']['path']}:ro" in services["grafana"]["volumes"]
    address = source["url"].removeprefix("http://")
    assert f"--web.listen-address={address}" in services["prometheus"]["command"]
    interval = read("compose/prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval


def test_prometheus_takes_its_configuration():
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here (Debian's package prometheus has it)")
    config = HOME / "compose" / "prometheus.yml"
    subprocess.run(["promtool", "check", "config", "--syntax-only", config], check=True)


def test_targets_follow_the_runs_that_serve_metrics(tmp_path):
    runs, into = tmp_path / "runs", tmp_path / "targets"
    for name in ("one", "two", "over"):
        (runs / name).mkdir(parents=True)
    (runs / "one" / "exporter.json").write_text("[1]")
    (runs / "two" / "exporter.json").write_text("[2]")
    assert targets(runs, into) == {"one.json": "[1]", "two.json": "[2]"}
    (runs / "one" / "exporter.json").unlink()
    (runs / "two" / "exporter.json").write_text("[3]")
    assert targets(runs, into) == {"two.json": "[3]"}


def targets(runs: Path, into: Path) -> dict[str, str]:
    """The folder of targets, once the script has gone over the runs."""
    subprocess.run(["sh", HOME / "targets.sh", runs, into], check=True)
    return {path.name: path.read_text() for path in into.iterdir()}
