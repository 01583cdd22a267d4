"""What folding a long log costs: from the start, at a scrape, and when the launcher starts again.

Run `python -m benchmarks.fold [events]`. The log is that of a long run: a step every 0.2 s, two ranks
timed once a second, a save every 50 steps, a failure every 5,000.
"""

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import machine
from harness.cache import Following
from harness.events import (
    SCHEMA,
    AttemptStarted,
    Cause,
    Entry,
    Event,
    FailureDetected,
    Header,
    RestoreStarted,
    RunStarted,
    SaveCommitted,
    SaveStarted,
    SaveUnblocked,
    StepFinished,
    StepTimed,
    Tier,
    TrainingResumed,
)
from harness.lines import encode
from harness.recorder import ROLL_BYTES
from harness.rundir import RunDir

STEP_NS = 200_000_000
EVER = 1 << 61


class LongRun:
    """Writes the log of a run that does not end, with a clock of its own."""

    def __init__(self, run_dir: RunDir, ranks: int = 2) -> None:
        run_dir.create()
        self.ranks = ranks
        self.run_dir = run_dir
        self.written = 0
        self.events = self._events()
        self.sizes: dict[Path, int] = {}
        self.rolls: dict[str, int] = {}

    def write(self, count: int) -> None:
        """Append the next `count` events."""
        lines: dict[Path, list[bytes]] = {}
        for _ in range(count):
            writer, entry = next(self.events)
            path = self._file(writer)
            line = encode(entry)
            if path not in self.sizes:
                header = Header(SCHEMA, "long", writer, "node", "boot", 1, 0, 1_700_000_000 * 10**9)
                line = encode(header) + line
            self.sizes[path] = self.sizes.get(path, 0) + len(line)
            lines.setdefault(path, []).append(line)
        for path, new in lines.items():
            with path.open("ab") as file:
                file.write(b"".join(new))
        self.written += count

    def _file(self, writer: str) -> Path:
        path = self.run_dir.event_file(writer, self.rolls.get(writer, 0))
        if self.sizes.get(path, 0) >= ROLL_BYTES:
            self.rolls[writer] = self.rolls.get(writer, 0) + 1
            path = self.run_dir.event_file(writer, self.rolls[writer])
        return path

    def _events(self) -> Iterator[tuple[str, Entry]]:
        at_ns = 0
        for sequence, (attempt, writer, event, passed_ns) in enumerate(_story(self.ranks)):
            at_ns += passed_ns
            yield writer, Entry(at_ns, attempt, sequence, event, writer)


def _story(ranks: int) -> Iterator[tuple[int, str, Event, int]]:
    yield 0, "launcher-0", RunStarted("long", ranks), 0
    attempt = step = 0
    while True:
        attempt += 1
        yield attempt, "launcher-0", AttemptStarted(ranks), STEP_NS
        yield attempt, "rank-0", RestoreStarted(), STEP_NS
        yield attempt, "rank-0", TrainingResumed(step, Tier.STORAGE, attempt - 1), STEP_NS
        for _ in range(5_025):
            step += 1
            event = StepFinished(
                step, 32 * step - 32, 32 * step, f"{step:016x}", 8_192, 2.0 + 1 / step, step
            )
            yield attempt, "rank-0", event, STEP_NS
            if step % 5 == 0:
                for rank in range(ranks):
                    yield attempt, f"rank-{rank}", StepTimed(step, 150_000_000, 50_000_000), 1_000
            if step % 50 == 0:
                yield attempt, "rank-0", SaveStarted(step, Tier.STORAGE), 1_000
                yield attempt, "rank-0", SaveUnblocked(step, Tier.STORAGE), 50_000_000
                yield attempt, "rank-0", SaveCommitted(step, Tier.STORAGE, 10**9), 1_000
        failure = FailureDetected(1, Cause.SIGNAL, "rank 1: SIGKILL")
        yield attempt, "launcher-0", failure, STEP_NS // 2
        step -= step % 50


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir.at(Path(folder) / "run")
        run = LongRun(run_dir)
        print(f"writing a log of {count:,} events …", flush=True)
        for done in range(0, count, 20_000):
            run.write(min(20_000, count - done))
        size = sum(path.stat().st_size for path in run_dir.events.iterdir())
        print(f"{size / 1e6:.0f} MB in {len(list(run_dir.events.iterdir()))} files")

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        whole_s = min(from_the_start(run_dir, count) for _ in range(3))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"from the start: {whole_s:.2f} s, {count / whole_s:,.0f} events/s, +{grown:.0f} MB")

        following = Following(run_dir)
        following.poll(EVER)
        following.save()
        scrapes = [scrape_s(run, following) for _ in range(200)]
        scrape_ms = statistics.median(scrapes) * 1e3
        print(
            f"a scrape that finds 10 new events: {scrape_ms:.2f} ms, {max(scrapes) * 1e3:.2f} at most"
        )

        restarts = [restart_s(run) for _ in range(20)]
        restart_ms = statistics.median(restarts) * 1e3
        print(f"a launcher that starts again, 500 events behind: {restart_ms:.1f} ms")
    print(
        json.dumps(
            {
                "benchmark": "fold",
                "ours": round(scrape_ms, 3),
                "other": {"re-reading everything": round(whole_s * 1e3, 1)},
                "unit": f"ms for a scrape with {count} events behind it",
                "ratio": {
                    "ours / re-reading everything": round(scrape_ms / (whole_s * 1e3), 7),
                },
                "events_per_s": round(count / whole_s),
                "restart_ms": round(restart_ms, 2),
                "machine": machine(),
            }
        )
    )


def from_the_start(run_dir: RunDir, count: int) -> float:
    run_dir.fold.unlink(missing_ok=True)
    started = time.perf_counter()
    assert Following(run_dir).poll(EVER) == count
    return time.perf_counter() - started


def scrape_s(run: LongRun, following: Following) -> float:
    run.write(10)
    started = time.perf_counter()
    assert following.poll(EVER) == 10
    return time.perf_counter() - started


def restart_s(run: LongRun) -> float:
    with Following(run.run_dir) as before:
        before.poll(EVER)
    run.write(500)
    started = time.perf_counter()
    assert Following(run.run_dir).poll(EVER) == 500
    return time.perf_counter() - started


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
