"""How a rank hears SIGTERM, and who else does."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator

import pytest

from harness.sigterm import Notice


@pytest.fixture
def notice() -> Iterator[Notice]:
    """One that this process listens by, for the time of a test."""
    made = Notice()
    yield made
    made.ignore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_is_heard_and_ends_nothing(notice: Notice):
    assert not notice.wait(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert notice.wait(10)


def test_sigterm_before_anybody_waited_is_not_forgotten(notice: Notice):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)
    assert notice.wait(10)
    while notice.wait(0):  # it may have come by both ways
        pass


def test_another_signal_is_none_of_its_business(notice: Notice):
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert not notice.wait(0.05)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_whoever_waits_can_be_called(notice: Notice):
    notice.call()
    started_s = time.monotonic()
    assert not notice.wait(60)
    assert time.monotonic() - started_s < 30


def test_a_script_that_listens_itself_goes_on_to(notice: Notice):
    heard: list[int] = []
    notice.ignore()
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    later = Notice()
    os.kill(os.getpid(), signal.SIGTERM)
    assert not later.wait(0)
    assert heard == [signal.SIGTERM]
    later.ignore()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_child_that_is_forked_dies_of_sigterm_as_ever(notice: Notice):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    child.start()
    child.terminate()
    child.join(30)
    assert child.exitcode == -signal.SIGTERM
    assert not notice.wait(0.05)
