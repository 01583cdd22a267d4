"""The command `harness run`, as the command line finds it: arguments in, exit status out.

Nothing heavy is imported here, so that what is imported is imported by one thread.
"""

import signal
import sys
from typing import NoReturn

from harness.events import EXIT_CODES, Outcome
from launch import options, warm, watch
from launch.flags import UsageError

USAGE = 2


def run(argv: list[str]) -> int:
    """Run a distributed PyTorch job that survives its ranks.

    Takes torchrun's flags and its own, then a script or `-m module` with its arguments. In a rank,
    which is a fork of this process, it ends in `SystemExit`.
    """
    threads = warm.keep_to_one_thread()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` had it ignored
            signal.signal(number, _leave)
    try:
        asked = options.parse(argv)
        from launch.launcher import launch

        status = launch(asked, threads)
    except KeyboardInterrupt:
        return EXIT_CODES[Outcome.INTERRUPTED]
    except UsageError as error:
        print(f"harness run: {error}\n(see harness run --help)", file=sys.stderr)  # noqa: T201
        return USAGE
    watch.ignore()
    return status


def _leave(_number: int, _frame: object) -> NoReturn:
    """Until the launcher listens there is nothing to save: it may be run again."""
    sys.exit(EXIT_CODES[Outcome.DRAINED])
