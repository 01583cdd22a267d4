"""What can be set about a run, where each value came from, and how it is written down.

Precedence: flag, environment (`HARNESS_…`), `run.toml` of an earlier launch, `join(…)`, default.
"""

import fcntl
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness.conversion import converted, in_steps
from harness.replace import replace_file

SCHEMA = 1
ENVIRONMENT_PREFIX = "HARNESS_"
FIXED = ("checkpoints", "seed")
"""What a run that goes on must leave as it was: other values would make it another run."""

ALIASES: Mapping[str, str] = {"save_every_steps": "storage_every"}
"""Other names of settings; a value given under one is a number of steps, where 0 is none."""

FOR_ONE_LAUNCH = ("resume",)
"""What the next launch in the same directory must be asked for again."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set about a run, with its defaults."""

    checkpoints: str = ""
    """fsspec URL of the storage; empty for the run's own `checkpoints/`."""
    memory_every: str = "auto"
    """Between saves to memory: `20 steps`, `30s`, `auto`, `auto 10s..10min` or `off`."""
    memory_dir: str = ""
    """Folder for copies in memory, such as `/dev/shm`; empty for memory that the saver alone holds."""
    storage_every: str = "auto"
    """Between saves to storage, likewise; `off` saves at the end alone."""
    overlap: str = "auto"
    """Copy parameters and optimizer tensors beside the next step: `on`, `off`, or `auto` (where it pays)."""
    keep: int = 3
    """How many verified checkpoints retention leaves, at least 1."""
    keep_for_s: int = 0
    """Seconds for which a checkpoint stays beside those, by the clock of the storage."""
    keep_every_steps: int = 0
    """Checkpoints at multiples of this many steps stay for ever; 0 keeps none of them for that."""
    keep_when_full: int = 0
    """How many verified checkpoints are enough when the storage is full; 0 never goes below `keep`."""
    storage_timeout_s: int = 60
    """Seconds that a call to the storage may take, beside a tenth of a second for each MB."""
    shard_bytes: int = 2_000_000_000
    """Size at which a rank's shard is split into another file."""
    seed: int = 0
    """Base of every random stream: initialisation, dropout, order of the data."""
    threads: int = 0
    """Intra-op CPU threads of a rank; 0 takes cores divided by the ranks on the node."""
    digest_every_steps: int = 0
    """Steps between digests of the whole state; 0 digests the last step alone."""
    health_every_steps: int = 10
    """Steps between readings of gradient norm and update-to-weight ratios; 0 reads none."""
    watch_tensors: str = ""
    """Parameters, separated by commas, each of whose update-to-weight ratio is told by itself."""
    on_nonfinite: str = "fail"
    """What follows NaN or Inf in a loss or gradient: `fail`, `skip` (the step) or `report`."""
    on_spike: str = "report"
    """What follows a loss that jumps: `report` (go on) or `rollback` (to a checkpoint from before it)."""
    replicas_every_steps: int = 100
    """Steps between comparisons of the weights that DDP keeps equal; 0 compares none."""
    on_replica_mismatch: str = "report"
    """What follows weights that differ: `report` or `fail`; that compares before each save too."""
    audit_every_steps: int = 0
    """Steps between audits of gradients, for loops that call `job.audited`; 0 audits none."""
    on_audit_mismatch: str = "fail"
    """What follows a gradient that another rank does not get: `fail` or `report`."""
    target_losses: str = ""
    """Validation losses, such as `2.8,2.6`: metrics tell after how many steps and seconds each was reached."""
    resume: str = "auto"
    """`auto`, `fresh` (start from nothing beside commits that exist) or a step."""
    exact: bool = True
    """Refuse to resume in an environment in which the bits may differ.

    Another number of ranks goes on: whoever starts that has chosen other bits, and is told so.
    """


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from."""

    value: str | int | float | bool
    origin: str


DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(Settings)}


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What `HARNESS_…` variables set, by setting; others of that prefix are not ours to judge."""
    keys = {ENVIRONMENT_PREFIX + key.upper(): key for key in (*DEFAULTS, *ALIASES)}
    return {key: environ[name] for name, key in keys.items() if environ.get(name)}


def resolve(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Setting]:
    """The value and origin of every setting; the first layer that names one wins.

    Raises `ValueError` with a line for every mistake in any layer.
    """
    resolved: dict[str, Setting] = {}
    mistakes: list[str] = []
    for origin, layer in layers:
        for name, raw in layer.items():
            try:
                key, value = _named(name, raw, layer)
            except ValueError as error:
                mistakes.append(f"{origin}: {error}")
                continue
            resolved.setdefault(key, Setting(value, origin))
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return {
        key: resolved.get(key, Setting(default, "default")) for key, default in DEFAULTS.items()
    }


