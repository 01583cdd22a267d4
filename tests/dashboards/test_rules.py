"""The rules for Prometheus: well formed, about metrics that exist, told of in the runbook, and each tried both ways."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.checks.names import family
from harness.metrics import FAMILIES

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "dashboards" / "prometheus"
ALERTING, RECORDING = RULES / "alerting-rules.yml", RULES / "recording-rules.yml"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="no promtool here (Debian's package prometheus has it)",
)

Series = Mapping[str, str]
AT_WORK: Series = {"harness_phase{phase='work'}": "1x600"}
A_SECOND_A_STEP: Series = {
    "harness_step_duration_seconds_sum": "0+15x600",
    "harness_step_duration_seconds_count": "0+15x600",
}
STORED = "harness_checkpoint_last_timestamp_seconds{tier='storage'}"
EVERY = "harness_checkpoint_interval_seconds{tier='storage',kind='%s'}"
SAVES = "harness_checkpoint_saves_total{tier='storage',outcome='%s'}"
STATE = "harness_state_seconds_total{state='%s'}"
LATE = "harness_rank_progress_timestamp_seconds{rank='0'}"
NAMED = "harness_straggler_named{rank='3',cause='compute'}"
NONE_LOST: Series = {"harness_lost_work_seconds_total": "0x600"}
LOST: Series = {"harness_lost_work_seconds_total": "0+5x600"}
BEGAN: Series = {"harness_run_start_timestamp_seconds": "0x600"}
LED: Series = {"harness_launcher_up": "1x600"}
ENDED: Series = {"harness_launcher_up": "0x600", "harness_phase{phase='finished'}": "1x600"}
STEPS = "harness_steps_total{kind='useful'}"

CASES: list[tuple[str, str, Series, Series]] = [
    # Alert, minute, what makes it fire, what does not. A value each 15 s, from an hour on each minute.
    (
        "HarnessNoStep",
        "10m",
        {**AT_WORK, **A_SECOND_A_STEP, LATE: "0+15x20 300x100"},
        {**AT_WORK, **A_SECOND_A_STEP, LATE: "0+15x600"},
    ),
    (
        "HarnessNoStep",
        "10m",
        {**AT_WORK, **A_SECOND_A_STEP, LATE: "0+15x30 450x100"},
        {"harness_phase{phase='work'}": "1x20 0x100", **A_SECOND_A_STEP, LATE: "0+15x20 300x100"},
    ),
    # A machine whose clock is ten minutes behind that of Prometheus takes steps all the same.
    (
        "HarnessNoStep",
        "20m",
        {**AT_WORK, **A_SECOND_A_STEP, LATE: "-600+0x100", STEPS: "0+15x10 150x100"},
        {**AT_WORK, **A_SECOND_A_STEP, LATE: "-600+15x600", STEPS: "0+15x600"},
    ),
    # Hung before the first step of an attempt; an exporter that has just come back knows nothing yet.
    ("HarnessNoStep", "40m", {**LED, STEPS: "0+1x20 20x400"}, {**LED, STEPS: "0x80 0+1x400"}),
    (
        "HarnessNoStep",
        "40m",
        {**LED, STEPS: "0x600", "harness_phase{phase='restore'}": "1x600"},
        {"harness_launcher_up": "_x150 1x100", STEPS: "_x150 20x100"},
    ),
    # While no launcher lived, nobody took steps; that is another alert.
    (
        "HarnessNoStep",
        "40m",
        {**LED, STEPS: "20x600"},
        {"harness_launcher_up": "1x60 0x90 1x100", STEPS: "20x600"},
    ),
    (
        "HarnessGoodputLow",
        "90m",
        {**BEGAN, **NONE_LOST, STATE % "work": "0+5x600", STATE % "restart": "0+10x600"},
        {**BEGAN, **NONE_LOST, STATE % "work": "0+14x600", STATE % "restart": "0+1x600"},
    ),
    (
        "HarnessGoodputLow",
        "90m",
        {**BEGAN, **LOST, STATE % "work": "0+15x600"},
        {**LOST, STATE % "work": "0+15x600", "harness_run_start_timestamp_seconds": "4200x600"},
    ),
    (
        "HarnessRestartLoop",
        "6m",
        {"harness_restarts_total{cause='signal'}": "0x4 1 2 3 4 5x40"},
        {"harness_restarts_total{cause='signal'}": "0x4 1 2x40"},
    ),
    (
        "HarnessBurntRestart",
        "5m",
        {"harness_burnt_restarts_total": "0x4 1x40"},
        {"harness_burnt_restarts_total": "3x40"},
    ),
    (
        "HarnessCheckpointTooOld",
        "90m",
        {**AT_WORK, **LED, STORED: "3600x200", EVERY % "current": "60x200"},
        {**AT_WORK, **LED, STORED: "3600x200", EVERY % "current": "600x200"},
    ),
    # After a night without a launcher the run has had no time to save.
    (
        "HarnessCheckpointTooOld",
        "90m",
        {**AT_WORK, **LED, STORED: "0x200", EVERY % "current": "900x200"},
        {
            **AT_WORK,
            "harness_launcher_up": "0x50 1x200",
            STORED: "0x200",
            EVERY % "current": "900x200",
        },
    ),
    (
        "HarnessCheckpointTooOld",
        "125m",
        {**AT_WORK, **BEGAN, **LED, STEPS: "0+1x600"},
        {**BEGAN, **LED, STEPS: "0+1x600", "harness_phase{phase='work'}": "1x100 0x300"},
    ),
    (
        "HarnessSavesFailing",
        "8m",
        {SAVES % "failed": "0x4 1 2x40", SAVES % "committed": "0x10 1x40"},
        {SAVES % "failed": "0x20 1x40", SAVES % "committed": "0+1x40"},
    ),
    ("HarnessStraggler", "8m", {NAMED: "1x40"}, {NAMED: "_x20 1x20"}),
    (
        "HarnessAllRanksSlow",
        "12m",
        {"harness_step_slowdown_ratio": "2x60"},
        {"harness_step_slowdown_ratio": "1.2x60"},
    ),
    (
        "HarnessNonfinite",
        "5m",
        {"harness_nonfinite_steps_total": "0x4 1x40"},
        {"harness_nonfinite_steps_total": "2x40", "harness_loss": "5x40"},
    ),
    (
        "HarnessNonfinite",
        "5m",
        {**LED, "harness_loss": "5x17 NaN NaN NaN NaN"},
        {**LED, "harness_loss": "NaN NaN 5x40"},
    ),
    (
        "HarnessNonfinite",
        "5m",
        {"harness_nonfinite_steps_total": "0x4 1x40", **ENDED},
        {"harness_loss": "NaN" + " NaN" * 40, **ENDED},
    ),
    (
        "HarnessReplicasDiffer",
        "5m",
        {"harness_replica_mismatches_total": "0x4 1x40"},
        {"harness_replica_mismatches_total": "0x40"},
    ),
    (
        "HarnessGradientsDiffer",
        "5m",
        {"harness_gradient_audit_mismatches_total": "0x4 1x40"},
        {"harness_gradient_audit_mismatches_total": "1x40"},
    ),
    (
        "HarnessIntervalFarFromBest",
        "70m",
        {**LED, EVERY % "current": "1000x300", EVERY % "optimal": "100x300"},
        {**LED, EVERY % "current": "200x300", EVERY % "optimal": "100x300"},
    ),
    (
        "HarnessIntervalFarFromBest",
        "70m",
        {**LED, EVERY % "current": "10x300", EVERY % "optimal": "100x300"},
        {**LED, EVERY % "current": "1000x300"},
    ),
    (
        "HarnessIntervalFarFromBest",
        "70m",
        {**LED, EVERY % "current": "1000x300", EVERY % "optimal": "100x300"},
        {**ENDED, EVERY % "current": "1000x300", EVERY % "optimal": "100x300"},
    ),
    (
        "HarnessLauncherDown",
        "5m",
        {"harness_launcher_up": "1x4 0x40", "harness_phase{phase='finished'}": "0x40"},
        {"harness_launcher_up": "1x4 0x40", "harness_phase{phase='finished'}": "0x4 1x40"},
    ),
    ("HarnessExporterDown", "5m", {"up{job='harness'}": "1x4 0x40"}, {"up{job='node'}": "0x40"}),
]


def of(path: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(path.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def labelled(series: str) -> str:
    """With the labels that all metrics of a run have, and an instance."""
    name, _, own = series.rstrip("}").partition("{")
    common = "" if name == "up" else ",job_name='j',run_id='r'"
    return f"{name}{{instance='i'{common}{',' if own else ''}{own}}}".replace("'", '"')


def case(minute: str, series: Series, fires: str) -> dict[str, Any]:
    """What `promtool test rules` is to try."""
    expected = [{"labels": f'{{alertname="{fires}"}}', "value": 1}] if fires else []
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "interval": "1m" if int(minute[:-1]) >= 60 else "15s",
        "input_series": [{"series": labelled(k), "values": v} for k, v in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": minute, "exp_samples": expected}],
    }


@needs_promtool
def test_promtool_finds_nothing_wrong():
    check = ["promtool", "check", "rules", "--lint-fatal", str(ALERTING), str(RECORDING)]
    checked = subprocess.run(check, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_when_it_should_not(tmp_path):
    tests = [case(minute, series, alert) for alert, minute, series, _ in CASES]
    tests += [case(minute, series, "") for _, minute, _, series in CASES]
    document = {
        "rule_files": [str(RECORDING), str(ALERTING)],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    (tmp_path / "cases.yml").write_text(json.dumps(document))
    tried = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "cases.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert {alert for alert, *_ in CASES} == {rule["alert"] for rule in of(ALERTING)}


@needs_promtool
def test_a_run_that_is_silent_is_named_by_its_directory(tmp_path):
    tried = case("5m", {}, "")
    tried["input_series"] = [
        {"series": 'up{job="harness",instance="h:/runs/gpt"}', "values": "0x40"}
    ]
    silent = 'count by (job_name) (ALERTS{alertstate="firing",alertname="HarnessExporterDown"})'
    samples = [{"labels": '{job_name="gpt"}', "value": 1}]
    tried["promql_expr_test"] = [{"expr": silent, "eval_time": "5m", "exp_samples": samples}]
    document = {
        "rule_files": [str(ALERTING)],
        "evaluation_interval": "1m",
        "tests": [tried],
    }
    (tmp_path / "cases.yml").write_text(json.dumps(document))
    command = ["promtool", "test", "rules", str(tmp_path / "cases.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_a_windows_goodput_is_never_below_nothing(tmp_path):
    lost = {STATE % "work": "0+15x400", "harness_lost_work_seconds_total": "0x70 9000x100"}
    record = "job_name:harness_goodput:ratio_rate1h"
    labels = f'{record}{{job_name="j",run_id="r"}}'
    tried = case("90m", lost, "")
    samples = [{"labels": labels, "value": 0}]
    tried["promql_expr_test"] = [{"expr": record, "eval_time": "90m", "exp_samples": samples}]
    document = {
        "rule_files": [str(RECORDING)],
        "evaluation_interval": "1m",
        "tests": [tried],
    }
    (tmp_path / "cases.yml").write_text(json.dumps(document))
    command = ["promtool", "test", "rules", str(tmp_path / "cases.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_ask_for_metrics_and_rules_that_exist():
    records = {rule["record"] for rule in of(RECORDING)}
    for rule in of(RECORDING) + of(ALERTING):
        recorded = set(re.findall(r"\b[a-z_]+:[a-z_]+:\w+\b", rule["expr"]))
        assert recorded <= records
        plain = re.sub(r"\b[a-z_]+:[a-z_]+:\w+\b", "", rule["expr"])
        names = {family(name) for name in re.findall(r"\bharness_[a-z_]+\b", plain)}
        assert names <= set(FAMILIES), rule


def test_each_alert_says_what_to_do_and_where_more_is_said():
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in of(ALERTING)]
    for rule in of(ALERTING):
        told = rule["annotations"]
        assert set(told) == {"summary", "description", "runbook_url"}
        assert told["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
