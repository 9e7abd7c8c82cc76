"""Failures and signals that may reach training, and those that may not."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident

import pytest

from rankscope.profiler.rank.guard import guarded


class Guarding:
    """Recorder that fails, or that is busy when a signal arrives."""

    def __init__(self) -> None:
        self.thread = self.listening = get_ident()
        self.cost_ns = 0
        self.failures: list[str] = []

    def failed(self, error: Exception) -> None:
        from rankscope.profiler.rank.guard import raised_by_a_signal_handler

        if raised_by_a_signal_handler(error):
            raise error
        self.failures.append(str(error))

    @guarded(default="nothing")
    def fail(self, at: int) -> str:
        raise RuntimeError(f"planted at {bool(at)}")

    @guarded(default="nothing")
    def interrupted(self, at: int) -> str:
        signal.raise_signal(signal.SIGUSR1)
        return f"done, {bool(at)}"


class TooLongError(Exception):
    """Raised by the handler of a signal."""


def too_long(*_: object) -> None:
    raise TooLongError


class Handler:
    """Signal handlers that are methods or objects."""

    def method(self, *_: object) -> None:
        raise TooLongError

    def __call__(self, *_: object) -> None:
        raise TooLongError


@pytest.fixture
def handled_by() -> Iterator[Callable[[Callable[..., None]], object]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield partial(signal.signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_fault_of_its_own_is_not_training_s() -> None:
    guarding = Guarding()
    assert guarding.fail() == "nothing"
    assert guarding.failures == ["planted at True"]
    assert guarding.listening == guarding.thread


@pytest.mark.parametrize("handler", [too_long, Handler().method, Handler()])
def test_what_a_signal_handler_raises_is_training_s(
    handler: Callable[..., None], handled_by: Callable[[Callable[..., None]], object]
) -> None:
    guarding = Guarding()
    handled_by(handler)
    with pytest.raises(TooLongError):
        guarding.interrupted()
    assert guarding.failures == []
    assert guarding.listening == guarding.thread


def test_a_signal_handler_that_returns_changes_nothing(handled_by: Callable[[Callable[..., None]], object]) -> None:
    guarding, seen = Guarding(), []
    handled_by(lambda *_: seen.append("handled"))
    assert guarding.interrupted() == "done, True"
    assert seen == ["handled"]
