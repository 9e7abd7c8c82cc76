"""Replay in words: alerts that would have fired, with times and subjects."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from rankscope.alerts.replay.result import Replay, Replayed, Spell
from rankscope.dashboards.figures.replay_times import about, chosen, nothing_fired, spells_of
from rankscope.dashboards.figures.units import duration
from rankscope.dashboards.pages.pieces import table

SHOWN: Final = 100
_COLUMNS: Final = (
    ("Alert", ""), ("About", ""), ("Pending", ""), ("Fired", ""), ("Ended", ""), ("What it says", "names"),
)  # fmt: skip


def replay_list(replay: Replay, rule: str | None) -> list[Component]:
    """Return the replay's limits, a row per spell, and the policies of the rules."""
    asked = chosen(replay, rule)
    whole = duration((replay.end_unix_ns - replay.start_unix_ns) / 1e3)
    policies = dict.fromkeys(f"{one.rule}: {one.policy}." for one in asked if one.policy)
    how: list[Component] = [
        html.P(f"Replayed over {whole}, of the run as it was when it was read.", className="help"),
        html.Details([html.Summary("When they fire and end"), html.Ul([html.Li(policy) for policy in policies])]),
    ]
    spells = spells_of(replay, rule)
    if not spells:
        return [html.P(nothing_fired(replay, rule)), *how]
    parts: list[Component] = [html.P(line, className="reason", role="note") for line in replay.notes]
    parts.append(table(_COLUMNS, (_row(one, spell, replay) for one, spell in spells[:SHOWN])))
    if len(spells) > SHOWN:
        parts.append(html.P(f"{len(spells) - SHOWN:,} later ones are in the figure's CSV.", className="help"))
    return [*parts, *how]


def _row(one: Replayed, spell: Spell, replay: Replay) -> tuple[str, ...]:
    return (
        one.rule,
        about(spell),
        _after(spell.pending_unix_ns, replay, "-"),
        _after(spell.fired_unix_ns, replay, "would not have fired"),
        _after(spell.ended_unix_ns, replay, "not by the end of the replay"),
        spell.annotations.get("summary") or "-",
    )


def _after(unix_ns: int | None, replay: Replay, otherwise: str) -> str:
    return otherwise if unix_ns is None else f"{duration((unix_ns - replay.start_unix_ns) / 1e3)} into the run"
