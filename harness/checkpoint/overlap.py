"""Copies parameters and optimizer tensors beside the next forward and backward, for nothing changes them there.

All else is copied at the boundary: buffers and random streams change in forward. Whoever is about to
change what is copied late settles first, as every protected optimizer does that was seen to. A change
that comes unannounced is seen by the tensor's version; the copy is then no state of any step, and is not used.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from harness.points import Point, reach

Pair = tuple[Tensor, Tensor]
"""Where to, and what."""

_CHUNK_BYTES = 8 << 20
"""What one thread copies before it looks again: a few ms at most for another to wait."""
_LEAST_BYTES = 16 << 10
"""Smaller tensors are copied at once."""


def pays(asked: str, device: str, cores: int, ranks: int, threads: int) -> bool:
    """Whether to overlap, as `asked`: by default where a GPU copies, or each of `ranks` has a core to spare."""
    if asked == "auto":
        return device != "cpu" or cores >= ranks * (threads + 1)
    return asked == "on"


class ChangedError(RuntimeError):
    """What was copied had been changed meanwhile by someone who did not announce it."""


class Late(Protocol):
    """A copy under way."""

    @property
    def holds_up(self) -> bool:
        """`settle` would have its caller wait."""

    def settle(self) -> None:
        """Let nothing that changes the sources come before the copy."""

    def wait(self) -> None:
        """Come back once all values are there. Raises `ChangedError` if they are not of one moment."""


class Overlap:
    """One rank's copies. `still` gives the tensors that only an optimizer's step changes."""

    def __init__(
        self,
        still: Callable[[], Iterable[Tensor]],
        warn: Callable[[str], None],
        is_on: bool = True,
    ) -> None:
        self._still = still
        self._warn = warn
        self._thread = _Copyist()
        self._late: Late | None = None
        self._announced = False
        self.is_on = is_on

    @property
    def holds_up(self) -> bool:
        """`settle` would have this thread wait."""
        return self._late is not None and self._late.holds_up

    def copy(self, pairs: Sequence[Pair]) -> Late:
        """Copy each second tensor into the first: some at once, the rest until `settle` or `wait`."""
        self.settle()
        late = self._late_ones(pairs)
        self._announced = False
        rest = [pair for pair, is_late in zip(pairs, late, strict=True) if not is_late]
        held = [pair for pair, is_late in zip(pairs, late, strict=True) if is_late]
        begun: Late
        if any(source.is_cuda for _, source in pairs):
            begun = _OnDevice(rest, held, self._changed)
        else:
            begun = _OnHost(rest, held, self._changed, self._thread)
        self._late = begun
        return begun

    def announce(self) -> None:
        """Called by each protected optimizer before it steps; nothing is copied late after a step without.

        The replay of a CUDA graph calls nobody, and moves no version.
        """
        self._announced = True
        if not self.is_on:
            return
        if torch._C._current_graph_task_id() != -1:
            self._end("an optimizer steps in backward")
        elif torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]  # torch's own
            self._end("an optimizer's step is captured in a CUDA graph")

    def settle(self) -> None:
        """Called in the training thread before anything changes what may be copied late."""
        late, self._late = self._late, None
        if late is not None:
            late.settle()

    def _late_ones(self, pairs: Sequence[Pair]) -> list[bool]:
        if not (self.is_on and self._announced):
            return [False] * len(pairs)
        still = {tensor.untyped_storage().data_ptr() for tensor in self._still()}
        return [
            source.nbytes >= _LEAST_BYTES and source.untyped_storage().data_ptr() in still
            for _, source in pairs
        ]

    def _changed(self) -> None:
        self._end(
            "a parameter or optimizer tensor was changed outside of a protected optimizer's step"
        )

    def _end(self, why: str) -> None:
        if self.is_on:
            self.is_on = False
            self._warn(f"{why}: from here on training stops for whole copies")


class _Versions:
    """Whether tensors are as they were: judged once, by whoever comes first after the copy."""

    def __init__(self, sources: Iterable[Tensor], changed: Callable[[], None]) -> None:
        self._before = [(source, source._version) for source in sources]
        self._changed = changed
        self._lock = threading.Lock()
        self._sound: bool | None = None

    def judge(self) -> bool:
        """True if nothing had changed when this was first called."""
        with self._lock:
            if self._sound is None:
                self._sound = all(source._version == then for source, then in self._before)
                self._before = []
                if not self._sound:
                    self._changed()
            return self._sound

    def check(self) -> None:
        """Raise `ChangedError` if anything had."""
        if not self.judge():
            raise ChangedError("the state was changed while it was copied")


# ── memory of this machine ──────────────────────────────────────────────────────────────────────


class _OnHost:
    """A thread copies; whoever has to wait for it copies too."""

    def __init__(
        self,
        rest: Sequence[Pair],
        late: Sequence[Pair],
        changed: Callable[[], None],
        thread: "_Copyist",
    ) -> None:
        self._versions = _Versions([source for _, source in late], changed)
        self._chunks = deque(chunk for pair in late for chunk in _chunks(*pair))
        self._left = len(self._chunks)
        self._counted = threading.Condition()
        if self._chunks:
            thread.give(self)
        try:
            _copied(rest)
        except BaseException:
            self._chunks.clear()  # the memory is another copy's from now on
            raise

    def work(self) -> None:
        """Copy until there is nothing left to begin."""
        while True:
            try:
                target, source = self._chunks.popleft()
            except IndexError:
                return
            np.copyto(target, source)  # without the interpreter's lock, and on one core
            with self._counted:
                self._left -= 1
                self._counted.notify_all()

    @property
    def holds_up(self) -> bool:
        """See `Late`."""
        return self._left > 0

    def settle(self) -> None:
        """See `Late`."""
        self.work()
        with self._counted:
            self._counted.wait_for(lambda: self._left == 0)
        self._versions.judge()

    def wait(self) -> None:
        """See `Late`. This is no training thread: it leaves the work to the one that has it."""
        with self._counted:
            self._counted.wait_for(lambda: self._left == 0)
        self._versions.check()


def _copied(pairs: Sequence[Pair]) -> None:
    half = -(-len(pairs) // 2)
    for target, source in pairs[:half]:
        target.copy_(source)
    reach(Point.SAVE_COPY)
    for target, source in pairs[half:]:
        target.copy_(source)


class _Copyist:
    """The thread that copies on the host; begun with the first copy."""

    def __init__(self) -> None:
        self._given: SimpleQueue[_OnHost] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, copy: _OnHost) -> None:
        """Have it worked on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint-copy", daemon=True)
            self._thread.start()
        self._given.put(copy)

    def _run(self) -> None:
        while True:
            self._given.get().work()


Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def _chunks(target: Tensor, source: Tensor) -> Iterable[tuple[Bytes, Bytes]]:
    """The same bytes in pieces; a tensor whose values do not lie together is one of its own making."""
    whole = _bytes(target), _bytes(source.resolve_conj().resolve_neg().contiguous())
    for begin in range(0, target.nbytes, _CHUNK_BYTES):
        yield tuple(side[begin : begin + _CHUNK_BYTES] for side in whole)  # type: ignore[misc]


