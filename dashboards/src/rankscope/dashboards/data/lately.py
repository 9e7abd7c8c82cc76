"""A cached call: an answer that many viewers request at once is looked up once for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

LEAST_S: Final = 1.0
FACTOR: Final = 10.0
"""Lifetime of an answer in multiples of the time to get it: so lookups take at most a tenth of a core."""


class Lately(Generic[T]):
    """Cache of the last answer of ``ask``, with a lifetime that adapts to its cost; errors are not cached."""

    def __init__(self, ask: Callable[[], T], *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._held: tuple[T, float] | None = None

    def get(self) -> T:
        """Return the cached answer if it has not expired, else a new one."""
        with self._lock:
            began = self._clock_s()
            if self._held is not None and began < self._held[1]:
                return self._held[0]
            value = self._ask()
            now = self._clock_s()
            self._held = (value, now + max(LEAST_S, FACTOR * (now - began)))
            return value
