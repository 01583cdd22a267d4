"""Work that goes on in a thread of its own until its result is asked for."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def begin(act: Callable[[], Result]) -> "Future[Result]":
    """What `act` will return, or raise. One that hangs does not keep the process from ending."""
    future: Future[Result] = Future()

    def carry_out() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001  # raised again where it is asked for
            future.set_exception(error)

    Thread(target=carry_out, daemon=True).start()
    return future
