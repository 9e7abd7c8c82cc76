"""A replay for people."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.alerts.alert import rfc3339
from rankscope.alerts.events import plain
from rankscope.alerts.findings import reading
from rankscope.alerts.replay_result import Replay, Replayed, Spell
from rankscope.analysis.duration import duration

_SHOWN = 20
"""Spells of a rule; the JSON has them all."""


def replay_text(replay: Replay) -> str:
    """Some lines per rule: whether it would have fired, when, and for whom."""
    run = f" (run {replay.run_id})" if replay.run_id else ""
    simulated = "[simulated GPUs] " if replay.simulated else ""
    lines = [
        f"{simulated}{replay.path}{run}, {rfc3339(replay.start_unix_ns)} to {rfc3339(replay.end_unix_ns)}",
        *(line for rule in replay.rules for line in _rule(rule)),
        *(f"note: {note}" for note in replay.notes),
    ]
    return "\n".join(map(plain, lines))


def _rule(rule: Replayed) -> Iterator[str]:
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
    after = duration((spell.fired_unix_ns - spell.pending_unix_ns) / 1e3)
    since = f", {after} after it was first seen" if spell.fired_unix_ns > spell.pending_unix_ns else ""
    yield f"  FIRED   {rfc3339(spell.fired_unix_ns)} {ended}{since}: {_about(spell)}"
    if summary := spell.annotations.get("summary"):
        yield f"    {summary}"
    if values := [" ".join(reading(value)) for value in spell.values[:3]]:
        yield f"    {', '.join(values)}"


def _about(spell: Spell) -> str:
    hidden = ("alertname", "severity")
    return ", ".join(f"{name} {value}" for name, value in spell.labels.items() if name not in hidden) or "no labels"
