"""What becomes of a message after an attempt: delivered, tried again when, or given up. Pure. Needs no extra."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Literal

from rankscope.alerts.deliver.message import cut

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 120.0
LONGEST_RETRY_AFTER_S: Final = 600.0
"""A page is about now: who asks for more time gets this much."""
RETRY_FOR_S: Final = 3600.0
"""After so long without being accepted a message is given up, unless the operator says otherwise."""
_BUSY: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_DENIED: Final = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED}
)
"""Address or credentials are wrong, as while a secret is rotated: both are read again for each attempt."""
_UNKNOWN: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})
"""Somebody in between answered; the receiver itself may have accepted."""
_REASON_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """``retry``: worth another attempt; ``dead``: it is not; ``gone``: nor is anything else for that target."""

    kind: Literal["delivered", "retry", "dead", "gone"]
    reason: str = ""
    heard: bool = False
    """Whether the receiver may have taken it in all the same."""
    wait_s: float | None = None
    """The receiver asked for that long."""
    throttle: bool = False
    """It is the receiver as a whole that cannot be had, not this message that it stumbled over."""


def judge_status(status: int, *, retry_after: str = "", date: str = "", wall_s: float = 0.0) -> Judgement:
    """What an answer means. ``retry_after`` and ``date``: the headers; ``wall_s``: our time where it has no date."""
    if 200 <= status < 300:
        return Judgement(kind="delivered", reason=f"answered {status}", heard=True)
    if 300 <= status < 400:
        return Judgement(kind="dead", reason=f"answered {status}; redirects are not followed")
    if status == HTTPStatus.GONE:
        return Judgement(kind="gone", reason=f"refused with {status}: the receiver is gone for good")
    if status in _BUSY or status in _DENIED or status >= 500 or status < 200:
        wait_s = retry_after_s(retry_after, date=date, wall_s=wall_s)
        throttle = wait_s is not None or status in _UNKNOWN or status in _DENIED or status == HTTPStatus.TOO_MANY_REQUESTS
        reason = f"{'refused with' if status in _DENIED else 'answered'} {status}"
        return Judgement(kind="retry", reason=reason, heard=status in _UNKNOWN, wait_s=wait_s, throttle=throttle)
    return Judgement(kind="dead", reason=f"refused with {status}")


def not_answered(reason: str, *, sent: bool, late: bool = False) -> Judgement:
    """What no answer means; ``late``: it was waited for as long as may be."""
    return Judgement(kind="retry", reason=cut(reason, _REASON_CHARACTERS), heard=sent, throttle=late or not sent)


def retry_after_s(header: str, *, date: str, wall_s: float) -> float | None:
    """The seconds that ``Retry-After`` asks for, a number or a date, at most ten minutes; ``None`` where it says nothing."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), LONGEST_RETRY_AFTER_S)
    try:
        until = parsedate_to_datetime(text).timestamp()
        # By the receiver's own clock, if it says what that shows.
        now = parsedate_to_datetime(date).timestamp() if date else wall_s
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(0.0, until - now), LONGEST_RETRY_AFTER_S)


def pause_s(failures: int, *, chance: float) -> float:
    """How long to wait after so many failures in a row: 5 s, growing to two minutes. ``chance``, 0 to 1, spreads them."""
    planned = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(failures, 1) - 1, 16))
    return planned * (0.75 + 0.25 * chance)