def _named(name: str, raw: Any, layer: Mapping[str, Any]) -> tuple[str, Any]:
    """The setting that `name` stands for, and its value. Raises `ValueError`."""
    if name in DEFAULTS:
        return name, converted(name, DEFAULTS[name], raw)
    if name not in ALIASES:
        raise ValueError(f"unknown setting {name!r}; known: {', '.join(DEFAULTS)}")
    key = ALIASES[name]
    if key in layer:
        raise ValueError(f"{name} and {key} are two names of one setting: give one of them")
    return key, in_steps(name, raw)


def values(resolved: Mapping[str, Setting]) -> Settings:
    """The settings alone, without their origins."""
    return Settings(**{key: setting.value for key, setting in resolved.items()})  # type: ignore[arg-type]  # `resolve` converted each to its field's type


def renew(
    above: Iterable[tuple[str, Mapping[str, Any]]],
    earlier: Mapping[str, Setting],
    below: Iterable[tuple[str, Mapping[str, Any]]] = (),
) -> dict[str, Setting]:
    """The settings of a launch: layers above what an earlier launch wrote, that, layers below it.

    An origin names where a value came from first, not the file that remembered it. Raises
    `ValueError` for mistakes, and for a fixed setting that the earlier launch had otherwise.
    """
    kept = {
        key: setting.value
        for key, setting in earlier.items()
        if setting.origin != "default" and key not in FOR_ONE_LAUNCH
    }
    resolved = resolve([*above, ("run.toml", kept), *below])
    if refused := changed(earlier, resolved):
        raise ValueError("\n".join(refused))
    return {
        key: earlier[key] if setting.origin == "run.toml" else setting
        for key, setting in resolved.items()
    }


def changed(before: Mapping[str, Setting], now: Mapping[str, Setting]) -> list[str]:
    """A line for each fixed setting that a continued run tries to change.

    A launcher writes down its defaults before the script has said what it wants: the script may.
    """
    return [
        f"{key} was {before[key].value!r} ({before[key].origin}) and cannot become"
        f" {now[key].value!r} ({now[key].origin}): start another run directory for that"
        for key in FIXED
        if key in before
        and before[key].value != now[key].value
        and (before[key].origin, now[key].origin) != ("default", "join")
    ]


# ── run.toml ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Record:
    """What `run.toml` holds."""

    run_id: str
    command: Sequence[str]
    settings: Mapping[str, Setting]
    environment: Mapping[str, str]
    """The fingerprint of the environment that the run was started in."""
    armed: bool = False
    """Faults may be injected into this run."""


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Be the only one who changes `run.toml` for a while: from reading it to writing it.

    What one who was killed in the middle of that left beside it goes.
    """
    lock = os.open(
        path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in path.parent.glob(f".{path.name}.[0-9]*"):
            left.unlink(missing_ok=True)
        yield
    finally:
        os.close(lock)


def write(path: Path, record: Record) -> None:
    """Replace `run.toml` by `record`, whole or not at all."""
    lines = [
        f"schema = {SCHEMA}",
        f"run_id = {_toml(record.run_id)}",
        f"command = {_toml(list(record.command))}",
        f"armed = {_toml(record.armed)}",
        "",
        "[environment]",
        *(f"{_toml(key)} = {_toml(value)}" for key, value in record.environment.items()),
    ]
    for key, setting in record.settings.items():
        lines += ["", f"[settings.{key}]"]
        lines += [f"value = {_toml(setting.value)}", f"origin = {_toml(setting.origin)}"]
    # A name on Linux may be no text at all; better a question mark in it than a file that nobody reads.
    content = ("\n".join(lines) + "\n").encode(errors="replace")
    replace_file(path, content, durable=True)  # without it the run's checkpoints are no one's


def _toml(value: Any) -> str:
    """`value` as TOML writes it: like JSON, but without surrogates and with DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read(path: Path) -> Record | None:
    """What `run.toml` holds, or None where there is none. Raises `ValueError` if it cannot be read."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        if table["schema"] > SCHEMA:
            raise ValueError(
                f"its schema {table['schema']} is newer than {SCHEMA}: use a later version"
            )
        command, environment = table["command"], table.get("environment", {})
        return Record(
            run_id=_text(table["run_id"]),
            command=(_text(command[0]), *map(_text, command[1:])),
            settings=dict(
                _remembered(name, entry)
                for name, entry in table.get("settings", {}).items()
                if name in DEFAULTS or (name in ALIASES and entry["origin"] != "default")
            ),
            environment={key: _text(value) for key, value in environment.items()},
            armed=bool(table.get("armed", False)),
        )
    except FileNotFoundError:
        return None
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{path} cannot be read as a run's settings: {why}; put it back from a copy, or name"
            " another run directory"
        ) from error


def _remembered(name: str, entry: Mapping[str, Any]) -> tuple[str, Setting]:
    key, value = _named(name, entry["value"], {})
    return key, Setting(value, _text(entry["origin"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
