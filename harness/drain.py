"""How all ranks agree on the step after which they leave, without talking to each other in any step.

A rank may be inside a collective, unable to answer, when the launcher asks, or another rank that was
sent SIGTERM. So a thread of each rank answers for it: it says which step the rank is in, and the job
leaves after the highest.
"""

import threading

from torch.distributed import Store

from harness.sigterm import Notice

REQUEST = "harness/drain"
"""The key that whoever is told to leave sets in the attempt's store; under our launcher outside of the
ranks' own prefix, where it looks too. Its value says who was told."""
POLL_S = 0.2


class Drain:
    """One rank's part of the agreement. `at_boundary` is for the training loop alone."""

    def __init__(
        self, request: Store, messages: Store, rank: int, world_size: int, notice: Notice
    ) -> None:
        self._request = request
        self._notice = notice
        self._messages = messages
        self._rank = rank
        self._world_size = world_size
        self._lock = threading.Lock()
        self._in_progress = 0
        self._asked = False
        self._last_step: int | None = None
        self._agreed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="harness-drain", daemon=True)
        self._thread.start()

    def at_boundary(self, finished: int) -> bool:
        """True if the job leaves now, after `finished` steps; else the next step is under way."""
        with self._lock:
            if not self._asked:
                self._in_progress = finished + 1
                return False
        self._agreed.wait()
        return self._last_step is None or finished >= self._last_step

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._notice.call()
        self._thread.join()

    def _listen(self) -> None:
        try:
            asked = self._await_request()
            with self._lock:
                self._asked = asked
            # A rank that is done answers too: the request may have reached a peer just before.
            self._messages.set(f"drain/{self._rank}", str(self._in_progress))
            if not asked:
                return
            keys = [f"drain/{rank}" for rank in range(self._world_size)]
            self._last_step = max(int(answer) for answer in self._messages.multi_get(keys))
        except RuntimeError:
            # The store went with its launcher, or a peer died before it answered: either ends
            # this attempt by other means. Leaving at the next boundary is then as good as any.
            self._last_step = None
        finally:
            self._agreed.set()

    def _await_request(self) -> bool:
        """True once anybody asks; False if this rank is done first."""
        while not self._request.check([REQUEST]):
            if self._notice.wait(POLL_S):
                self._request.set(REQUEST, f"SIGTERM to rank {self._rank}")
            elif self._closed.is_set():
                return False
        return True
