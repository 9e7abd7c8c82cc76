"""The collector loop: how long its last result stays fresh."""

from __future__ import annotations

import threading

import pytest

from rankscope.exporter.loop import CollectorLoop


@pytest.mark.slow
def test_a_slow_collector_stays_fresh_and_one_that_hangs_does_not() -> None:
    # given a collector whose passes take many intervals, and a third pass that never ends
    passes = threading.Semaphore(0)
    entered = threading.Semaphore(0)
    release = threading.Event()

    def collect() -> str:
        entered.release()
        if not passes.acquire(blocking=False):
            release.wait(60)  # hangs until the test is over
            return "late"
        release.wait(0.4)
        return "reading"

    passes.release()
    passes.release()
    loop = CollectorLoop("gpu", collect, interval_s=0.02)
    loop.start()
    try:
        assert loop.wait_for_first_pass(60)
        # then the last result stays fresh during the next slow pass
        entered.acquire()
        entered.acquire()
        while not entered.acquire(blocking=False):
            assert loop.latest().fresh
        # and it becomes stale while the third pass hangs, with the reason
        while loop.latest().fresh:
            release.wait(0.01)
        assert "does not end" in str(loop.latest().reason)
    finally:
        release.set()
        loop.stop(60)
