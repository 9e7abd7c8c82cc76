"""Figures of alerts: when they fired, how many began, and when a replay would have fired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.alerts.replay.result import Replay, Replayed, Spell
from rankscope.base.text import shortened
from rankscope.dashboards.alerts.data import AlertRecord, State
from rankscope.dashboards.charts.bars import Look
from rankscope.dashboards.charts.frame import framed, hatched, legend_above, note, rows_axis
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.events import StepClock
from rankscope.dashboards.model.drawn import NO_DATA, Drawn, FigureData
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import AxisClock, duration, moment

MOST_ROWS: Final = 24
"""Maximum number of rows, one per alert name and subject. The table has all alerts."""

COLUMNS: Final = (
    "alert", "severity", "state", "run id", "rank", "started [unix ns]", "ended [unix ns]", "source", "summary", "labels"
)  # fmt: skip

_TIME: Final = "time ({})"
NONE: Final = "No alert is known: nothing was found, or no watcher ran (rankscope alerts watch RUNS)."

_STATES: Final[dict[State, Look]] = {
    "firing": Look("Fires", "exposed_communication"),
    "pending": Look("Pending", "exposed_memcpy", "."),
    "lost": Look("End unknown", "missing", "/"),
    "resolved": Look("Past", "idle", "x"),
}


def alert_times(alerts: Sequence[AlertRecord], colors: Palette, *, now_unix_ns: int) -> go.Figure:
    """Draw a bar from the start of each alert to its end, or to now, in one row per alert name and subject."""
    rows = list(dict.fromkeys(row_label(alert) for alert in alerts))[:MOST_ROWS]
    if not rows:
        return note(NONE, colors)
    drawn = [alert for alert in alerts if row_label(alert) in rows]
    clock = AxisClock.of(max(alert.ended_unix_ns or max(now_unix_ns, alert.started_unix_ns) for alert in drawn))
    figure = go.Figure()
    for state, look in _STATES.items():
        some = [alert for alert in drawn if alert.state == state]
        ends = [alert.ended_unix_ns or max(now_unix_ns, alert.started_unix_ns) for alert in some]
        figure.add_bar(
            base=[clock.moment(alert.started_unix_ns) for alert in some],
            x=[(end - alert.started_unix_ns) / 1e6 for alert, end in zip(some, ends, strict=True)],
            y=[rows.index(row_label(alert)) for alert in some],
            orientation="h",
            name=look.label,
            showlegend=bool(some),
            marker=look.marker(colors),
            customdata=[
                [look.label, duration((end - alert.started_unix_ns) / 1e3), moment(alert.started_unix_ns)]
                for alert, end in zip(some, ends, strict=True)
            ],
            hovertemplate="<b>%{customdata[0]}</b> since %{customdata[2]} UTC, for %{customdata[1]}<extra></extra>",
        )
    framed(figure, colors, height=90 + 30 * max(len(rows), 2))
    figure.update_layout(barmode="overlay", bargap=0.35)
    legend_above(figure)
    figure.update_xaxes(type="date", title_text=_TIME.format(clock.name))
    rows_axis(figure, rows)
    return figure


def alert_table(alerts: Sequence[AlertRecord]) -> FigureData:
    """Return a table with all fields of each alert."""
    return FigureData(
        COLUMNS,
        [
            (
                alert.name,
                alert.severity,
                alert.state,
                alert.run_id,
                alert.rank,
                alert.started_unix_ns,
                alert.ended_unix_ns,
                alert.source,
                alert.summary,
                ", ".join(f"{name}={value}" for name, value in sorted(alert.labels.items())),
            )
            for alert in alerts
        ],
    )


def row_label(alert: AlertRecord) -> str:
    """Return name and subject of an alert, shortened and without HTML or control characters."""
    about = next(
        (f"{name} {alert.labels[name]}" for name in ("rank", "uuid", "collector", "instance", "host") if alert.labels.get(name)),
        "",
    )
    text = "".join(char if char.isprintable() and char not in "<>&" else " " for char in f"{alert.name} {about}".strip())
    return shortened(text, _LONGEST)


_LONGEST: Final = 48


MOST_BARS: Final = 60

_WIDTHS_S: Final = (
    (60, "minute"), (600, "10 minutes"), (3_600, "hour"), (6 * 3_600, "6 hours"), (86_400, "day"), (7 * 86_400, "7 days"),
    (30 * 86_400, "30 days"), (360 * 86_400, "360 days"),
)  # fmt: skip
"""Allowed bar widths: seconds, and their name."""

_SEVERITIES: Final = {
    "critical": Look("Critical", "exposed_communication"),
    "warning": Look("Warning", "exposed_memcpy", "/"),
    None: Look("Other", "idle", "x"),
}


def alert_counts(alerts: Sequence[AlertRecord], colors: Palette) -> Drawn:
    """Draw stacked bars of the number of alerts that began, by severity."""
    if not alerts:
        return Drawn(note(NONE, colors), NO_DATA, NONE.replace("<br>", " "))
    width_s, words = bar_width_s([alert.started_unix_ns for alert in alerts])
    clock = AxisClock.of(max(alert.started_unix_ns for alert in alerts))
    figure = go.Figure()
    for severity, look in _SEVERITIES.items():
        some = [alert for alert in alerts if (alert.severity if alert.severity in _SEVERITIES else None) == severity]
        counts = sorted(Counter(clock.start_s(alert.started_unix_ns, width_s) for alert in some).items())
        figure.add_bar(
            x=[clock.moment(second * 10**9 + width_s * 10**9 // 2) for second, _ in counts],
            y=[count for _, count in counts],
            width=width_s * 900,
            name=look.label,
            showlegend=bool(some),
            marker=look.marker(colors),
            customdata=[moment(second * 10**9) for second, _ in counts],
            hovertemplate=f"<b>{look.label}</b>: %{{y}} in the {words} from %{{customdata}} UTC<extra></extra>",
        )
    highest = max(Counter(clock.start_s(alert.started_unix_ns, width_s) for alert in alerts).values())
    framed(figure, colors, height=240)
    figure.update_layout(barmode="stack")
    legend_above(figure)
    figure.update_xaxes(type="date", title_text=_TIME.format(clock.name))
    figure.update_yaxes(title_text=f"alerts per {words}", rangemode="tozero", tickformat=",d", dtick=1 if highest <= 8 else None)
    firing = sum(alert.state == "firing" for alert in alerts)
    most = Counter(alert.name for alert in alerts).most_common(1)[0]
    says = f"{len(alerts):,} alerts, {firing:,} of them firing; {most[0]} most often, {most[1]:,} times."
    return Drawn(figure, alert_table(alerts), says)


def bar_width_s(starts_unix_ns: Sequence[int]) -> tuple[int, str]:
    """Return the narrowest bar width in seconds, and its name, that needs at most ``MOST_BARS`` bars; else the widest."""
    span_s = (max(starts_unix_ns) - min(starts_unix_ns)) / 1e9
    return next(((width, words) for width, words in _WIDTHS_S if span_s < width * (MOST_BARS - 1)), _WIDTHS_S[-1])


MOST_REPLAY_ROWS: Final = 24
"""Maximum number of rows drawn. The table has all."""
_TICKS: Final = 4

REPLAY_COLUMNS: Final = (
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
    """Return the subject of an alert: ``rank 3 on node-1``, ``host node-1``."""
    labels = spell.labels
    rank, host = labels.get("rank"), labels.get("host")
    if not rank:
        return f"host {host}" if host else "the run"
    return f"rank {rank} on {host}" if host else f"rank {rank}"


def nothing_fired(replay: Replay, rule: str | None) -> str:
    """Return the sentence for a replay without alerts, followed by the replay's notes on its limits."""
    says = "No alert would have fired." if rule is None else f"{rule} would not have fired."
    return " ".join([says, *replay.notes])


