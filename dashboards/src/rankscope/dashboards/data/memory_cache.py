"""Cache in memory, bounded in bytes, of values that stay valid until their source changes or for a lifetime."""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from cachetools import LRUCache

T = TypeVar("T")

MAX_BYTES: Final = 192 << 20
"""Bytes for all values together: the summaries of 10,000 runs take 20 MB, the largest captured windows 6 MB each."""

LEAST_S: Final = 1.0
FACTOR: Final = 10.0

_ENTRY_BYTES: Final = 200
_SAMPLED: Final = 64
"""Items of a container whose sizes stand for all of them."""


def adaptive_lifetime(cost_s: float) -> float:
    """Return the lifetime of an answer that took ``cost_s``, so that asking takes at most a tenth of a core."""
    return max(LEAST_S, FACTOR * cost_s)


def _forever(_cost_s: float) -> float:
    return math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class _CachedValue:
    revision: str
    value: Any
    until_s: float
    size_bytes: int


class MemoryCache:
    """Values by kind and key, each valid for one revision of its key; the least recently used are evicted first.

    Concurrent callers with the same key share one computation. They wait for it, so ``make`` must neither wait for another
    process nor for a network.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._entries: LRUCache[tuple[str, str], _CachedValue] = LRUCache(max_bytes, getsizeof=lambda entry: entry.size_bytes)
        self._locks: weakref.WeakValueDictionary[tuple[str, str], threading.Lock] = weakref.WeakValueDictionary()
        self._guard = threading.Lock()

    def last(self, kind: str, key: str) -> Any:
        """Return the last value of ``get``, ``None`` if it is no longer cached."""
        entry = self._entry((kind, key))
        return None if entry is None else entry.value

    def get(
        self, kind: str, key: str, revision: str, make: Callable[[], T], *, lifetime_s: Callable[[float], float] = _forever
    ) -> T:
        """Return the value of ``key`` at ``revision``, from the cache or from ``make``; errors of ``make`` are not cached.

        ``lifetime_s``: seconds for which it is valid, by the seconds that ``make`` took.
        """
        name = (kind, key)
        if (entry := self._entry(name)) is not None and self._is_valid(entry, revision):
            return entry.value  # type: ignore[no-any-return]
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            entry, began = self._entry(name), self._clock_s()
            if entry is not None and self._is_valid(entry, revision):
                return entry.value  # type: ignore[no-any-return]
            value, ended = make(), self._clock_s()
            self._set(name, _CachedValue(revision, value, ended + lifetime_s(ended - began), size_bytes(value) + _ENTRY_BYTES))
            return value

    def put(self, kind: str, key: str, revision: str, value: Any) -> None:
        """Set the value of ``key``."""
        self._set((kind, key), _CachedValue(revision, value, math.inf, size_bytes(value) + _ENTRY_BYTES))

    @property
    def used_bytes(self) -> int:
        """Estimated size of all values."""
        return int(self._entries.currsize)

    def _entry(self, name: tuple[str, str]) -> _CachedValue | None:
        with self._guard:
            return self._entries.get(name)

    def _set(self, name: tuple[str, str], entry: _CachedValue) -> None:
        with self._guard:
            self._entries.pop(name, None)
            if entry.size_bytes <= self._entries.maxsize:
                self._entries[name] = entry

    def _is_valid(self, entry: _CachedValue, revision: str) -> bool:
        return entry.revision == revision and self._clock_s() < entry.until_s


def size_bytes(value: Any) -> int:
    """Return the estimated size of a value in memory; of a long container, by a sample of its items."""
    if value is None or isinstance(value, (bool, int, float, np.memmap)):
        return 32
    if isinstance(value, np.ndarray):
        return int(value.nbytes) + 112
    if isinstance(value, (str, bytes)):
        return sys.getsizeof(value)
    parts = _parts(value)
    if len(parts) > _SAMPLED:
        sample = parts[:: -(-len(parts) // _SAMPLED)]
        return len(parts) * (sum(map(size_bytes, sample)) // len(sample) + 8)
    return 64 + sum(size_bytes(part) + 8 for part in parts)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [each for item in value.items() for each in item]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return list(_fields(value))


def _fields(value: Any) -> Iterator[Any]:
    if isinstance(value, msgspec.Struct):
        yield from (getattr(value, name) for name in value.__struct_fields__)
    elif dataclasses.is_dataclass(value):
        yield from (getattr(value, field.name) for field in dataclasses.fields(value))
    elif not callable(value):
        yield from getattr(value, "__dict__", {}).values()
