"""The unit in which a time reads best."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((3_600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms"), (1.0, "µs"))
"""Microseconds in each unit, the longest first."""


def time_unit(longest_us: float) -> tuple[float, str]:
    """(microseconds per unit, unit) for an axis that reaches to ``longest_us``: milliseconds up to ten seconds, and so on."""
    if longest_us >= 10 * 3_600e6:
        return _UNITS[0]
    if longest_us >= 600e6:
        return _UNITS[1]
    if longest_us >= 10e6:
        return _UNITS[2]
    return _UNITS[3] if longest_us >= 1_000 else _UNITS[4]


def duration(us: float) -> str:
    """Three significant digits: ``360 ms``, ``2.5 h``."""
    for size, unit in _UNITS:
        if us >= size:
            value = us / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{us:.3g} µs"
