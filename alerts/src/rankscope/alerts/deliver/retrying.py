"""Result of an attempt: the message is delivered, retried after a pause, or given up. Pure. Needs no extra."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Literal

from rankscope.base.text import shortened

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 120.0
LONGEST_RETRY_AFTER_S: Final = 600.0
"""Limit on ``Retry-After``: an alert is about the present."""
RETRY_FOR_S: Final = 3600.0
"""Default of ``retry_for``: a message that was not accepted for this long is given up."""
_BUSY: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_DENIED: Final = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED}
)
"""Address or credentials are wrong, perhaps during a rotation: both are read again for each attempt."""
_UNKNOWN: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})
"""A proxy in between answered; the receiver itself may have accepted."""
_REASON_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """Result of an attempt. ``dead``: this message cannot be delivered; ``gone``: nor can any other to this target."""

    kind: Literal["delivered", "retry", "dead", "gone"]
    reason: str = ""
    received: bool = False
    """The receiver may have accepted the message."""
    wait_s: float | None = None
    """Seconds that the receiver requested."""
    throttle: bool = False
    """The receiver as a whole fails, not only this message."""


def judge_status(status: int, *, retry_after: str = "", date: str = "", wall_s: float = 0.0) -> AttemptResult:
    """Judge an answer. ``retry_after`` and ``date`` are its headers; ``wall_s`` is our time, used without a date."""
    if 200 <= status < 300:
        return AttemptResult(kind="delivered", reason=f"answered {status}", received=True)
    if 300 <= status < 400:
        return AttemptResult(kind="dead", reason=f"answered {status}; redirects are not followed")
    if status == HTTPStatus.GONE:
        return AttemptResult(kind="gone", reason=f"refused with {status}: the receiver no longer exists")
    if status in _BUSY or status in _DENIED or status >= 500 or status < 200:
        wait_s = retry_after_s(retry_after, date=date, wall_s=wall_s)
        throttle = wait_s is not None or status in _UNKNOWN or status in _DENIED or status == HTTPStatus.TOO_MANY_REQUESTS
        reason = f"{'refused with' if status in _DENIED else 'answered'} {status}"
        return AttemptResult(kind="retry", reason=reason, received=status in _UNKNOWN, wait_s=wait_s, throttle=throttle)
    return AttemptResult(kind="dead", reason=f"refused with {status}")


def not_answered(reason: str, *, sent: bool, late: bool = False) -> AttemptResult:
    """Judge an attempt without an answer. ``late``: it timed out."""
    return AttemptResult(kind="retry", reason=shortened(reason, _REASON_CHARACTERS), received=sent, throttle=late or not sent)


def retry_after_s(header: str, *, date: str, wall_s: float) -> float | None:
    """Convert ``Retry-After``, a number or a date, to seconds, at most ten minutes; ``None`` if it is neither."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), LONGEST_RETRY_AFTER_S)
    try:
        until = parsedate_to_datetime(text).timestamp()
        # Relative to the receiver's own clock, if it sends the date.
        now = parsedate_to_datetime(date).timestamp() if date else wall_s
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(0.0, until - now), LONGEST_RETRY_AFTER_S)


def pause_s(failures: int, *, chance: float) -> float:
    """Return the pause after ``failures`` in a row: 5 s, doubled up to two minutes. ``chance``, 0 to 1, is the jitter."""
    planned = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(failures, 1) - 1, 16))
    return planned * (0.75 + 0.25 * chance)
