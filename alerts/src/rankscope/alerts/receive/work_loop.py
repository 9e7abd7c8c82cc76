"""Work of a thread that is repeated, also after failures, until the receiver stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from rankscope.alerts.store.database import StoreError
from rankscope.base.problems import ProblemLog

PAUSE_S: Final = 5.0
"""Pause after a failure, such as a failed write."""


def run_until_stopped(
    work: Callable[[], object],
    woken: threading.Event,
    stopping: threading.Event,
    *,
    poll_s: float,
    report: Callable[[str], object],
    item_names: str,
) -> None:
    """Call ``work`` when ``woken`` is set, and every ``poll_s``, until ``stopping`` is set.

    A failure is reported once, and ``work`` is called again after a pause. ``item_names``: what is not lost meanwhile.
    """
    problems = ProblemLog(report)
    while not stopping.is_set():
        problem = None
        try:
            work()
        except (StoreError, OSError) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a bug costs one attempt, not everything after it
            problem = f"internal fault: {type(error).__name__}: {error}"
        problems.report(problem and f"{problem}; {item_names} are kept and retried")
        if problem:
            stopping.wait(PAUSE_S)
        woken.wait(poll_s)
        woken.clear()