def replay_times(replay: Replay, rule: str | None, colors: Palette, clock: StepClock | None = None) -> Drawn:
    """Draw bars of the times at which alerts would have been pending and firing, in one row per alert and subject.

    ``rule``: one alert, or all if ``None``. ``clock``: begin times of steps, shown below the times of the axis.
    """
    spells = spells_of(replay, rule)
    table = FigureData(REPLAY_COLUMNS, [_row(one, spell, replay) for one, spell in spells])
    if not spells:
        says = nothing_fired(replay, rule)
        return Drawn(note(says, colors), table, says)
    rows = list(dict.fromkeys(_label(*told) for told in spells))[:MOST_REPLAY_ROWS]
    drawn = [(rows.index(_label(*told)), told[1]) for told in spells if _label(*told) in rows]
    end = max(replay.end_unix_ns, *(spell.ended_unix_ns or 0 for _, spell in drawn))
    axis = AxisClock.of(end)
    pending = [(row, spell.pending_unix_ns, spell.fired_unix_ns or spell.ended_unix_ns or end) for row, spell in drawn]
    firing = [(row, spell.fired_unix_ns, spell.ended_unix_ns or end) for row, spell in drawn if spell.fired_unix_ns is not None]
    figure = go.Figure()
    for name, color, hatch, bars in (
        ("Pending", colors.exposed_memcpy, ".", pending),
        ("Fires", colors.exposed_communication, "", firing),
    ):
        figure.add_bar(
            base=[axis.moment(first) for _, first, _ in bars],
            x=[(last - first) / 1e6 for _, first, last in bars],
            y=[row for row, *_ in bars],
            orientation="h",
            name=name,
            showlegend=bool(bars),
            marker=hatched(color, hatch, colors),
            customdata=[
                [duration((first - replay.start_unix_ns) / 1e3), duration((last - first) / 1e3), moment(first)]
                for _, first, last in bars
            ],
            hovertemplate=f"<b>{name}</b> from %{{customdata[0]}} after the run began, for %{{customdata[1]}}"
            "<br>%{customdata[2]} UTC<extra></extra>",
        )
    # An alert that ended at once has no visible bar, such as in a run shorter than an evaluation interval.
    figure.add_scatter(
        x=[axis.moment(first) for _, first, _ in firing],
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
    figure.update_xaxes(
        type="date",
        title_text=_TIME.format(axis.name),
        range=[axis.moment(replay.start_unix_ns - margin), axis.moment(end + margin)],
    )
    if clock is not None and len(clock.steps):
        figure.update_xaxes(**_step_ticks(clock, axis), title_text=f"{_TIME.format(axis.name)}, and the step that began then")
    rows_axis(figure, ["<br>".join(map(plotly_text, row)) for row in rows])
    fired = sum(spell.fired_unix_ns is not None for _, spell in spells)
    says = f"Alerts that would have fired: {fired}; pending without firing: {len(spells) - fired}."
    return Drawn(figure, table, says)


def _step_ticks(clock: StepClock, axis: AxisClock) -> dict[str, Any]:
    at = np.unique(np.linspace(0, len(clock.steps) - 1, _TICKS).astype(int))
    times = [(int(clock.steps[each]), axis.moment(int(clock.starts_ns[each])) or "") for each in at]
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
