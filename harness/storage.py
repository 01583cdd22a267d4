"""Opens the storage that a run's settings name; for ranks, the launcher and the saver alike."""

from harness.checkpoint.store import Store
from harness.rundir import RunDir
from harness.settings import Settings


def checkpoint_store(run_dir: RunDir, run_id: str, asked: Settings) -> Store:
    """The store that the run's checkpoints are in."""
    url = asked.checkpoints or str(run_dir.checkpoints)
    return Store.open(url, run_id, shard_bytes=asked.shard_bytes)
