"""Times at which alerts of a replay would have been pending, fired and ended."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.alerts.replay.result import Replay, Replayed, Spell
from rankscope.dashboards.data.events import StepClock
from rankscope.dashboards.figures.drawn import Drawn, Table
from rankscope.dashboards.figures.frame import framed, hatched, legend_above, note, rows_axis
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import duration, moment
from rankscope.dashboards.inert import plotly_text

SHOWN: Final = 24
"""Maximum number of rows drawn. The table has all."""
_TICKS: Final = 4

COLUMNS: Final = (
    "alert", "about", "pending [unix ns]", "fired [unix ns]", "ended [unix ns]", "fired after the run began [s]",
    "summary",
)  # fmt: skip


def spells_of(replay: Replay, rule: str | None) -> list[tuple[Replayed, Spell]]:
    """Return the spells of alert ``rule``, or of all alerts, in order of time."""
    spells = [(one, spell) for one in chosen(replay, rule) for spell in one.spells]
    return sorted(spells, key=lambda told: told[1].pending_unix_ns)


def chosen(replay: Replay, rule: str | None) -> list[Replayed]:
    """Return the results of alert ``rule``, or of all alerts."""
    return [one for one in replay.rules if rule in (None, one.rule)]


def about(spell: Spell) -> str:
    """Return the subject of an alert: ``rank 3 on node-1``."""
    labels = spell.labels
    rank, host = labels.get("rank"), labels.get("host")
    return " ".join(part for part in (f"rank {rank}" if rank else "", f"on {host}" if host else "") if part) or "the run"


def nothing_fired(replay: Replay, rule: str | None) -> str:
    """Return the sentence for a replay without alerts, followed by the replay's notes on its limits."""
    says = "No alert would have fired." if rule is None else f"{rule} would not have fired."
    return " ".join([says, *replay.notes])


def replay_times(replay: Replay, rule: str | None, colors: Palette, clock: StepClock | None = None) -> Drawn:
    """Draw bars of the times at which alerts would have been pending and firing, in one row per alert and subject.

    ``rule``: one alert, or all if ``None``. ``clock``: begin times of steps, shown below the times of the axis.
    """
    spells = spells_of(replay, rule)
    table = Table(COLUMNS, [_row(one, spell, replay) for one, spell in spells])
    if not spells:
        says = nothing_fired(replay, rule)
        return Drawn(note(says, colors), table, says)
    rows = list(dict.fromkeys(_label(*told) for told in spells))[:SHOWN]
    drawn = [(rows.index(_label(*told)), told[1]) for told in spells if _label(*told) in rows]
    end = max(replay.end_unix_ns, *(spell.ended_unix_ns or 0 for _, spell in drawn))
    pending = [(row, spell.pending_unix_ns, spell.fired_unix_ns or spell.ended_unix_ns or end) for row, spell in drawn]
    firing = [(row, spell.fired_unix_ns, spell.ended_unix_ns or end) for row, spell in drawn if spell.fired_unix_ns is not None]
    figure = go.Figure()
    for name, color, hatch, bars in (
        ("Pending", colors.exposed_memcpy, ".", pending),
        ("Fires", colors.exposed_communication, "", firing),
    ):
        figure.add_bar(
            base=[moment(first) for _, first, _ in bars],
            x=[(last - first) / 1e6 for _, first, last in bars],
            y=[row for row, *_ in bars],
            orientation="h",
            name=name,
            showlegend=bool(bars),
            marker=hatched(color, hatch, colors),
            customdata=[
                [duration((first - replay.start_unix_ns) / 1e3), duration((last - first) / 1e3)] for _, first, last in bars
            ],
            hovertemplate=f"<b>{name}</b> from %{{customdata[0]}} after the run began, for %{{customdata[1]}}<extra></extra>",
        )
    # An alert that ended at once has no visible bar, such as in a run shorter than an evaluation interval.
    figure.add_scatter(
        x=[moment(first) for _, first, _ in firing],
        y=[row for row, *_ in firing],
        mode="markers",
        name="Fired",
        showlegend=bool(firing),
        marker={"symbol": "triangle-up", "size": 11, "color": colors.emphasis},
        hoverinfo="skip",
    )
    margin = max(10**9, (end - replay.start_unix_ns) // 50)
    framed(figure, colors, height=100 + 38 * max(len(rows), 2))
    figure.update_layout(barmode="overlay", bargap=0.35)
    legend_above(figure)
    figure.update_xaxes(type="date", title_text="time (UTC)", range=[moment(replay.start_unix_ns - margin), moment(end + margin)])
    if clock is not None and len(clock.steps):
        figure.update_xaxes(**_step_ticks(clock), title_text="time (UTC), and the step that began then")
    rows_axis(figure, ["<br>".join(map(plotly_text, row)) for row in rows])
    fired = sum(spell.fired_unix_ns is not None for _, spell in spells)
    says = f"Alerts that would have fired: {fired}; pending without firing: {len(spells) - fired}."
    return Drawn(figure, table, says)


def _step_ticks(clock: StepClock) -> dict[str, Any]:
    at = np.unique(np.linspace(0, len(clock.steps) - 1, _TICKS).astype(int))
    times = [(int(clock.steps[each]), moment(int(clock.starts_ns[each])) or "") for each in at]
    shown = slice(11, None) if clock.starts_ns[-1] - clock.starts_ns[0] < 86_400e9 else slice(5, 16)
    return {
        "tickmode": "array",
        "tickvals": [time for _, time in times],
        "ticktext": [f"{time[shown]}<br>step {step:,}" for step, time in times],
    }


def _label(one: Replayed, spell: Spell) -> tuple[str, str]:
    """Return the two lines of a row's label."""
    return one.rule, about(spell)


def _row(one: Replayed, spell: Spell, replay: Replay) -> tuple[str | int | float | None, ...]:
    fired = spell.fired_unix_ns
    return (
        one.rule,
        about(spell),
        spell.pending_unix_ns,
        fired,
        spell.ended_unix_ns,
        None if fired is None else (fired - replay.start_unix_ns) / 1e9,
        spell.annotations.get("summary"),
    )
