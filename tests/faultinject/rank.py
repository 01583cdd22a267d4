"""A process that is a rank as far as an injector can tell: it registers, and writes what it is told.

`python -m tests.faultinject.rank RUN RANK ATTEMPT`, then a command a line: `step N`, `save N`.
"""

import json
import os
import sys
from pathlib import Path

from harness.events import RankJoined, SaveCommitted, StepFinished, Tier
from harness.recorder import Recorder, boot_id
from harness.rundir import RunDir


def main() -> None:
    run_dir, rank, attempt = RunDir.at(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    with Recorder(run_dir, "run", f"rank-{rank}", attempt) as recorder:
        recorder.write(RankJoined(os.getpid(), ticks))
        worker = {
            "schema": 1,
            "rank": rank,
            "local_rank": rank,
            "pid": os.getpid(),
            "start_ticks": ticks,
            "boot_id": boot_id(),
            "attempt": attempt,
            "event_file": str(recorder.path),
        }
        run_dir.worker(rank).write_text(json.dumps(worker))
        print("ready", flush=True)
        for line in sys.stdin:
            command, step = line.split()
            if command == "step":
                recorder.write(StepFinished(int(step), 0, 0))
            else:
                recorder.write(SaveCommitted(int(step), Tier.STORAGE, 1))
            print("done", flush=True)


if __name__ == "__main__":
    main()
