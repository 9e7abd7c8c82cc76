"""Analyses in the background: a few at a time, each once, whatever happens to one of them."""

from __future__ import annotations

import threading

from tests.waiting import wait_until

from rankscope.base.errors import InputError
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.store.backlog import AT_ONCE, Backlog

PATIENCE_S = 20.0


class Analyses:
    """Analyses that take two requests each, one of which fails, and one of which is an error of ours."""

    def __init__(self, last: str) -> None:
        self.asked: dict[str, int] = {}
        self.most_at_once = 0
        self.ended: list[str] = []
        self.last = threading.Event()
        self._last = last

    def __call__(self, run_id: str) -> None:
        self.asked[run_id] = self.asked.get(run_id, 0) + 1
        self.most_at_once = max(self.most_at_once, len(self.asked) - len(self.ended))
        if run_id not in ("damaged", "ours") and self.asked[run_id] < 2:
            raise NotReadyError(Progress("starting"))
        self.ended.append(run_id)
        if run_id == self._last:
            self.last.set()
        if run_id == "damaged":
            raise InputError("x", "damaged")
        if run_id == "ours":
            raise ZeroDivisionError


def test_runs_are_analysed_a_few_at_a_time_and_a_damaged_one_stops_no_other() -> None:
    analyses = Analyses("h")
    backlog = Backlog(analyses, look_every_s=0.01)
    backlog.add(["damaged", "ours", *"abcdefgh"])
    backlog.add(["h"])  # a second viewer clicks
    assert analyses.last.wait(PATIENCE_S)
    assert sorted(analyses.ended) == sorted(["damaged", "ours", *"abcdefgh"])
    assert analyses.most_at_once <= AT_ONCE
    for thread in threading.enumerate():
        if thread.name == "analyse runs":
            thread.join(PATIENCE_S)
    assert backlog.progress == Progress("analysing runs", 10, 10)


def test_a_request_after_the_last_has_ended_starts_again() -> None:
    analyses = Analyses("b")
    backlog = Backlog(analyses, look_every_s=0.01)
    backlog.add([])
    assert backlog.progress.of == 0
    backlog.add("a")
    wait_until(lambda: backlog.progress.done >= 1)
    backlog.add("b")
    assert analyses.last.wait(PATIENCE_S)
