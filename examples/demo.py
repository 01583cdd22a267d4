"""The main job, twice: once in peace and once under kills, and the proof that they end alike.

    python examples/demo.py        (`make demo` sets up first)

Exits 0 only if at least three kills struck, the job came back each time, both runs ended in the
same state bit for bit, the model learnt, and every nanosecond of the run is in exactly one class.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

LEAST_KILLS = 3
LEARNT = 2.5
"""Nats a byte on held-out text; an untrained model has 5.5."""
# Kills come with a mean gap of a ninth of what the twin took. This seed spreads five of them over
# half of that time, so that a run of any speed meets at least three.
SEED = 254
PLAN = """\
# Kill a random rank at exponential intervals. Written by examples/demo.py.
schema = 1
seed = {seed}
max_faults = 5

[arrival]
exponential = {{ mtbf_s = {mtbf_s:.2f} }}

[[faults]]
kind = "kill"
target = "any rank"
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="demo", help="of the model (default: %(default)s)")
    parser.add_argument("--steps", help="of training (default: the preset's)")
    parser.add_argument("--into", type=Path, default=Path("runs"), help="folder of the two runs")
    return parser.parse_args()


def harness(*command: str) -> int:
    """Run `harness …` as a user would, its output on this terminal."""
    print(f"\n$ harness {' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", "harness", *command], check=False).returncode


def report(run: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "harness", "report", str(run), "--json"]
    told: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return told


def main() -> int:
    options = arguments()
    twin, run = options.into / "demo-twin", options.into / "demo"
    job = ["--nproc-per-node", "2", "--save-every-steps", "10"]
    job += [str(Path(__file__).with_name("train_gpt.py")), "--preset", options.preset]
    job += ["--steps", options.steps] if options.steps else []
    for path in (twin, run):
        shutil.rmtree(path, ignore_errors=True)

    if harness("run", "--run", str(twin), *job):
        return fail(f"the run without faults failed: see {twin}/logs")
    undisturbed = report(twin)
    plan = options.into / "demo.faults.toml"
    mtbf_s = undisturbed["state_seconds"]["work"] / 9
    plan.write_text(PLAN.format(seed=SEED, mtbf_s=mtbf_s))
    harness("faults", "show", str(plan), "--ranks", "2")
    if harness("run", "--run", str(run), "--faults", str(plan), *job):
        return fail(f"the run under faults failed: see {run}/logs")
    if harness("verify", str(run), str(twin)):
        return fail("the run under faults is not the run that never stopped")
    return judge(run, report(run), undisturbed, options.preset == "demo")


def judge(run: Path, broken: dict[str, Any], twin: dict[str, Any], learns: bool) -> int:
    """Say what came of it, or what did not."""
    kills = sum(fault["state"] == "confirmed" for fault in broken["faults"])
    states_ns, wall_ns = sum(broken["state_ns"].values()), broken["wall_ns"]
    loss = broken["validation_loss"]["last"]["loss"]
    if kills < LEAST_KILLS:
        return fail(f"only {kills} of at least {LEAST_KILLS} kills struck")
    if broken["final_digest"] is None or broken["final_digest"] != twin["final_digest"]:
        return fail(f"final digests: {broken['final_digest']} and {twin['final_digest']}")
    if states_ns != wall_ns:
        return fail(f"the states sum to {states_ns} ns of {wall_ns} ns")
    if learns and not loss < LEARNT:
        return fail(f"the validation loss is {loss}, and should be under {LEARNT}")
    print(
        f"\n{kills} kills, {broken['restarts']} restarts, and the same state in the end, bit for bit:"
    )
    print(f"  final digest {broken['final_digest']} with and without kills")
    print(f"  states sum to the wall time: {states_ns} ns = {wall_ns} ns")
    print(f"  goodput {broken['goodput']:.1%} under kills, {twin['goodput']:.1%} without")
    print(f"  states restored from: {restored(broken)}; {broken['lost_steps']} steps done again")
    print(f"  back at work after {broken['restart_since_fault_s']['median']:.2f} s in the median")
    print(f"  validation loss {loss:.4f} nats a byte")
    print(f"The report again: harness report {run}")
    return 0


def restored(told: dict[str, Any]) -> str:
    """How many restarts found their state in which tier."""
    tiers = Counter(one["tier"] or "nothing" for one in told["restart_records"])
    return ", ".join(f"{tier} {count}" for tier, count in tiers.items())


def fail(reason: str) -> int:
    print(f"\ndemo failed: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
