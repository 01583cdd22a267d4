"""What was asked of a state is asked once, and stays answered."""

import pytest

from harness.checkpoint.vouching import Vouching
from harness.events import Tier
from harness.signals.unsound import UnsoundStateError


def test_a_state_that_could_not_be_looked_at_is_refused_each_time_and_looked_at_once():
    asked: list[Tier] = []

    def vouch(tier: Tier) -> None:
        asked.append(tier)
        if tier is Tier.MEMORY:
            raise MemoryError("no room to look")

    vouching = Vouching(vouch)
    for _ in range(2):
        assert "no room to look" in str(vouching.refusal(7, Tier.MEMORY))
    assert [vouching.refusal(7, Tier.STORAGE) for _ in range(2)] == [None, None]
    assert asked == [Tier.MEMORY, Tier.STORAGE]


def test_a_state_that_is_not_to_be_kept_ends_the_attempt():
    def vouch(_: Tier) -> None:
        raise UnsoundStateError("spoilt")

    with pytest.raises(UnsoundStateError):
        Vouching(vouch).refusal(1, Tier.MEMORY)
