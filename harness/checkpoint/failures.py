"""Whatever the libraries of a storage raise, as an `OSError` that says whether it may pass."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told(path: str) -> Iterator[None]:
    """Whatever the libraries below raise becomes an `OSError` that says what kind it is."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, error.strerror or str(error), path) from error
    except OSError:
        raise
    except Exception as error:
        raise _as_os_error(error, path) from error


def _as_os_error(error: Exception, path: str) -> OSError:
    status = _status(error)
    what = f"{type(error).__name__}: {error}"
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, what, path)
    if status in (401, 403):
        return PermissionError(errno.EACCES, what, path)
    if isinstance(error, NotImplementedError | TypeError | AttributeError):
        return OSError(errno.ENOSYS, what, path)
    passing = status is None or status in (408, 429) or status >= 500
    return OSError(errno.EREMOTEIO if passing else errno.EINVAL, what, path)


def _status(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, if there is one."""
    while error is not None:
        for name in ("status_code", "status", "code"):
            if isinstance(value := getattr(error, name, None), int) and 100 <= value < 600:
                return value
        error = error.__cause__
    return None
