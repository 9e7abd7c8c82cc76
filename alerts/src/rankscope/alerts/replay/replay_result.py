"""``rankscope.replay/1``: when alerts would have been pending, fired and ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from rankscope.alerts.alert import rfc3339
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.result.text import reading
from rankscope.base.text import format_duration, one_line

REPLAY_SCHEMA: Final = "rankscope.replay/1"


class Spell(msgspec.Struct, frozen=True, kw_only=True):
    """One period in which the condition of an alert held."""

    labels: dict[str, str]
    pending_unix_ns: int
    """When the condition was first seen."""
    fired_unix_ns: int | None = None
    """When the alert would have fired; ``None``: it did not last long enough."""
    ended_unix_ns: int | None = None
    """When the alert would have been resolved, or a pending one dropped; ``None``: not within the replayed time."""
    annotations: dict[str, str] = {}
    values: list[Evidence] = []
    """Measurements behind the alert when it fired."""


class RuleHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One alert over the replayed time."""

    rule: str
    policy: str
    """Conditions to fire and to end, as text."""
    spells: list[Spell] = []
    """Spells in order of time."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The watcher's alerts over a recorded run."""

    schema: str = REPLAY_SCHEMA
    path: str
    """The run's folder."""
    run_id: str | None = None
    simulated: bool = False
    """The GPU readings of the run are simulated."""
    start_unix_ns: int
    end_unix_ns: int
    interval_s: float
    """Time between evaluations."""
    evaluations: int
    rules: list[RuleHistory]
    notes: list[str] = []
    """Missing or unreadable parts of the run."""


_SHOWN = 20
"""Most spells of an alert in the text; the JSON has them all."""


def replay_text(replay: Replay) -> str:
    """Format some lines per alert: whether it would have fired, when, and for which rank."""
    run = f" (run {replay.run_id})" if replay.run_id else ""
    simulated = "[simulated GPUs] " if replay.simulated else ""
    lines = [
        f"{simulated}{replay.path}{run}, {rfc3339(replay.start_unix_ns)} to {rfc3339(replay.end_unix_ns)}",
        *(line for rule in replay.rules for line in _rule(rule)),
        *(f"note: {note}" for note in replay.notes),
    ]
    return "\n".join(map(one_line, lines))


def _rule(rule: RuleHistory) -> Iterator[str]:
    fired = sum(spell.fired_unix_ns is not None for spell in rule.spells)
    times = "once" if fired == 1 else f"{fired} times"
    yield f"{rule.rule}: would {f'have fired {times}' if fired else 'not have fired'}; {rule.policy}"
    for spell in rule.spells[:_SHOWN]:
        yield from _spell(spell)
    if len(rule.spells) > _SHOWN:
        yield f"  and {len(rule.spells) - _SHOWN} more; --format json has them all"


def _spell(spell: Spell) -> Iterator[str]:
    ended = "still so at the end" if spell.ended_unix_ns is None else f"until {rfc3339(spell.ended_unix_ns)}"
    if spell.fired_unix_ns is None:
        yield f"  pending {rfc3339(spell.pending_unix_ns)} {ended}: {_about(spell)}"
        return
    after = format_duration((spell.fired_unix_ns - spell.pending_unix_ns) / 1e3)
    since = f", {after} after it was first seen" if spell.fired_unix_ns > spell.pending_unix_ns else ""
    yield f"  FIRED   {rfc3339(spell.fired_unix_ns)} {ended}{since}: {_about(spell)}"
    if summary := spell.annotations.get("summary"):
        yield f"    {summary}"
    if values := [" ".join(reading(value)) for value in spell.values[:3]]:
        yield f"    {', '.join(values)}"


def _about(spell: Spell) -> str:
    hidden = ("alertname", "severity")
    return ", ".join(f"{name} {value}" for name, value in spell.labels.items() if name not in hidden) or "no labels"
