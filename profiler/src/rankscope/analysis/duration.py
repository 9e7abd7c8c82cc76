"""Times for people."""

from __future__ import annotations


def duration(us: float) -> str:
    """Microseconds for people: ``217 µs``, ``61 ms``, ``1.3 s``, ``16.7 h``."""
    for limit, divisor, unit in ((1e3, 1, "µs"), (1e6, 1e3, "ms"), (7.2e9, 1e6, "s"), (float("inf"), 3.6e9, "h")):
        if us < limit * 0.9995:
            value = us / divisor
            return f"{value:.0f} {unit}" if value >= 10 or unit == "µs" else f"{value:.1f} {unit}"
    raise AssertionError(us)
