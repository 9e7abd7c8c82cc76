"""Values that are worth keeping for as long as what they were made from has not changed."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """At most ``limit`` values, each valid for one revision of its key; the least recently used go first.

    Callers that ask for the same key at once share one computation.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[str, tuple[str, T]] = OrderedDict()
        self._locks: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._guard = threading.Lock()

    def last(self, key: str) -> T | None:
        """What ``get`` gave for ``key`` the last time, if it is still there."""
        with self._guard:
            held = self._values.get(key)
            return None if held is None else held[1]

    def get(self, key: str, revision: str, make: Callable[[], T]) -> T:
        """The value of ``key`` at ``revision``, from memory or from ``make``; what ``make`` raises is not remembered."""
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
