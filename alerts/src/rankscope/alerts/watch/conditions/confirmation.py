"""Confirmation of stragglers on new steps: the sequential correction for the watcher's repeated looks.

One analysis names a healthy rank with a probability of at most ``LIMIT``, 0.01. The watcher analyses a run every few seconds for
as long as it goes on, so it names a healthy rank sooner or later. Consecutive evaluations do not prevent that: they share nearly
all of their 500 steps.

So the first verdict raises no alert, only a suspicion. The alert needs another verdict that names the same rank from the steps
after those of the first verdict alone. These new steps are tested when there are at least 32 of them, and then each time their
number has doubled, up to ``RECENT_STEPS``: ``TESTS`` tests in all. After the last one the suspicion starts anew.

Guarantee: if the ranks are equal, each test names a given one of n ranks with a probability of about ``LIMIT`` / n, and the rank
is given by steps that the test does not use. By the union bound a suspicion is confirmed by chance with a probability of at most
``TESTS`` x ``LIMIT`` / n, which is 1 in 1,280 for 64 ranks, however often the watcher looks. It assumes that noise does not last
from the first verdict through the new steps. ``benchmarks/alerts/watching.py`` measures the rate of false alerts, also with
noise that does.

The suspicion is in the ledger, so a restarted watcher continues it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from rankscope.analysis.online import RECENT_STEPS, NewSteps

FIRST_TEST: Final = 32
"""Number of new steps at the first test: enough for a rank that is clearly slow."""


def next_test(tested: int) -> int:
    """Return the number of new steps for the test after the one of ``tested`` steps, 0 for none so far."""
    return min(2 * tested, RECENT_STEPS) if tested else FIRST_TEST


def _tests() -> int:
    steps, count = 0, 0
    while steps < RECENT_STEPS:
        steps, count = next_test(steps), count + 1
    return count


TESTS: Final = _tests()
"""Largest number of tests of a suspicion: 32, 64, 128, 256 and 500 new steps."""


class Suspicion(msgspec.Struct, frozen=True, kw_only=True):
    """State of the confirmation of one straggler."""

    attempt: int
    since: int
    """First step after those of the first verdict."""
    tested: int = 0
    """Number of new steps at the last test."""
    confirmed: bool = False


class Confirmation:
    """Confirmation at one evaluation of a run.

    ``end`` is the step after the last one that was analysed. ``judge_since`` judges the steps from a step on, or returns ``None``
    for fewer than ``at_least``, as ``OnlineAnalysis.judge_since`` does.
    """

    def __init__(self, attempt: int, end: int, judge_since: Callable[[int, int], NewSteps | None]) -> None:
        self._attempt = attempt
        self._end = end
        self._judge_since = judge_since

    def advance(self, suspicion: Suspicion | None, ranks: Collection[int]) -> Suspicion:
        """Return the next state of a suspicion after an evaluation that names ``ranks`` again.

        ``ranks``: the ranks of the alert; empty for a slowness that moves between ranks, which is confirmed as such.
        """
        if suspicion is None or suspicion.attempt != self._attempt or suspicion.tested >= RECENT_STEPS:
            return Suspicion(attempt=self._attempt, since=self._end)
        if suspicion.confirmed:
            return suspicion
        new = self._judge_since(suspicion.since, next_test(suspicion.tested))
        if new is None:
            return suspicion
        return msgspec.structs.replace(suspicion, tested=new.steps, confirmed=_names(new, ranks))


def _names(new: NewSteps, ranks: Collection[int]) -> bool:
    """Return whether new steps name at least half of ``ranks`` again, or a slowness that moves if there are none."""
    if not ranks:
        return any(slow.pattern == "rotating" for slow in new.slow)
    named = {rank for slow in new.slow if slow.pattern != "rotating" for rank in slow.ranks}
    return 2 * len(named.intersection(ranks)) >= len(ranks)
