"""Opens the storage that a run's settings name; for ranks, the launcher and the saver alike."""

import errno
import json
from collections.abc import Callable
from typing import Any

from harness.checkpoint import retention
from harness.checkpoint.policy import Spared
from harness.checkpoint.probe import probe
from harness.checkpoint.recall import recall_owner
from harness.checkpoint.store import Store, StoreError
from harness.replace import replace_file
from harness.rundir import RunDir
from harness.settings import Settings


def checkpoint_store(run_dir: RunDir, run_id: str, asked: Settings) -> Store:
    """The store that the run's checkpoints are in, made the run's own the first time.

    Raises `StoreError` where it was emptied since: an attempt would begin at step 1 again unseen.
    """
    store = Store.at(_url(run_dir, asked), run_id, **options(asked))
    _own(store, run_dir, asked)
    return store


def probed_store(
    run_dir: RunDir, run_id: str, asked: Settings, warn: Callable[[str], None]
) -> Store:
    """The same, tried out first; `warn` gets what people should know of it.

    Where it is full, room is made first. Raises `StoreError` for a storage that no run can trust.
    """
    store = Store.at(_url(run_dir, asked), run_id, **options(asked))
    try:
        lines = probe(store)
    except StoreError as refusal:
        if not is_full(refusal.__cause__):
            raise
        make_room(run_dir, run_id, asked, warn)
        lines = _probed_again(store, asked)
    for line in lines:
        warn(line)
    _own(store, run_dir, asked)
    return store


def is_full(error: BaseException | None) -> bool:
    """True for the lack of room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def make_room(run_dir: RunDir, run_id: str, asked: Settings, warn: Callable[[str], None]) -> None:
    """Delete what may go where there is no room, if the storage is this run's; `warn` hears of each."""
    store = Store.at(_url(run_dir, asked), run_id, **options(asked))
    try:
        if store.owner() == run_id:
            for place in retention.make_room(store, asked.keep):
                warn(f"no room is left: the checkpoint of step {place.step} was deleted for it")
    except FileNotFoundError:
        return  # it is not marked as anyone's yet
    except (StoreError, OSError) as error:
        warn(f"no room is left, and old checkpoints cannot be deleted: {error}")


def claim_attempt(store: Store, above: int, make_room: Callable[[], None]) -> int:
    """The next attempt's number; where there is no room for it, `make_room` is called once.

    Raises what `Store.claim_attempt` does.
    """
    try:
        return store.claim_attempt(above)
    except OSError as error:
        if not is_full(error):
            raise
        make_room()
        return store.claim_attempt(above)


def way_out(asked: Settings) -> str:
    """What people can do about a full storage."""
    if asked.keep_when_full:
        return f"make room: no more may go with keep_when_full = {asked.keep_when_full}"
    return (
        "make room, or say how many checkpoints are enough when it is full: --keep-when-full N"
        f" (now 0, and {asked.keep} are kept)"
    )


def _own(store: Store, run_dir: RunDir, asked: Settings) -> None:
    """Make the storage the run's own, once; the run directory remembers that it was."""
    known = _known(run_dir)
    if store.root in known and asked.resume != "fresh":
        recall_owner(store)
        store.check_kept()
        return
    store.adopt()
    roots = sorted(known | {store.root})
    replace_file(run_dir.storages, json.dumps({"schema": 1, "roots": roots}).encode())


def _known(run_dir: RunDir) -> set[str]:
    """The roots that were the run's own; without a list that can be read, none."""
    try:
        return set(json.loads(run_dir.storages.read_bytes())["roots"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _probed_again(store: Store, asked: Settings) -> list[str]:
    try:
        return probe(store)
    except StoreError as refusal:
        if is_full(refusal.__cause__):
            raise StoreError(f"{refusal}; {way_out(asked)}") from refusal.__cause__
        raise


def options(asked: Settings) -> dict[str, Any]:
    """What the settings say of any store."""
    return {
        "shard_bytes": asked.shard_bytes,
        "timeout_s": float(asked.storage_timeout_s),
        "spared": Spared(asked.keep_for_s, asked.keep_every_steps, asked.keep_when_full),
    }


def _url(run_dir: RunDir, asked: Settings) -> str:
    return asked.checkpoints or str(run_dir.checkpoints)
