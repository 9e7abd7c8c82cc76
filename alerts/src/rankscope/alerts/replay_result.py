"""``rankscope.replay/1``: when alerts would have been pending, fired and ended."""

from __future__ import annotations

from typing import Final

import msgspec

from rankscope.analysis.result import Evidence

REPLAY_SCHEMA: Final = "rankscope.replay/1"


class Spell(msgspec.Struct, frozen=True, kw_only=True):
    """One time that what an alert is about was there."""

    labels: dict[str, str]
    pending_unix_ns: int
    """When it was first seen."""
    fired_unix_ns: int | None = None
    """When the alert would have fired; ``None``: it did not last long enough."""
    ended_unix_ns: int | None = None
    """When the alert would have been resolved, or what never fired was gone; ``None``: not within what was replayed."""
    annotations: dict[str, str] = {}
    values: list[Evidence] = []
    """Numbers it rested on when it fired."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One alert over the replayed time."""

    rule: str
    policy: str
    """When it fires and ends, in words."""
    spells: list[Spell] = []
    """In order of time."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The watcher's alerts over a recorded run."""

    schema: str = REPLAY_SCHEMA
    path: str
    """The run's folder."""
    run_id: str | None = None
    simulated: bool = False
    """The GPU readings of the run are made up."""
    start_unix_ns: int
    end_unix_ns: int
    interval_s: float
    """Between evaluations."""
    evaluations: int
    rules: list[Replayed]
    notes: list[str] = []
    """What is missing or could not be read."""
