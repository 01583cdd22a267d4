"""Adds up how long a hung rank can stay unnoticed, from our limits and torch's own time-outs. Pure.

Without our watch NCCL's count: the time-out of a collective, then the dump that its watchdog waits
for; should the watchdog itself hang, its heartbeat has to be missed as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from launch import flightrecorder, stacks, watchdog
from launch.doctor.facts import Asked, Facts, Finding, Level
from launch.restarts import NS

COLLECTIVE_S = {"nccl": 600.0, "gloo": 1800.0}
"""After which torch gives a collective up, unless a script says otherwise."""
HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
DUMP = "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"
MONITOR = "TORCH_NCCL_ENABLE_MONITORING"
HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
VARIABLES = (HEARTBEAT, DUMP, MONITOR, HANDLING, BLOCKING, *flightrecorder.SIZES)
_DEFAULT_HEARTBEAT_S = 480.0
_DEFAULT_DUMP_S = 15.0


@dataclass(frozen=True, slots=True)
class Sum:
    """A worst case, and what it is made of."""

    parts: Mapping[str, float]
    """Seconds by what they are spent on, in order."""

    @property
    def total_s(self) -> float:
        """All together."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {_plain(s)} s" for name, s in self.parts.items())
        return f"{_plain(self.total_s)} s = {terms}"


def steady(limits: watchdog.Limits, slowest_step_s: float | None, *, records: bool) -> Sum:
    """A rank that hangs in a normal step: until the launcher knows and has seen all stacks."""
    patience_s = limits.step_ns / NS
    name = "--hang-after"
    if slowest_step_s is not None and limits.factor * slowest_step_s > patience_s:
        patience_s, name = limits.factor * slowest_step_s, f"{limits.factor} × the slowest step"
    return Sum({name: patience_s, **_seen(records)})


def _seen(records: bool) -> Mapping[str, float]:
    """What its time does not count: a look until its last sign was seen, one until it is missed, and stacks."""
    parts = {"two looks": 2 * watchdog.LOOK_S, "stacks": stacks.HANG_PATIENCE_S + stacks.SPY_S}
    return parts | ({"NCCL's recorder": flightrecorder.WITHIN_S} if records else {})


def elsewhere(limits: watchdog.Limits, *, records: bool) -> Sum:
    """The same outside of normal steps, by the limit that is reached last."""
    others = {
        "--startup-limit": limits.startup_ns,
        "--restore-limit": limits.restore_ns,
        "--first-step-limit": limits.first_step_ns,
        "--evaluation-limit": limits.evaluation_ns,
        "--save-limit": limits.save_ns,
    }
    name = max(others, key=lambda key: others[key])
    return Sum({name: others[name] / NS, **_seen(records)})


def unwatched(backend: str, environment: Mapping[str, str]) -> Sum | None:
    """The same where only torch's own time-outs are left; None if even they never end it."""
    if "nccl" not in backend:
        return Sum({"gloo's time-out": COLLECTIVE_S["gloo"]})
    if environment.get(HANDLING) == "0":
        return None
    parts = {
        "NCCL's time-out": COLLECTIVE_S["nccl"],
        DUMP: _number(environment, DUMP, 1000 * _DEFAULT_DUMP_S) / 1000,
    }
    if environment.get(MONITOR) != "0":
        parts[HEARTBEAT] = _number(environment, HEARTBEAT, _DEFAULT_HEARTBEAT_S)
    return Sum(parts)


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environment.get(name, default))
    except ValueError:
        return default


def detection(facts: Facts, asked: Asked) -> Finding:
    """How long a hang can last before anybody knows."""
    environment, backend = facts.environment, facts.trial.backend
    if asked.limits is None:
        worst = unwatched(backend, environment)
        words = "never" if worst is None else f"after {worst}"
        way = "leave --hang-after at its default, and a hung rank is found in seconds"
        return Finding("detection", Level.WARN, f"nobody watches; torch gives up {words}", way)
    records = flightrecorder.is_on(environment)
    found = (
        f"in a normal step at most {steady(asked.limits, asked.slowest_step_s, records=records)}"
    )
    if asked.slowest_step_s is None:
        found += f" (more if {asked.limits.factor} × the slowest step is more: --step says it)"
    most = elsewhere(asked.limits, records=records)
    found += f"; elsewhere at most {most}"
    return _with_nccl(found, backend, environment, most.total_s, records)


def _with_nccl(
    found: str, backend: str, environment: Mapping[str, str], most_s: float, records: bool
) -> Finding:
    """What NCCL's variables do to it."""
    if environment.get(HANDLING) == "0":
        way = f"unset {HANDLING}: an error of NCCL's would hang the rank instead of ending it"
        return Finding("detection", Level.WARN, f"{found}; {HANDLING}=0", way)
    if environment.get(BLOCKING, "0") not in ("", "0"):
        way = f"unset {BLOCKING}: the CPU waits for each collective, and steps get slower"
        return Finding("detection", Level.WARN, f"{found}; {BLOCKING} is set", way)
    if "nccl" not in backend:
        return Finding("detection", Level.OK, found)
    advice = (
        "" if records else f"{flightrecorder.SIZES[0]}=2000 has the last collectives in reports"
    )
    if most_s > COLLECTIVE_S["nccl"]:
        found += f"; ranks that wait in a collective are ended by NCCL after {_plain(COLLECTIVE_S['nccl'])} s"
    return Finding("detection", Level.OK, found, advice)


def _plain(number: float) -> str:
    return f"{number:.6g}"
