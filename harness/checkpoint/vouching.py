"""Asks once for each state and tier whether that may be saved; ranks may compare it for that."""

from collections.abc import Callable

from harness.checkpoint.tell import said
from harness.events import Tier
from harness.signals.unsound import UnsoundStateError


class Vouching:
    """`vouch` is called with the tier, on all ranks alike."""

    def __init__(self, vouch: Callable[[Tier], None]) -> None:
        self._vouch = vouch
        self._done = (-1, Tier.MEMORY)

    def refusal(self, step: int, tier: Tier) -> str | None:
        """Why the state after `step` cannot be looked at, as on a device without memory for that; None if it could.

        Raises `UnsoundStateError` for one that is not to be kept.
        """
        if self._done == (step, tier):
            return None
        self._done = step, tier
        try:
            self._vouch(tier)
        except UnsoundStateError:
            raise
        except Exception as error:  # noqa: BLE001  # it ends a save, and never training
            return said(error)
        return None
