"""What is in an outbox, for people and programs. Needs no extra."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["waiting", "delivered", "dead", "overtaken"]


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A message as people see it."""

    id: str
    target: str
    group: str
    state: State
    alerts: int
    attempts: int
    created_unix_ns: int
    finished_unix_ns: int | None = None
    next_attempt_s: float | None = None
    """Seconds until it is tried again; only while it waits."""
    last_error: str = ""
    about: str = ""
    """State, severity, name and place of its first alert, and how many more there are."""
    labels: dict[str, str] = {}
    """In which all of its alerts agree."""
    starts_at: str = ""
    """When the first of them began, as the payload has it."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one outbox, oldest first, and how many there are in all, by state."""

    path: str
    counts: dict[str, int]
    messages: list[Listed]


class Listings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``list --format json`` prints."""

    schema: Literal["rankscope.outbox-list/1"] = "rankscope.outbox-list/1"
    outboxes: list[Listing]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What ``show --format json`` prints."""

    path: str
    message: Listed
    payload: msgspec.Raw
    """``null``: what is there is no JSON."""
