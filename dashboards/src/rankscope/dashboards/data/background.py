"""Answers of a network, asked for in threads beside the requests, which get the last answer meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from rankscope.dashboards.data.memory_cache import MemoryCache
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError

T = TypeVar("T")

MAX_THREADS: Final = 4


class BackgroundAnswers:
    """Answers by key. ``kind``: that of their values in ``cache``; ``source``: its name in the progress."""

    def __init__(self, cache: MemoryCache, kind: str, source: str) -> None:
        self._cache = cache
        self._kind = kind
        self._progress = Progress(f"asking {source}")
        self._asked: set[str] = set()
        self._lock = threading.Lock()

    def get(self, key: str, revision: str, ask: Callable[[], T]) -> T:
        """Return the last answer for ``key``, and ask again if it is of another ``revision``. ``ask`` must not raise.

        Raises ``NotReadyError`` before the first answer.
        """
        entry: tuple[str, T] | None = self._cache.last(self._kind, key)
        if entry is None or entry[0] != revision:
            self._start(key, revision, ask)
        if entry is None:
            raise NotReadyError(self._progress)
        return entry[1]

    def _start(self, key: str, revision: str, ask: Callable[[], T]) -> None:
        with self._lock:
            if key in self._asked or len(self._asked) >= MAX_THREADS:
                return
            self._asked.add(key)
        threading.Thread(target=self._answer, args=(key, revision, ask), name=f"ask {self._kind}", daemon=True).start()

    def _answer(self, key: str, revision: str, ask: Callable[[], T]) -> None:
        try:
            answer = (revision, ask())
            self._cache.get(self._kind, key, revision, lambda: answer)
        finally:
            with self._lock:
                self._asked.discard(key)
