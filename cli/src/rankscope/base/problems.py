"""Problems that last, such as a full disk: each is reported once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

Reason = TypeVar("Reason", bound=Hashable)


class ProblemLog(Generic[Reason]):
    """Reporter of present problems, by subject: with a text as the reason, or a record that ``report`` describes. Thread-safe.

    A problem is reported when it begins, and when its reason changes. A reason that several subjects share is reported once.

    Args:
        report: takes the reason of a problem.
        over: is called when a problem is over.
        each_reason: False: another reason of the same problem is not reported; the texts of some libraries differ each time.
    """

    def __init__(
        self, report: Callable[[Reason], object], over: Callable[[], object] = lambda: None, *, each_reason: bool = True
    ) -> None:
        self._report = report
        self._over = over
        self._each_reason = each_reason
        self._reasons: dict[Hashable, Reason] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._reasons)

    def __contains__(self, about: Hashable) -> bool:
        return about in self._reasons

    @property
    def reason(self) -> Reason | None:
        """The reason of the oldest problem; None if there is no problem."""
        return next(iter(self._reasons.values()), None)

    def report(self, reason: Reason | None, about: Hashable = None) -> None:
        """Set the present reason of the subject ``about``; None if it has no problem."""
        with self._lock:
            before = self._reasons.pop(about, None)
            is_new = reason not in self._reasons.values() and (before is None or (self._each_reason and reason != before))
            if reason is not None:
                self._reasons[about] = reason
        if reason is None:
            if before is not None:
                self._over()
        elif is_new:
            self._report(reason)

    def replace(self, problems: Mapping[Any, Reason]) -> None:
        """Set the present problems of all subjects; those of all other subjects are over."""
        for about in [about for about in self._reasons if about not in problems]:
            self.report(None, about)
        for about, reason in problems.items():
            self.report(reason, about)
