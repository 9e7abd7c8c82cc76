"""A replay in words: what would have fired, when, for whom."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

from rankscope.alerts.replay_result import Replay, Replayed, Spell
from rankscope.dashboards.figures.replay_times import TELLERS, about, chosen, not_evaluated, nothing_fired, spells_of
from rankscope.dashboards.figures.units import duration

SHOWN: Final = 100
HEADS: Final = ("Alert (told by)", "About", "Pending", "Fired", "Ended", "What it says")


def replay_list(replay: Replay, rule: str | None) -> list[Component]:
    """What limits it, how it was judged, and a row per time that something was seen."""
    asked = chosen(replay, rule)
    whole = duration((replay.end_unix_ns - replay.start_unix_ns) / 1e3)
    policies = dict.fromkeys(f"{_tellers(one)}: {one.policy}." for one in asked if one.policy)
    how: list[Component] = [
        html.P(f"Replayed over {whole}, of the run as it was when it was read.", className="help"),
        html.Details([html.Summary("When they fire and end"), html.Ul([html.Li(policy) for policy in policies])]),
    ]
    spells = spells_of(replay, rule)
    if not spells:
        return [html.P(nothing_fired(replay, rule)), *how]
    head = html.Tr([html.Th(name, scope="col") for name in HEADS])
    body = html.Tbody([_row(one, spell, replay) for one, spell in spells[:SHOWN]])
    parts: list[Component] = [html.P(line, className="reason", role="note") for line in (*replay.notes, *not_evaluated(asked))]
    parts.append(html.Div(html.Table([html.Thead(head), body], className="ledger"), className="scrolls"))
    if len(spells) > SHOWN:
        parts.append(html.P(f"{len(spells) - SHOWN:,} later ones are in the figure's CSV.", className="help"))
    return [*parts, *how]


def _tellers(one: Replayed) -> str:
    return f"{one.rule} ({TELLERS[one.source]})"


def _row(one: Replayed, spell: Spell, replay: Replay) -> Component:
    return html.Tr(
        [
            html.Td(_tellers(one)),
            html.Td(about(spell)),
            html.Td(_after(spell.pending_unix_ns, replay, "-")),
            html.Td(_after(spell.fired_unix_ns, replay, "would not have fired")),
            html.Td(_after(spell.ended_unix_ns, replay, "not by the end of the replay")),
            html.Td(spell.annotations.get("summary") or "-", className="names"),
        ]
    )


def _after(unix_ns: int | None, replay: Replay, otherwise: str) -> str:
    return otherwise if unix_ns is None else f"{duration((unix_ns - replay.start_unix_ns) / 1e3)} into the run"
