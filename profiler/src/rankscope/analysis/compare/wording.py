"""Format numbers for people."""

from __future__ import annotations

from typing import Final

_TIMES: Final = ((1e3, 1.0, "µs"), (1e6, 1e3, "ms"), (7.2e9, 1e6, "s"), (float("inf"), 3.6e9, "h"))
_BYTES: Final = ((2.0**10, 1.0, "B"), (2.0**20, 2.0**10, "KiB"), (2.0**30, 2.0**20, "MiB"), (float("inf"), 2.0**30, "GiB"))


def time(us: float, *, signed: bool = False) -> str:
    """Format a time as ``102.4 ms``, with four digits because compared times are often close."""
    return _scaled(us, _TIMES, signed=signed)


def size(count: float, *, signed: bool = False) -> str:
    """Format a number of bytes as ``1.25 GiB``."""
    return _scaled(count, _BYTES, signed=signed)


def percent(share: float, *, signed: bool = True) -> str:
    """Format a relative change as ``+15.6%``; a large one as a multiple of the original value: ``12.4x``."""
    if abs(share) >= 10:
        return f"{share + 1:.3g}x"
    return f"{percentage(share, signed=signed)}%"


def exactly(share: float) -> str:
    """Format a share that the user chose: ``1%``, ``0.25%``."""
    return f"{100 * share:.4g}%"


def percentage(share: float, *, signed: bool = True) -> str:
    """Format the number of a percentage without ``%``, in three digits but not more than two after the point."""
    number = 100 * share
    digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    # Adding 0.0 prevents -0.00 for a small negative number.
    return f"{round(number, digits) + 0.0:{'+' if signed else ''}.{digits}f}"


def _scaled(value: float, table: tuple[tuple[float, float, str], ...], *, signed: bool) -> str:
    # The limit is a little lower, because a number that rounds up to a thousand belongs to the next unit.
    divisor, unit = next((divisor, unit) for limit, divisor, unit in table if abs(value) < 0.99995 * limit)
    return f"{value / divisor:{'+' if signed else ''}.4g} {unit}"
