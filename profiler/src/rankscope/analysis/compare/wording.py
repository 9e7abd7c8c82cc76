"""Numbers for people."""

from __future__ import annotations

from typing import Final

_TIMES: Final = ((1e3, 1.0, "µs"), (1e6, 1e3, "ms"), (7.2e9, 1e6, "s"), (float("inf"), 3.6e9, "h"))
_BYTES: Final = ((2.0**10, 1.0, "B"), (2.0**20, 2.0**10, "KiB"), (2.0**30, 2.0**20, "MiB"), (float("inf"), 2.0**30, "GiB"))


def time(us: float, *, signed: bool = False) -> str:
    """``102.4 ms``: four digits, for what is compared is often close."""
    return _scaled(us, _TIMES, signed=signed)


def size(count: float, *, signed: bool = False) -> str:
    """``1.25 GiB``."""
    return _scaled(count, _BYTES, signed=signed)


def percent(share: float, *, signed: bool = True) -> str:
    """``+15.6%``; large ones as a multiple of what was: ``12.4x``."""
    if abs(share) >= 10:
        return f"{share + 1:.3g}x"
    return f"{percentage(share, signed=signed)}%"


def exactly(share: float) -> str:
    """A share that somebody chose: ``1%``, ``0.25%``."""
    return f"{100 * share:.4g}%"


def percentage(share: float, *, signed: bool = True) -> str:
    """The number of it alone, in three digits but not more than two after the point."""
    number = 100 * share
    digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    # Without the sum a small negative number would read -0.00.
    return f"{round(number, digits) + 0.0:{'+' if signed else ''}.{digits}f}"


def _scaled(value: float, table: tuple[tuple[float, float, str], ...], *, signed: bool) -> str:
    # The limit is a little lower, for a number that is rounded up to a thousand is one of the next unit.
    divisor, unit = next((divisor, unit) for limit, divisor, unit in table if abs(value) < 0.99995 * limit)
    return f"{value / divisor:{'+' if signed else ''}.4g} {unit}"
