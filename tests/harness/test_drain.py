import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, PrefixStore

from harness.drain import REQUEST, Drain
from harness.sigterm import Notice


class Ranks:
    """Ranks in lock-step by a barrier, as a collective keeps them, each with its own `Drain`."""

    def __init__(self, count: int) -> None:
        self.store = HashStore()
        messages = PrefixStore("ranks", self.store)
        self.notices = [Notice() for _ in range(count)]
        self.drains = [
            Drain(self.store, messages, rank, count, notice)
            for rank, notice in enumerate(self.notices)
        ]
        self.collective = threading.Barrier(count, timeout=10)

    def close(self) -> None:
        """Stop listening, on every rank."""
        for drain, notice in zip(self.drains, self.notices, strict=True):
            drain.close()
            notice.ignore()

    def train(self, rank: int, total: int, ask_at: int | None) -> int:
        """Steps finished when the rank leaves; rank 0 asks for the drain inside step `ask_at`."""
        drain = self.drains[rank]
        for finished in range(total):
            if drain.at_boundary(finished):
                return finished
            if rank == 0 and finished + 1 == ask_at:
                self.store.set(REQUEST, "1")
                while not drain._asked:
                    threading.Event().wait(0.01)
            self.collective.wait()
        return total


@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_ranks_leave_after_the_same_step(count):
    ranks = Ranks(count)
    with ThreadPoolExecutor(count) as pool:
        left = list(pool.map(lambda rank: ranks.train(rank, 1_000_000, 20), range(count)))
    assert len(set(left)) == 1
    # The step under way when it was asked is finished; a rank ahead of it may be in the next.
    assert 20 <= left[0] <= 21
    ranks.close()


def test_nobody_leaves_who_was_not_asked():
    ranks = Ranks(2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda rank: ranks.train(rank, 50, None), range(2))) == [50, 50]
    ranks.close()


def test_a_drain_before_the_first_step_leaves_at_once():
    ranks = Ranks(1)
    ranks.store.set(REQUEST, "1")
    (drain,) = ranks.drains
    while not drain._asked:
        threading.Event().wait(0.01)
    assert drain.at_boundary(0)
    ranks.close()


def test_a_rank_that_is_done_already_keeps_nobody_waiting_who_hears_of_the_drain_later():
    ranks = Ranks(2)
    done, last = ranks.drains
    assert not done.at_boundary(4)
    assert not last.at_boundary(4)
    done.close()
    ranks.store.set(REQUEST, "1")
    while not last._asked:
        threading.Event().wait(0.01)
    closing = threading.Thread(target=last.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    ranks.close()


def test_sigterm_to_one_rank_is_told_to_all_of_them():
    ranks = Ranks(1)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        while not ranks.drains[0]._asked:
            threading.Event().wait(0.01)
        assert ranks.store.get(REQUEST) == b"SIGTERM to rank 0"
    finally:
        ranks.close()
