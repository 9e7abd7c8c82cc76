"""Watchers of new runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.alerts.watch.watched_world import PATIENCE_S, MakeWorld, World, analysis_of, past_of

from rankscope.alerts.watch.liveness.monitor import Patience


@pytest.fixture
def make_world(make_run: Any) -> MakeWorld:
    """Factory: ``make_world()`` is a watcher of a new run, ``make_world("..")`` one of its folder of runs."""

    def make(path: str = ".", *, slow: int | None = 2, **options: Any) -> World:
        run = make_run(slow=slow)
        return World(run, (run.path / path).resolve(), **options)

    return make


@pytest.fixture
def make_quiet_world(make_world: MakeWorld) -> MakeWorld:
    """The same with a patience of one minute, and a run with steps of 0.1 s in which no rank is slow.

    Unless ``moved`` is false, the watcher has seen its ranks make steps for 20 s.
    """

    def make(path: str = ".", *, moved: bool = True, **options: Any) -> World:
        options = {"patience": Patience(silent_after_s=PATIENCE_S), "ask_for_dumps": False, **options}
        world = make_world(path, slow=None, **options)
        world.answer = analysis_of()
        world.steps = past_of([0.1] * 100)
        if moved:
            world.go_on(20)
        return world

    return make