def _bytes(tensor: Tensor) -> Bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


# ── memory of a GPU ─────────────────────────────────────────────────────────────────────────────


class _OnDevice:
    """Streams copy: the training's own what changes soon, another one the rest. The host waits for neither."""

    def __init__(
        self, rest: Sequence[Pair], late: Sequence[Pair], changed: Callable[[], None]
    ) -> None:
        self._versions = _Versions([source for _, source in late], changed)
        self._held = (rest, late)  # whose memory is not to be used again before they are copied
        training = torch.cuda.current_stream()
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
        beside.wait_stream(training)
        _issue(rest)
        self._at_once = training.record_event()
        reach(Point.SAVE_COPY)
        with torch.cuda.stream(beside):
            _issue(late)
        self._late = beside.record_event()

    @property
    def holds_up(self) -> bool:
        """See `Late`."""
        return False

    def settle(self) -> None:
        """See `Late`: the device waits, and not the host; for a capture to begin, all had to be done."""
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().wait_event(self._late)
        self._versions.judge()

    def wait(self) -> None:
        """See `Late`."""
        self._at_once.synchronize()
        self._late.synchronize()
        self._held = ((), ())
        self._versions.check()


def _issue(pairs: Sequence[Pair]) -> None:
    for target, source in pairs:
        target.copy_(source, non_blocking=True)
