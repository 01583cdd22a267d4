"""Asks once for each state and tier whether that may be saved; ranks may compare it for that."""

from collections.abc import Callable

from harness.checkpoint.tell import said
from harness.events import Tier
from harness.signals.unsound import UnsoundStateError


class Vouching:
    """`vouch` is called with the tier, on all ranks alike."""

    def __init__(self, vouch: Callable[[Tier], None]) -> None:
        self._vouch = vouch
        self._asked = (-1, Tier.MEMORY)
        self._refusal: str | None = None

    def refusal(self, step: int, tier: Tier) -> str | None:
        """Why the state after `step` cannot be looked at, as on a device without memory for that; None if it could.

        Raises `UnsoundStateError` for one that is not to be kept.
        """
        if self._asked == (step, tier):
            return self._refusal
        self._asked, self._refusal = (step, tier), None
        try:
            self._vouch(tier)
        except UnsoundStateError:
            raise
        except Exception as error:  # noqa: BLE001  # it ends a save, and never training
            self._refusal = said(error)
        return self._refusal
