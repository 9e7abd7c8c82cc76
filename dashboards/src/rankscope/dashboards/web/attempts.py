"""Rate limit for wrong tokens: a sender of many must wait."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MAX_WRONG: Final = 10
"""Most wrong tokens per sender and worker within ``WITHIN_S``."""
WITHIN_S: Final = 60.0
MAX_SENDERS: Final = 10_000


class WrongTokens:
    """Counter of recent wrong tokens by sender. Safe to call from several threads at once."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._guard = threading.Lock()
        self._times: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, sender: str) -> int:
        """Return for how many seconds this sender's tokens are rejected unchecked; 0: they are checked."""
        with self._guard:
            times = self._recent(sender)
            return 0 if len(times) < MAX_WRONG else max(1, round(times[0] + WITHIN_S - self._clock_s()))

    def note(self, sender: str) -> None:
        """Count one wrong token of a sender."""
        with self._guard:
            self._times[sender] = [*self._recent(sender), self._clock_s()][-MAX_WRONG:]
            self._times.move_to_end(sender)
            while len(self._times) > MAX_SENDERS:
                self._times.popitem(last=False)

    def _recent(self, sender: str) -> list[float]:
        now = self._clock_s()
        return [moment for moment in self._times.get(sender, ()) if now - moment < WITHIN_S]
