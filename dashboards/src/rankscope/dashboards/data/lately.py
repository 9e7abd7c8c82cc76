"""What many viewers ask for at once, looked up once for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

LEAST_S: Final = 1.0
FACTOR: Final = 10.0
"""An answer is given again for so many times as long as it took to get: looking takes a tenth of a core at most."""


class Lately(Generic[T]):
    """Answers of ``ask``, each for a while; what it raises is not remembered."""

    def __init__(self, ask: Callable[[], T], *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._held: tuple[T, float] | None = None

    def get(self) -> T:
        """What was answered lately, or is now."""
        with self._lock:
            began = self._clock_s()
            if self._held is not None and began < self._held[1]:
                return self._held[0]
            value = self._ask()
            now = self._clock_s()
            self._held = (value, now + max(LEAST_S, FACTOR * (now - began)))
            return value
