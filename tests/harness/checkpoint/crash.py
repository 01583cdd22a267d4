"""A program that is killed at each point of a save, in a run of its own for each: `crash ROOT`."""

import os
import signal
import sys
from pathlib import Path

from harness import points
from harness.points import Point
from tests.harness.checkpoint.world import Rank, Run

POINTS = (
    Point.SAVE_COPY,
    Point.SAVE_SHARD,
    Point.SAVE_MANIFEST,
    Point.SAVE_COMMIT,
    Point.RETENTION,
)


def die_at(point: Point, root: Path) -> None:
    """Commit step 10, then die in the save of step 20."""

    def body(rank: Rank) -> None:
        assert rank.save(10)
        points.arm(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
        rank.save(20)

    Run(root / point).attempt(body, world_size=1, keep=1)


def main() -> None:
    for point in POINTS:
        child = os.fork()
        if child == 0:
            die_at(point, Path(sys.argv[1]))
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), point
        assert os.WTERMSIG(status) == signal.SIGKILL, point


if __name__ == "__main__":
    main()
