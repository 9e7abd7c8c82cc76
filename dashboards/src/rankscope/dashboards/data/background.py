"""Answers of a network, asked for in threads beside the requests, which get the last answer meanwhile."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rankscope.dashboards.data.memory_cache import MemoryCache
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError

T = TypeVar("T")

MAX_THREADS: Final = 4


class BackgroundAnswers:
    """Answers by key. ``kind``: that of their values in ``cache``; ``source``: its name in the progress.

    ``lifetime_s``: seconds after which an answer is asked for again, by the seconds that it took.
    """

    def __init__(
        self, cache: MemoryCache, kind: str, source: str, *, lifetime_s: Callable[[float], float] = lambda _: math.inf
    ) -> None:
        self._cache = cache
        self._kind = kind
        self._progress = Progress(f"asking {source}")
        self._lifetime_s = lifetime_s
        self._running_keys: set[str] = set()
        self._lock = threading.Lock()

    def get(self, key: str, revision: str, ask: Callable[[], T]) -> T:
        """Return the last answer for ``key``, and ask again if it is old, or of another ``revision``. ``ask`` must not raise.

        Raises ``NotReadyError`` before the first answer.
        """
        last: tuple[str, float, T] | None = self._cache.last(self._kind, key)
        if last is None or last[0] != revision or time.monotonic() >= last[1]:
            self._start(key, revision, ask)
        if last is None:
            raise NotReadyError(self._progress)
        return last[2]

    def last(self, key: str) -> Any:
        """Return the last answer for ``key``, ``None`` if there is none."""
        last: tuple[str, float, Any] | None = self._cache.last(self._kind, key)
        return None if last is None else last[2]

    def _start(self, key: str, revision: str, ask: Callable[[], T]) -> None:
        with self._lock:
            if key in self._running_keys or len(self._running_keys) >= MAX_THREADS:
                return
            self._running_keys.add(key)
        threading.Thread(target=self._answer, args=(key, revision, ask), name=f"ask {self._kind}", daemon=True).start()

    def _answer(self, key: str, revision: str, ask: Callable[[], T]) -> None:
        try:
            began = time.monotonic()
            answer, ended = ask(), time.monotonic()
            self._cache.put(self._kind, key, revision, (revision, ended + self._lifetime_s(ended - began), answer))
        finally:
            with self._lock:
                self._running_keys.discard(key)
