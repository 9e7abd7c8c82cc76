"""Cache of values that stay valid until their source changes, or for a lifetime that grows with their cost."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

from cachetools import LRUCache

T = TypeVar("T")

LEAST_S: Final = 1.0
FACTOR: Final = 10.0


def adaptive(cost_s: float) -> float:
    """Return the lifetime of an answer that took ``cost_s``, so that asking takes at most a tenth of a core."""
    return max(LEAST_S, FACTOR * cost_s)


def _forever(_cost_s: float) -> float:
    return math.inf


class Memo:
    """Cache of at most ``limit`` values, each valid for one revision of its key; the least recently used are evicted first.

    Concurrent callers with the same key share one computation.
    """

    def __init__(self, limit: int, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._values: LRUCache[str, tuple[str, Any, float]] = LRUCache(limit)
        self._locks: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._guard = threading.Lock()

    def last(self, key: str) -> Any:
        """Return the last value of ``get`` for ``key``, ``None`` if it is no longer cached."""
        with self._guard:
            held = self._values.get(key)
        return None if held is None else held[1]

    def get(self, key: str, revision: str, make: Callable[[], T], *, lifetime_s: Callable[[float], float] = _forever) -> T:
        """Return the value of ``key`` at ``revision``, from the cache or from ``make``; errors of ``make`` are not cached.

        ``lifetime_s``: seconds for which it is valid, by the seconds that ``make`` took.
        """
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._guard:
                held = self._values.get(key)
            began = self._clock_s()
            if held is not None and held[0] == revision and began < held[2]:
                cached: T = held[1]
                return cached
            value, ended = make(), self._clock_s()
            with self._guard:
                self._values[key] = (revision, value, ended + lifetime_s(ended - began))
            return value
