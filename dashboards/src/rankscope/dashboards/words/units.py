"""Units in which values read best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

_UNITS: Final = ((3_600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms"), (1.0, "µs"))
"""Microseconds in each unit, the longest first."""


def time_unit(longest_us: float) -> tuple[float, str]:
    """Return (microseconds per unit, unit) for an axis up to ``longest_us``.

    Below 1 ms: µs; below 10 s: ms; below 10 min: s; below 10 h: min; else h.
    """
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
"""Unit of a metric to (smallest value, size in the metric's unit, name) of its display units, the largest first."""


def shown_unit(unit: str, largest: float) -> tuple[float, str]:
    """Return (size in ``unit``, display unit) for an axis up to ``largest``. An unknown unit is returned unchanged."""
    if unit == "us":
        return time_unit(largest)
    for least, size, name in _SHOWN.get(unit, ()):
        if largest >= least:
            return size, name
    return 1.0, unit


_ZONE: ContextVar[tzinfo] = ContextVar("zone", default=UTC)
"""Time zone of axes: that of the browser while it draws a figure, else UTC."""


@contextmanager
def time_zone(name: str | None) -> Iterator[None]:
    """Use a time zone such as ``Europe/Berlin`` for axes; UTC if there is none of that name with a slash."""
    try:
        # Names without a slash are also files such as "localtime", whose zone is the server's.
        zone: tzinfo = ZoneInfo(name) if name and "/" in name else UTC
    except (KeyError, ValueError, OSError):
        zone = UTC
    token = _ZONE.set(zone)
    try:
        yield
    finally:
        _ZONE.reset(token)


def zone_name() -> str:
    """Return the name of the time zone of axes."""
    return str(_ZONE.get())


@dataclass(frozen=True, slots=True)
class AxisClock:
    """Clock of an axis of dates. Its offset from UTC is the same along the axis, as bars are drawn by their lengths."""

    name: str
    offset: timedelta

    @classmethod
    def of(cls, last_unix_ns: int) -> AxisClock:
        """Return the clock of an axis that ends at ``last_unix_ns``, in the time zone of axes."""
        if _ZONE.get() is UTC:
            return cls("UTC", timedelta())
        try:
            at = on_clock(last_unix_ns)
        except (OverflowError, ValueError, OSError):
            return cls("UTC", timedelta())
        return cls(f"{zone_name()}, UTC{at.isoformat(timespec='seconds')[19:]}", at.utcoffset() or timedelta())

    def date_and_time(self, unix_ns: int) -> str | None:
        """Return date and time on this clock; ``None`` if the number is outside the calendar."""
        return date_and_time(unix_ns + self.offset // _MICROSECOND * 1_000)

    def start_s(self, unix_ns: int, width_s: int) -> int:
        """Return the start, in unix seconds, of the bin of ``width_s`` that has ``unix_ns``; days begin at midnight here."""
        offset_s = int(self.offset.total_seconds())
        return (unix_ns // 10**9 + offset_s) // width_s * width_s - offset_s


_MICROSECOND: Final = timedelta(microseconds=1)


def on_clock(unix_ns: int) -> datetime:
    """Return a time in the time zone of axes. Raises as ``datetime.fromtimestamp``."""
    return datetime.fromtimestamp(unix_ns / 1e9, _ZONE.get())


def date_and_time(unix_ns: int) -> str | None:
    """Return date and time in UTC; ``None`` if the number is outside the calendar."""
    try:
        return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return None


def duration(us: float) -> str:
    """Return a duration with three significant digits: ``360 ms``, ``2.5 h``."""
    for size, unit in _UNITS:
        if us >= size:
            value = us / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{us:.3g} µs"


def in_unit(us: float, unit: tuple[float, str]) -> str:
    """Return a duration in the unit of an axis (``time_unit``), with three significant digits: ``0.24 ms``, ``3,130 ms``."""
    size, name = unit
    value = us / size if abs(us / size) >= 5e-4 else 0.0  # less is the rounding of a sum
    return f"{value:,.0f} {name}" if abs(value) >= 100 else f"{value:.3g} {name}"
