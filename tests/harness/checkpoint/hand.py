"""A rank by hand, without torch: `hand RUN_ID ADDRESS ATTEMPT RANK STEP [absent]`.

Hands its share of one save to the saver (two ranks, one tensor each), says so, and tells what it hears.
"""

import sys

from harness.checkpoint import shards
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.shards import Piece, Spec
from harness.checkpoint.share import Shard, Share
from harness.checkpoint.wire import Handed, Hello, Line

RANKS = 2


def hello(run_id: str, attempt: int, rank: int) -> Hello:
    return Hello(run_id, attempt, rank, RANKS, keep=3, deadline_s=60.0, fingerprint={})


def handed(number: int, attempt: int, rank: int, step: int) -> tuple[Handed, Memory]:
    """Rank `rank`'s half of a tensor of ones, and the memory that it lies in."""
    piece = Piece("shared/w", Spec("U8", (2000,)), 1000 * rank, 1000)
    header = shards.header([piece], {"run_id": "run"})
    memory = Memory(len(header) + 1000)
    memory.view[:] = header + b"\1" * 1000
    name = shards.file_name(rank, RANKS, 0)
    shard = Shard(name, [piece], 0, len(header), memory.size_bytes)
    shared = '{"w": {"$tensor": "w"}}' if rank == 0 else ""
    share = Share(rank, [shard], shared, "{}", "layout")
    return Handed(number, Place(step, attempt), share), memory


def main(run_id: str, address: str, attempt: str, rank: str, step: str, *absent: str) -> None:
    line = Line.to(address, 20.0)
    line.send(hello(run_id, int(attempt), int(rank)))
    if not absent:
        message, memory = handed(1, int(attempt), int(rank), int(step))
        line.send(message, memory.descriptor)
    print("handed", flush=True)
    print(line.receive()[0], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
