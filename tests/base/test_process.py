"""Pause of Python's garbage collector."""

from __future__ import annotations

import gc

import pytest

from rankscope.base.process import collector_paused


def test_the_collector_works_again_after_an_error() -> None:
    @collector_paused()
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_a_pause_within_a_pause_does_not_end_it() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
