"""Ranks of a benchmark, forked from one process that has imported torch and computed nothing."""

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - DDP's constructor imports it: once here, not once in every rank


def forked(ranks: int, folder: Path, work: Callable[[int, list[object]], Any]) -> Any:
    """What `work` gave to rank 0, by way of JSON. Ends the benchmark if a rank fails.

    What `work` puts into its list is never freed: a DDP that is waits for gloo's threads with the
    interpreter in its hand, and now and then one of them wants it (torch 2.13).
    """
    children = []
    kept: list[object] = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                answer = work(rank, kept)
                if rank == 0:
                    (folder / "answer").write_text(json.dumps(answer))
                code = 0
            except Exception:  # noqa: BLE001  # a child of ours must not go on as the parent
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if codes != [0] * ranks:
        raise SystemExit(f"ranks ended with {codes}")
    return json.loads((folder / "answer").read_text())
