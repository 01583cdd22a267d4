"""SIGKILL: what a dead accelerator, an out-of-memory kill or a pulled plug look like to the others.

The process has no last word: nothing is flushed, no lock is let go by hand, no handler runs.
"""

import signal

from faultinject.targets import Victim

ends_attempt = True


def act(victim: Victim) -> None:
    """End the process, as far as one process can end another."""
    victim.send(signal.SIGKILL)


def confirm(victim: Victim) -> str | None:
    """Its pidfd reads as ready once it is dead, reaped or not."""
    return f"process {victim.pid} is dead" if victim.is_dead() else None
