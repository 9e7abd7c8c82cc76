"""Nanoseconds to the microseconds of Chrome JSON and back, without losing one."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

HORIZON_NS: Final = 2**52
"""52 days: below it a microsecond with three decimals, which readers keep as a float64, still tells nanoseconds apart."""

_LATEST_NS: Final = 2**62


def us_text(ns: int) -> bytes:
    """``ns``, which is not negative, as microseconds with three decimals.

    Perfetto multiplies the float64 of the number by 1000 and cuts off the rest, so that six numbers in a thousand become a
    nanosecond less, which is enough for a slice to stick out of the one around it and to be dropped. These get a fourth
    decimal: a tenth of a nanosecond more.
    """
    text = b"%d.%03d" % divmod(ns, 1000)
    return text if int(ns / 1000 * 1000.0) == ns else text + b"1"


def ns_of(text: bytes) -> int | None:
    """Nanoseconds of a JSON number of microseconds, or of one in quotes; ``None`` for what is neither, or absurd.

    Not by way of a float64: absolute microseconds with decimals have more digits than it keeps.
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
