"""From what people name to a store: a run directory, or the URL of a run's checkpoints.

Faults that a run has around its storage are left out: what it keeps is looked at as it is.
"""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from harness import settings
from harness.checkpoint import address
from harness.checkpoint.named import is_led
from harness.checkpoint.store import Store, StoreError
from harness.rundir import RunDir
from harness.storage import checkpoint_store, options


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that is there."""

    store: Store
    newest_attempt: int = 0
    """The highest attempt of which the run directory knows, if it was named."""


def opened(where: str) -> Opened:
    """The checkpoints of the run at `where`; nothing is written.

    Raises `StoreError` where there are none.
    """
    run_dir = None if address.is_url(where) else RunDir.at(where)
    record = None if run_dir is None else settings.read(run_dir.settings)
    if run_dir is None or record is None:
        return Opened(Store.existing(address.without_faults(where)))
    asked = settings.values(record.settings)
    url = address.without_faults(asked.checkpoints) or str(run_dir.checkpoints)
    store = Store.existing(url, **options(asked))
    if store.run_id != record.run_id:
        raise StoreError(
            f"{store.root} holds the checkpoints of run {store.run_id!r}, and {where} is run"
            f" {record.run_id!r}"
        )
    return Opened(store, run_dir.newest_attempt())


def begun(where: str, script: str | None) -> Opened:
    """The same, of a run that need not be there: then it is made, for `script` to go on with.

    Raises `StoreError` where it cannot be made.
    """
    if address.is_url(where):
        return opened(where)
    run_dir = RunDir.at(where)
    record = settings.read(run_dir.settings)
    if record is None:
        if script is None:
            raise StoreError(
                f"there is no run at {where}: say which script will go on with the checkpoint"
                " (--script train.py), and the run is made"
            )
        if not Path(script).name:
            raise StoreError(f"--script {script!r} names no script")
        if run_dir.path.exists() and any(run_dir.path.iterdir()):
            raise StoreError(f"{where} is not empty and holds no run: name another directory")
        run_dir.create()
        run_id = f"{Path(script).stem}-{secrets.token_hex(4)}"
        record = settings.Record(run_id, (script,), settings.resolve([]), {})
        settings.write(run_dir.settings, record)
    if is_led(run_dir):
        raise StoreError(
            f"a launcher is at work in {where}, and nothing that it saves would count after this:"
            " end it first"
        )
    asked = settings.values(record.settings)
    beneath = replace(asked, checkpoints=address.without_faults(asked.checkpoints))
    store = checkpoint_store(run_dir, record.run_id, beneath)
    return Opened(store, run_dir.newest_attempt())
