"""How many deliveries a target may get by now. Pure. Needs no extra."""

from __future__ import annotations

import math

from rankscope.alerts.target import Rate


class TokenBucket:
    """``rate.count`` tokens that come back evenly within ``rate.per_s``; without a rate there is always one.

    Times are nanoseconds of a clock that only goes forward.
    """

    def __init__(self, rate: Rate | None, *, now_ns: int) -> None:
        self._rate = rate
        self._tokens = rate.count if rate else math.inf
        self._filled_ns = now_ns

    def available(self, now_ns: int) -> float:
        """How many may go now; infinitely many without a rate."""
        if self._rate is not None:
            came = (now_ns - self._filled_ns) / 1e9 * self._rate.count / self._rate.per_s
            self._tokens = min(self._rate.count, self._tokens + max(0.0, came))
            self._filled_ns = now_ns
        return math.floor(self._tokens + 1e-9) if self._rate is not None else math.inf

    def take(self) -> None:
        """One went."""
        self._tokens -= 1

    def next_ns(self) -> int:
        """When the next one may go, where none may now."""
        if self._rate is None:
            return self._filled_ns
        missing = max(0.0, 1.0 - self._tokens)
        return self._filled_ns + math.ceil(missing * self._rate.per_s / self._rate.count * 1e9)
