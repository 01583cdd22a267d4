"""An open file whose bytes are spoilt on their way.

On one machine's disk a file is written beside its name and takes it when it is closed, as an object
does; so what was broken off in the middle is never seen, on any storage.
"""

import errno
import io
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fsspec.spec import AbstractBufferedFile

from faultinject.rules import Kind
from faultinject.spoiling import Hit


class SpoiltFile(io.IOBase):
    """Passes on what is written to or read from `inner`, as `hits` have it."""

    def __init__(self, inner: Any, hits: Sequence[Hit], closed: Callable[[int], None]) -> None:
        self._inner = inner
        self._hits = list(hits)
        """Those that have not acted yet, and those that act on every byte."""
        self._deaf = False
        """Nothing more arrives, and nobody says so."""
        self._told = closed
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def writable(self) -> bool:
        """See `io.IOBase`."""
        return bool(self._inner.writable())

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return bool(self._inner.readable())

    def seekable(self) -> bool:
        """See `io.IOBase`."""
        return bool(self._inner.seekable())

    def tell(self) -> int:
        """See `io.IOBase`."""
        return int(self._inner.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        """See `io.IOBase`."""
        return int(self._inner.seek(offset, whence))

    def flush(self) -> None:
        """See `io.IOBase`; a closed file is flushed."""
        if not self.closed:
            self._inner.flush()

    def fileno(self) -> int:
        """See `io.IOBase`; an object has none."""
        return int(self._inner.fileno())

    @property
    def closed(self) -> bool:
        """See `io.IOBase`."""
        return bool(self._inner.closed)

    def close(self) -> None:
        """Publish what was written."""
        if not self.closed:
            writes = self.writable()
            self._inner.close()
            if writes:
                self._told(self._written)

    def discard(self) -> None:
        """Leave nothing of what was written."""
        self._inner.discard()
        if isinstance(self._inner, AbstractBufferedFile):
            self._inner.closed = True  # or the object is published as it is forgotten

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._inner.__exit__(kind, error, trace)

    def __del__(self) -> None:
        """Leave it to `inner`, which was not published if it was not closed."""

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    def write(self, data: Any) -> int:
        """Pass on what is left of `data`; says that all of it went."""
        view = memoryview(data).cast("B")
        for hit in self._hits if len(view) else []:
            if hit.rule.kind is Kind.ENOSPC:
                self._fill_up(hit, view)
        acting = self._acting() if len(view) else []
        left: bytes | memoryview = view
        for hit in acting:
            match hit.rule.kind:
                case Kind.BIT_FLIP:
                    left = hit.flipped(left)
                case Kind.SHORT_WRITE:
                    self._pass_on(left[: len(left) // 2])
                    self._deaf = True
                case _:
                    half = len(left) // 2
                    self._pass_on(left[:half])
                    left = left[half:]
                    hit.strike()
        self._pass_on(left)
        self._written += len(view)
        return len(view)

    def _fill_up(self, hit: Hit, view: memoryview) -> None:
        room, full = hit.take(len(view))
        if full is not None:
            self._pass_on(view[:room])
            raise full.error(errno.ENOSPC, "no space left on device")

    def _pass_on(self, data: bytes | memoryview) -> None:
        if not self._deaf and len(data):
            self._inner.write(data)

    def _acting(self) -> list[Hit]:
        """Those whose moment has come; each has one."""
        acting = [hit for hit in self._hits if hit.rule.kind is not Kind.ENOSPC]
        self._hits = [hit for hit in self._hits if hit not in acting]
        return acting

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def read(self, size: int | None = -1) -> bytes:
        """Bytes as they come through."""
        left = self._left()
        wanted = left if size is None or size < 0 else min(size, left)
        return self._received(bytes(self._inner.read(wanted)))

    def readinto(self, target: Any) -> int:
        """Fill `target` with bytes as they come through; how many did."""
        view = memoryview(target).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _left(self) -> int:
        """How many bytes the file seems to have from here on."""
        size = int(self._inner.size)
        if any(hit.rule.kind is Kind.TRUNCATE for hit in self._hits):
            size //= 2
        return max(0, size - self.tell())

    def _received(self, data: bytes) -> bytes:
        for hit in [hit for hit in self._hits if hit.rule.kind is not Kind.TRUNCATE]:
            if data or hit.rule.kind is not Kind.BIT_FLIP:
                self._hits.remove(hit)
                data = hit.flipped(data) if hit.rule.kind is Kind.BIT_FLIP else data
                hit.strike()
        return data


class Beside(io.FileIO):
    """A file of this machine that takes its name when it is closed whole."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._temporary = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        super().__init__(self._temporary, "w")

    def close(self) -> None:
        """Make it durable and give it its name."""
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            self._temporary.replace(self._path)

    def discard(self) -> None:
        """Leave nothing of it."""
        super().close()
        self._temporary.unlink(missing_ok=True)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        """What was never closed is not published."""
        if not self.closed:
            self.discard()
