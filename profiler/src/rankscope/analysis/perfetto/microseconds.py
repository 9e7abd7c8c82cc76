"""Lossless conversion between nanoseconds and the microseconds of Chrome JSON."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

HORIZON_NS: Final = 2**52
"""52 days. Below it, a float64 of microseconds with three decimals still distinguishes nanoseconds."""

_LATEST_NS: Final = 2**62


def us_text(ns: int) -> bytes:
    """Return ``ns``, which is not negative, as microseconds with three decimals.

    Perfetto multiplies the float64 of the number by 1000 and truncates, so that six numbers in a thousand lose a nanosecond. A
    slice could then extend beyond its parent, and Perfetto would drop it. These numbers get a fourth decimal: a tenth of a
    nanosecond more.
    """
    text = b"%d.%03d" % divmod(ns, 1000)
    return text if int(ns / 1000 * 1000.0) == ns else text + b"1"


def ns_of(text: bytes) -> int | None:
    """Return the nanoseconds of a JSON number of microseconds, quoted or not; ``None`` for other text or absurd values.

    Avoids float64: absolute microseconds with decimals have more digits than it keeps.
    """
    text = text.strip(b'"')
    whole, _, fraction = text.partition(b".")
    if whole.isdigit() and len(whole) < 20 and (not fraction or fraction.isdigit()):
        ns = int(whole) * 1000 + int(fraction[:3].ljust(3, b"0"))
        ns += fraction[3:4] >= b"5"
    else:
        try:
            exact = Decimal(text.decode("ascii", "replace")) * 1000
            if not exact.is_finite() or not abs(exact) < _LATEST_NS:
                return None
        except InvalidOperation:
            return None
        ns = round(exact)
    return ns if abs(ns) < _LATEST_NS else None
