"""The command `harness gpu-acceptance`: a line for each check while it runs, a JSON report at the end.

Exit status: 0 every check passed, 1 one did not, 2 refused or wrong usage.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch import warm
from launch.acceptance.bench import Bench
from launch.acceptance.checks import CHECKS, Outcome, Verdict, judge

SCHEMA = 1
DONE, NO, USAGE = 0, 1, 2
LEAST_RANKS = 2
MINUTES = 10.0
LEAVE_S = 15.0


def gpu_acceptance(argv: list[str]) -> int:
    """Check on this node's GPUs that runs are exact, come back and cost little; JSON report."""
    try:
        asked = _parser().parse_args(argv)
        names = _names(asked.only)
    except SystemExit as end:  # argparse has printed why
        return USAGE if end.code else DONE
    except ValueError as error:
        return _refused(str(error))
    if asked.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # for the ranks, on a node that has GPUs
    gpus = _gpus()
    if asked.device == "cuda" and len(gpus) < LEAST_RANKS:
        return _refused(
            f"this needs a node with at least {LEAST_RANKS} GPUs, and torch sees {len(gpus)};"
            " --device cpu plays the same checks through on a CPU, small"
        )
    ranks = asked.ranks or (len(gpus) if asked.device == "cuda" else LEAST_RANKS)
    if asked.device == "cuda" and ranks > len(gpus):
        return _refused(f"{ranks} ranks need as many GPUs, and torch sees {len(gpus)}")
    folder = Path(tempfile.mkdtemp(prefix="harness-acceptance-"))
    bench = Bench(asked.device, ranks, folder, run_harness, 60 * asked.minutes)
    has_passed = None
    try:
        report = checked(bench, names, gpus)
        print(json.dumps(report, indent=2))  # noqa: T201
        has_passed = report["outcome"] == Outcome.PASS
    finally:
        _leave(folder, keep=has_passed is False)
    return DONE if has_passed else NO


def checked(bench: Bench, names: Sequence[str], gpus: Sequence[str]) -> dict[str, Any]:
    """Run the checks of these names, a line on standard error for each; the report."""
    import torch

    found: list[dict[str, Any]] = []
    for name in names:
        began_s = time.monotonic()
        verdict = judge(name, bench)
        found.append(_told(name, verdict, time.monotonic() - began_s))
        print(f"{verdict.outcome:<11}{name:<11}{verdict.reason}", file=sys.stderr, flush=True)  # noqa: T201
    passed = all(one["outcome"] == Outcome.PASS for one in found)
    return {
        "schema": SCHEMA,
        "device": bench.device,
        "gpus": list(gpus) if bench.device == "cuda" else [],
        "ranks": bench.ranks,
        "torch": torch.__version__,
        "outcome": (Outcome.PASS if passed else Outcome.FAIL).value,
        "checks": found,
    }


def run_harness(arguments: Sequence[str], within_s: float) -> int:
    """See `bench.Harness`; in a process of its own, as a user would. Raises `TimeoutError`."""
    command = [sys.executable, "-m", "harness", *arguments]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        _end(process)


def _leave(folder: Path, *, keep: bool) -> None:
    """Remove the runs, unless they are to be looked at; whatever is there afterwards is named."""
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        print(f"its runs are kept in {folder}", file=sys.stderr)  # noqa: T201


def _end(process: subprocess.Popen[bytes]) -> None:
    """A launcher that is interrupted leaves nothing; one that does not leave is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
    process.kill()
    process.wait()


def _told(name: str, verdict: Verdict, took_s: float) -> dict[str, Any]:
    return {
        "check": name,
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "figures": dict(verdict.figures),
        "took_s": round(took_s, 1),
    }


def _names(only: str) -> list[str]:
    names = [name for name in only.split(",") if name] or list(CHECKS)
    if unknown := [name for name in names if name not in CHECKS]:
        raise ValueError(f"unknown check {', '.join(unknown)}; known: {', '.join(CHECKS)}")
    return names


def _gpus() -> list[str]:
    """Names of the GPUs that torch sees; none is touched by asking."""
    warm.keep_to_one_thread()
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]


def _refused(reason: str) -> int:
    print(f"harness gpu-acceptance: {reason}", file=sys.stderr)  # noqa: T201
    return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="harness gpu-acceptance",
        description=gpu_acceptance.__doc__,
        epilog="Exit status: 0 every check passed, 1 one did not, 2 refused or wrong usage.",
    )
    add = parser.add_argument
    device = "`cpu` plays the same checks through on a CPU and gloo, small (default: cuda)"
    add("--device", choices=("cuda", "cpu"), default="cuda", help=device)
    add("--ranks", type=int, metavar="N", help="(default: one for each GPU; 2 on a CPU)")
    minutes = f"what is not begun by then is skipped (default: {MINUTES:g})"
    add("--minutes", type=float, default=MINUTES, metavar="N", help=minutes)
    add("--only", default="", metavar="CHECKS", help=f"some of {','.join(CHECKS)}")
    return parser
