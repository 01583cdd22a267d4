"""Whether every query of every panel gives series, put to a live Prometheus that a real run under faults was fed to."""

from collections.abc import Mapping, Sequence

from dashboards.checks.asked import Asked, filled, queries
from dashboards.checks.scene import Scene, ask

MAY_BE_EMPTY: Mapping[str, str] = {
    "Alerts": "none fires within a minute",
    "Named as slow": "no rank is slow beyond chance, or a job of a minute is too short to tell",
    "Slower than at its fastest": "known once the job has been watched for half a minute",
}
"""Panels, by title, whose queries may give nothing here, and why."""

_POINTS = 200


def mistakes(scene: Scene) -> Sequence[str]:
    """Queries that gave nothing or were refused."""
    found = [_mistake(asked, scene) for asked in queries()]
    return [mistake for mistake in found if mistake is not None]


def _mistake(asked: Asked, scene: Scene) -> str | None:
    try:
        if _answered(asked, scene) or asked.panel in MAY_BE_EMPTY:
            return None
    except ValueError as error:
        return f"{asked}: {error}\n{asked.expr}"
    return f"{asked} gave nothing:\n{asked.expr}"


def _answered(asked: Asked, scene: Scene) -> int:
    everything = {"job_name": ".+", "run_id": ".+"} if asked.dashboard == "fleet.json" else {}
    query = filled(asked.expr, scene.values | everything)
    if asked.instant:
        return len(ask(scene.url, "query", query=query, time=scene.end_s))
    step_s = max(1, round((scene.end_s - scene.start_s) / _POINTS))
    times = {"start": scene.start_s, "end": scene.end_s, "step": step_s}
    return len(ask(scene.url, "query_range", query=query, **times))
