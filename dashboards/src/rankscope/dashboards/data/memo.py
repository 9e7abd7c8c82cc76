"""Cache of values that stay valid until their source changes."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """Cache of at most ``limit`` values, each valid for one revision of its key; the least recently used are evicted first.

    Concurrent callers with the same key share one computation.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[str, tuple[str, T]] = OrderedDict()
        self._locks: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._guard = threading.Lock()

    def last(self, key: str) -> T | None:
        """Return the last value of ``get`` for ``key`` if it is still cached."""
        with self._guard:
            held = self._values.get(key)
            return None if held is None else held[1]

    def get(self, key: str, revision: str, make: Callable[[], T]) -> T:
        """Return the value of ``key`` at ``revision``, from the cache or from ``make``; errors of ``make`` are not cached."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._guard:
                held = self._values.get(key)
                if held is not None and held[0] == revision:
                    self._values.move_to_end(key)
                    return held[1]
            value = make()
            with self._guard:
                self._values[key] = (revision, value)
                self._values.move_to_end(key)
                while len(self._values) > self._limit:
                    self._values.popitem(last=False)
            return value
