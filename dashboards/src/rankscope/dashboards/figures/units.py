"""The unit in which a value reads best."""

from __future__ import annotations

from datetime import UTC, datetime
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


_SHOWN: Final[dict[str, tuple[tuple[float, float, str], ...]]] = {
    "hertz": ((10e9, 1e9, "GHz"), (0.0, 1e6, "MHz")),
    "bytes": ((2.0**30, 2.0**30, "GiB"), (0.0, 2.0**20, "MiB")),
    "watts": ((10e3, 1e3, "kW"), (0.0, 1.0, "W")),
    "ratio": ((0.0, 0.01, "%"),),
    "celsius": ((0.0, 1.0, "°C"),),
}
"""Unit of a metric to: from which value on, what one is in that unit, and what it is called; the largest first."""


def shown_unit(unit: str, largest: float) -> tuple[float, str]:
    """(what one is in ``unit``, unit to show) for an axis that reaches to ``largest``; an unknown unit is shown as it is."""
    if unit == "us":
        return time_unit(largest)
    for least, size, name in _SHOWN.get(unit, ()):
        if largest >= least:
            return size, name
    return 1.0, unit


def moment(unix_ns: int) -> str | None:
    """A date and time as axes take it, UTC; ``None``: a number that is no time of this calendar."""
    try:
        return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return None


def duration(us: float) -> str:
    """Three significant digits: ``360 ms``, ``2.5 h``."""
    for size, unit in _UNITS:
        if us >= size:
            value = us / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{us:.3g} µs"
