"""Fields in which the records of one collective must agree between ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rankscope.runs.records import CollectiveRecord

_REASONS: Final[dict[str, str]] = {"bytes": "bytes_differ", "dtype": "dtype_differs", "root": "root_differs"}


def disagreement(records: Iterable[CollectiveRecord]) -> str | None:
    """Return the reason why ``records`` cannot be one collective, or ``None``. A field that is ``None`` agrees with anything."""
    records = list(records)
    for name, reason in _REASONS.items():
        if len({getattr(record, name) for record in records} - {None}) > 1:
            return reason
    return None
