"""Why an attempt has no state to start from: for good, or because the storage cannot be asked now."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.checkpoint.manifest import UnansweredError
from harness.checkpoint.patience import tells_nothing
from harness.checkpoint.tell import said


class RestoreError(ValueError):
    """There is no state that this attempt may start from."""


class OutageError(RestoreError):
    """The storage does not answer now; a later attempt may start where this one cannot."""


@contextmanager
def told_as_outage(root: str) -> Iterator[None]:
    """Make an `OutageError` of what the storage at `root` fails with, whatever it is asked for."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, UnansweredError) and not tells_nothing(error):
            raise
        raise OutageError(f"{root} cannot be used now: {said(error)}") from error
