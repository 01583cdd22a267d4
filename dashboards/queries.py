"""PromQL, put together: which runs a query is about, and the shapes that many panels share.

A run's exporter may come back on another port, so a metric of one run can have several series that differ in
`instance`. Every query therefore aggregates that label away, and none of them names it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.metrics import PREFIX

IN_VIEW = "$__range"
"""All that the dashboard shows."""
LATELY = "$__rate_interval"
"""As short as the resolution of the picture allows; for what goes on all the time."""
AN_HOUR = "1h"
"""For what happens now and then: saves, restarts, detections."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs that a dashboard is about."""

    labels: str
    by: str
    """What keeps two of them apart in an aggregation; empty for a single run."""

    def all(self, metric: str, where: str = "") -> str:
        """A selector of `metric`, given without its prefix."""
        labels = f"{self.labels},{where}" if where else self.labels
        return f"{PREFIX}{metric}{{{labels}}}"

    def highest(self, metric: str, *by: str, where: str = "") -> str:
        """Each run's value: of the newest exporter, for counters and clocks only rise."""
        return f"max{self._by(*by)} ({self.all(metric, where)})"

    def rate(self, metric: str, over: str, *by: str, where: str = "") -> str:
        """A counter's increase a second."""
        return f"sum{self._by(*by)} (rate({self.all(metric, where)}[{over}]))"

    def increase(self, metric: str, over: str, *by: str, where: str = "") -> str:
        """A counter's increase."""
        return f"sum{self._by(*by)} (increase({self.all(metric, where)}[{over}]))"

    def struck(self, metric: str, over: str, *by: str) -> str:
        """Where a counter rose, also with the first count of a series that is not there before it."""
        rose = f"{self.increase(metric, over, *by)} > 0"
        counts = self.all(metric)
        new = f"sum{self._by(*by)} ({counts} unless {counts} offset {over})"
        watched = (
            f"max ({self.all('launcher_up')} offset {over})"  # else all that ever was would be new
        )
        return f"{rose} or ({new} and on () {watched})"

    def quantile(self, share: float, metric: str, over: str, *by: str) -> str:
        """What `share` of a histogram's observations were below."""
        return f"histogram_quantile({share}, {self.rate(f'{metric}_bucket', over, 'le', *by)})"

    def mean(self, metric: str, *by: str) -> str:
        """Mean of all that a histogram has counted since the run began; nothing where it has counted none."""
        total, count = (self.highest(f"{metric}_{part}", *by) for part in ("sum", "count"))
        return f"{total} / ({count} > 0)"

    def goodput(self, over: str) -> str:
        """Goodput of a window: never below 0, though a loss is charged to when training resumes."""
        good = self.rate("state_seconds_total", over, where='state=~"work|evaluation"')
        lost, wall = (
            self.rate("lost_work_seconds_total", over),
            self.rate("state_seconds_total", over),
        )
        return f"clamp_min(({good} - {lost}) / ({wall} > 0), 0)"

    def alerts(self) -> str:
        """The alerts of the rules in `prometheus/` that fire; of a run that is silent its directory's name is known."""
        known = re.sub(r'run_id=~?"\$run_id"', 'run_id=~"$run_id|"', self.labels)
        where = f'alertstate="firing",alertname=~"Harness.*",{known}'
        return f"max{self._by('alertname', 'severity')} (ALERTS{{{where}}})"

    def _by(self, *by: str) -> str:
        labels = [*([self.by] if self.by else []), *by]
        return f" by ({', '.join(labels)})" if labels else ""


ONE = Runs('job_name="$job_name",run_id="$run_id"', "")
MANY = Runs('job_name=~"$job_name",run_id=~"$run_id"', "job_name, run_id")

GOOD, BAD = 'state=~"work|evaluation"', 'state!~"work|evaluation"'
BY_RUN = "{{job_name}} {{run_id}}"
RANK_SECONDS_LOST = (
    f"{MANY.highest('lost_work_seconds_total')} * on (job_name, run_id) "
    f"count by (job_name, run_id) ({MANY.all('rank_up')})"
)
"""Work lost, times the ranks that did it; by run."""


def coded(metric: str, label: str, values: Sequence[str], runs: Runs = ONE) -> str:
    """A number for the value of `label` whose series is 1: its place in `values`, from 1."""
    cases = (
        f"{place} * (max({runs.all(metric, f'{label}={value!r}'.replace(chr(39), chr(34)))}) == 1)"
        for place, value in enumerate(values, start=1)
    )
    return "\n  or ".join(cases)
