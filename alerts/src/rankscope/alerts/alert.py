"""One alert: what identifies it and what it says.

Labels identify the alert, so a value that changes between evaluations must be an annotation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

UPDATED_AT: Final = "updated_at"
"""Annotation with the time of the latest revision of a firing alert. Of two firing states the later one counts."""
_FNV_OFFSET: Final = 14695981039346656037
_FNV_PRIME: Final = 1099511628211
_SEPARATOR: Final = b"\xff"
_DATE_AND_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d")
_PORT: Final = re.compile(r":[0-9]+$")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and text of an alert, without time."""

    labels: dict[str, str]
    """Non-empty values only: Alertmanager drops empty labels, which would change the fingerprint."""
    annotations: dict[str, str]
    generator_url: str = ""
    """Page that shows the evidence; empty when no dashboard is known."""


def ranks_of(alert: Alert) -> set[int]:
    """Return the ranks that an alert is about: its own, or all of those it stands for together."""
    texts = [alert.labels.get("rank", ""), *alert.annotations.get("ranks", "").split(",")]
    return {int(text) for text in texts if text}


def is_of_host(alert: Alert) -> bool:
    """Return whether an alert is about a host as a whole."""
    return "host" in alert.labels and "rank" not in alert.labels and "ranks" in alert.annotations


def host_of(labels: Mapping[str, str]) -> str:
    """Return the host that an alert is about: without a label, the instance, a node's name or an address, without its port."""
    return labels.get("host") or _PORT.sub("", labels.get("instance", ""))


def fingerprint(labels: dict[str, str]) -> str:
    """Identity of an alert as Alertmanager computes it: 64-bit FNV-1a over the sorted names and values, 16 hex digits."""
    value = _FNV_OFFSET
    for name in sorted(labels):
        for byte in name.encode() + _SEPARATOR + labels[name].encode() + _SEPARATOR:
            value = ((value ^ byte) * _FNV_PRIME) % 2**64
    return f"{value:016x}"


def rfc3339(unix_ns: int) -> str:
    """Format unix nanoseconds as RFC 3339: ``1700000000000000000`` -> ``2023-11-14T22:13:20.000Z``."""
    moment = datetime.fromtimestamp(unix_ns // 10**9, UTC).replace(microsecond=unix_ns % 10**9 // 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix_ns(moment: str) -> int:
    """Parse ``2023-11-14T22:13:20.5+01:00`` into unix nanoseconds, to the microsecond.

    Return 0 for a text that is no time, or for a time centuries away from 1970. A time without a zone is UTC.
    """
    try:
        read = datetime.fromisoformat(moment)
    except ValueError:
        return 0
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    nanoseconds = (read - _EPOCH) // timedelta(microseconds=1) * 1000
    return nanoseconds if abs(nanoseconds) < 2**62 else 0


def is_rfc3339(moment: str) -> bool:
    """Return whether a text is a date with a time, such as ``2023-11-14T22:13:20.5+01:00``."""
    try:
        return _DATE_AND_TIME.match(moment) is not None and datetime.fromisoformat(moment) is not None
    except ValueError:
        return False
