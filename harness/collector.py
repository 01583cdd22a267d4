"""Draws every metric from a run directory at the moment it is scraped.

Counters come from the log alone, so nothing that is restarted (a rank, the launcher, the exporter)
makes one fall. Slots and locks feed gauges of the present moment, and nothing else.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from harness import settings, slots
from harness.account import Account
from harness.cache import Following
from harness.histogram import BOUNDS_NS, Histogram
from harness.liveness import launcher_lives, lives
from harness.metrics import COMMON, FAMILIES, Family, Kind
from harness.present import Present, Values
from harness.quantities import losses
from harness.report.planned import kinds
from harness.rundir import RunDir
from harness.samples import DRAW

T = TypeVar("T")

_NS = 1_000_000_000
BOUNDS = (*(f"{bound_ns / _NS:g}" for bound_ns in BOUNDS_NS), "+Inf")


class RunCollector(Collector):
    """A collector for one run; each scrape reads what the log has gained since the one before."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._following: Following | None = None

    def describe(self) -> Iterator[Metric]:
        """Nothing yet: the registry asks before there may be a log."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every family, with what there is to say of it."""
        return iter(self.seen(lambda now: list(drawn(now))))

    def seen(self, draw: Callable[[Present], T]) -> T:
        """What `draw` makes of the run as it is now; nothing of it changes meanwhile."""
        with self._lock:
            if self._following is None:
                self._following = Following(self._run_dir)
            self._following.poll()
            return draw(present(self._run_dir, self._following.fold))

    def close(self) -> None:
        """Keep what was folded for the next exporter."""
        with self._lock:
            if self._following is not None:
                self._following.close()


def present(run_dir: RunDir, account: Account) -> Present:
    """What locks, slots and settings say beside the log."""
    try:
        record = settings.read(run_dir.settings)
    except ValueError:
        record = None
    ranks = range(account.world_size)
    read = {rank: slots.read(run_dir.slot(rank)) for rank in ranks}
    monotonic_ns = time.monotonic_ns()
    return Present(
        job_name=os.fsencode(run_dir.path.name).decode(errors="replace"),
        run_id=account.run_id or (record.run_id if record else ""),
        device=record.environment.get("device", "unknown") if record else "unknown",
        account=account,
        is_led=launcher_lives(run_dir, account),
        up=[lives(run_dir, f"rank-{rank}") for rank in ranks],
        slots={
            rank: slot
            for rank, slot in read.items()
            # One from the future is left from before the machine was last started.
            if slot and slot.attempt == account.attempt and slot.updated_ns <= monotonic_ns
        },
        boot_ns=time.time_ns() - monotonic_ns,
        planned=kinds(run_dir.tape),
        targets=_targets(record),
    )


def _targets(record: settings.Record | None) -> Sequence[float]:
    """The losses that the run was asked to tell of; a run of an older version was asked for none."""
    asked = None if record is None else record.settings.get("target_losses")
    return losses(str(asked.value)) if asked is not None and asked.value else ()


def drawn(now: Present) -> Iterator[Metric]:
    """Every family of the table, with its values."""
    for name, family in FAMILIES.items():
        yield _metric(family, (now.job_name, now.run_id), DRAW[name](now))


def _metric(family: Family, common: Sequence[str], values: Values) -> Metric:
    labels = [*COMMON, *family.labels]
    metric = _FORMS[family.kind](family.name, family.help, labels=labels)
    for own, value in values.items():
        if isinstance(value, Histogram):
            assert isinstance(metric, HistogramMetricFamily)
            counts = [float(count) for count in accumulate(value.counts)]
            buckets = list(zip(BOUNDS, counts, strict=True))
            metric.add_metric([*common, *own], buckets, value.total_ns / _NS)
        else:
            assert not isinstance(metric, HistogramMetricFamily)
            metric.add_metric([*common, *own], value)
    return metric


_FORMS: Mapping[
    Kind, Callable[..., CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}
