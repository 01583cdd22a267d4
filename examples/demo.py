"""The main job, twice: once in peace and once under kills, and the proof that they end alike.

    python examples/demo.py        (`make demo` sets up first)

Exits 0 only if at least three kills struck, the job came back each time, both runs ended in the
same state bit for bit, and every nanosecond of the run is in exactly one class.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

TWIN, RUN = Path("runs/demo-twin"), Path("runs/demo")
LEAST_KILLS = 3
SCRIPT = [
    "--nproc-per-node",
    "2",
    "--save-every-steps",
    "10",
    "examples/train_gpt.py",
    "--preset",
    "demo",
]
# Kills come with a mean gap of a sixth of what the twin took. This seed puts the first four
# within two thirds of it, so that a run of any speed meets at least three.
PLAN = """\
# Kill a random rank at exponential intervals. Written by `examples/demo.py`.
schema = 1
seed = {seed}
max_faults = 5

[arrival]
exponential = {{ mtbf_s = {mtbf_s:.2f} }}

[[faults]]
kind = "kill"
target = "any rank"
"""
SEED = 254


def harness(*arguments: str) -> int:
    """Run `harness …` as a user would, its output on this terminal."""
    print(f"\n$ harness {' '.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", "harness", *arguments], check=False).returncode


def report(run: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "harness", "report", str(run), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)  # type: ignore[no-any-return]  # JSON


def main() -> int:
    for path in (TWIN, RUN):
        shutil.rmtree(path, ignore_errors=True)
    if harness("run", "--run", str(TWIN), *SCRIPT):
        return fail(f"the run without faults failed: see {TWIN}/logs")
    twin = report(TWIN)

    plan = RUN.with_suffix(".faults.toml")
    plan.write_text(PLAN.format(seed=SEED, mtbf_s=float(twin["state_seconds"]["work"]) / 6))  # type: ignore[index]  # JSON
    harness("faults", "show", str(plan), "--ranks", "2")
    if harness("run", "--run", str(RUN), "--faults", str(plan), *SCRIPT):
        return fail(f"the run under faults failed: see {RUN}/logs")
    if harness("verify", str(RUN), str(TWIN)):
        return fail("the run under faults is not the run that never stopped")
    return judge(report(RUN), twin)


def judge(run: dict[str, object], twin: dict[str, object]) -> int:
    faults, states = run["faults"], run["state_seconds"]
    assert isinstance(faults, list)
    assert isinstance(states, dict)
    kills = sum(fault["outcome"] == "confirmed" for fault in faults)
    if kills < LEAST_KILLS:
        return fail(f"only {kills} of at least {LEAST_KILLS} kills struck")
    if run["final_digest"] != twin["final_digest"]:
        return fail("the final digests differ")
    if abs(sum(states.values()) - run["wall_s"]) > 1e-6:  # type: ignore[operator]  # JSON
        return fail("the states do not sum to the wall time")
    print(
        f"\n{kills} kills, {run['restarts']} restarts, same final state as the run that never stopped:"
    )
    print(f"  {run['final_digest']}")
    print(f"states sum to the wall time: {sum(states.values()):.3f} s = {run['wall_s']:.3f} s")
    print(f"goodput {run['goodput']:.1%}; the report again: harness report {RUN}")
    return 0


def fail(reason: str) -> int:
    print(f"\ndemo failed: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
