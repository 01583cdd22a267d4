"""Opens the storage that a run's settings name; for ranks, the launcher and the saver alike."""

from collections.abc import Callable
from typing import Any

from harness.checkpoint.policy import Spared
from harness.checkpoint.probe import probe
from harness.checkpoint.store import Store
from harness.rundir import RunDir
from harness.settings import Settings


def checkpoint_store(run_dir: RunDir, run_id: str, asked: Settings) -> Store:
    """The store that the run's checkpoints are in."""
    return Store.open(_url(run_dir, asked), run_id, **options(asked))


def probed_store(
    run_dir: RunDir, run_id: str, asked: Settings, warn: Callable[[str], None]
) -> Store:
    """The same, tried out first; `warn` gets what people should know of it.

    Raises `StoreError` for a storage that no run can trust.
    """
    store = Store.at(_url(run_dir, asked), run_id, **options(asked))
    for line in probe(store):
        warn(line)
    store.adopt()
    return store


def options(asked: Settings) -> dict[str, Any]:
    """What the settings say of any store."""
    return {
        "shard_bytes": asked.shard_bytes,
        "timeout_s": float(asked.storage_timeout_s),
        "spared": Spared(asked.keep_for_s, asked.keep_every_steps, asked.keep_when_full),
    }


def _url(run_dir: RunDir, asked: Settings) -> str:
    return asked.checkpoints or str(run_dir.checkpoints)
