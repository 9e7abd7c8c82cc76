"""``rankscope.replay/1``: when alerts would have been pending, fired and ended."""

from __future__ import annotations

from typing import Final, Literal

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
    """One rule over one time."""

    rule: str
    source: Literal["watcher", "prometheus"]
    """Who evaluates it: the watcher, which analyses the run itself, or Prometheus, which has the metrics."""
    policy: str
    """When it fires and ends, in words."""
    expression: str | None = None
    """Of a rule of Prometheus, in its language."""
    spells: list[Spell] = []
    """In order of time."""
    not_evaluated: str | None = None
    """Why nothing can be said of it; then there are no spells."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Rules over a recorded run, or over what a Prometheus remembers."""

    schema: str = REPLAY_SCHEMA
    path: str
    """The run's folder, or the server without what may be secret of its address."""
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
