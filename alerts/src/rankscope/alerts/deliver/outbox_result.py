"""Content of an outbox as commands print it: ``rankscope.outbox-list/1`` and its parts. Loads no SQLite."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["waiting", "delivered", "dead", "overtaken"]


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One message in a listing."""

    id: str
    target: str
    group: str
    state: State
    alerts: int
    attempts: int
    created_unix_ns: int
    finished_unix_ns: int | None = None
    next_attempt_s: float | None = None
    """Seconds until the next attempt; only for a waiting message."""
    last_error: str = ""
    about: str = ""
    """State, severity, name and place of the first alert, and the number of further alerts."""
    labels: dict[str, str] = {}
    """Labels common to all alerts."""
    starts_at: str = ""
    """Start of the earliest alert, as in the payload."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one store, oldest first, and the number of messages by state."""

    path: str
    counts: dict[str, int]
    messages: list[Listed]


class Listings(msgspec.Struct, frozen=True, kw_only=True):
    """Output of ``list --format json``."""

    schema: Literal["rankscope.outbox-list/1"] = "rankscope.outbox-list/1"
    outboxes: list[Listing]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Output of ``show --format json``."""

    path: str
    message: Listed
    payload: msgspec.Raw
    """``null`` if the payload is not JSON."""
