"""Figures of alerts: when they fired, and how many began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.base.text import shortened
from rankscope.dashboards.alerts.record import AlertRecord, AlertState
from rankscope.dashboards.charts.bars import bar_marker
from rankscope.dashboards.charts.frame import drawn_note, framed, legend_above, note, rows_axis
from rankscope.dashboards.charts.palette import BarStyle, Palette
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData
from rankscope.dashboards.words.units import AxisClock, date_and_time, duration

MOST_ROWS: Final = 24
"""Maximum number of rows, one per alert name and subject. The table has all alerts."""

COLUMNS: Final = (
    "alert", "severity", "state", "run id", "rank", "started [unix ns]", "ended [unix ns]", "source", "summary", "labels"
)  # fmt: skip

_TIME: Final = "time ({})"
NONE: Final = "No alert is known: nothing was found, or no watcher ran (rankscope alerts watch RUNS)."

_STATES: Final[dict[AlertState, BarStyle]] = {
    "firing": BarStyle("Fires", "exposed_communication"),
    "pending": BarStyle("Pending", "exposed_memcpy", "."),
    "lost": BarStyle("End unknown", "missing", "/"),
    "resolved": BarStyle("Past", "idle", "x"),
}


def alert_times(alerts: Sequence[AlertRecord], colors: Palette, *, now_unix_ns: int) -> go.Figure:
    """Draw a bar from the start of each alert to its end, or to now, in one row per alert name and subject."""
    rows = list(dict.fromkeys(row_label(alert) for alert in alerts))[:MOST_ROWS]
    if not rows:
        return note(NONE, colors)
    drawn = [alert for alert in alerts if row_label(alert) in rows]
    clock = AxisClock.of(max(alert.ended_unix_ns or max(now_unix_ns, alert.started_unix_ns) for alert in drawn))
    figure = go.Figure()
    for state, style in _STATES.items():
        in_state = [alert for alert in drawn if alert.state == state]
        ends = [alert.ended_unix_ns or max(now_unix_ns, alert.started_unix_ns) for alert in in_state]
        figure.add_bar(
            base=[clock.date_and_time(alert.started_unix_ns) for alert in in_state],
            x=[(end - alert.started_unix_ns) / 1e6 for alert, end in zip(in_state, ends, strict=True)],
            y=[rows.index(row_label(alert)) for alert in in_state],
            orientation="h",
            name=style.label,
            showlegend=bool(in_state),
            marker=bar_marker(style, colors),
            customdata=[
                [style.label, duration((end - alert.started_unix_ns) / 1e3), date_and_time(alert.started_unix_ns)]
                for alert, end in zip(in_state, ends, strict=True)
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
    "critical": BarStyle("Critical", "exposed_communication"),
    "warning": BarStyle("Warning", "exposed_memcpy", "/"),
    None: BarStyle("Other", "idle", "x"),
}


def alert_counts(alerts: Sequence[AlertRecord], colors: Palette) -> DrawnFigure:
    """Draw stacked bars of the number of alerts that began, by severity."""
    if not alerts:
        return drawn_note(NONE, colors)
    width_s, words = bar_width_s([alert.started_unix_ns for alert in alerts])
    clock = AxisClock.of(max(alert.started_unix_ns for alert in alerts))
    figure = go.Figure()
    for severity, style in _SEVERITIES.items():
        of_severity = [alert for alert in alerts if (alert.severity if alert.severity in _SEVERITIES else None) == severity]
        counts = sorted(Counter(clock.start_s(alert.started_unix_ns, width_s) for alert in of_severity).items())
        figure.add_bar(
            x=[clock.date_and_time(second * 10**9 + width_s * 10**9 // 2) for second, _ in counts],
            y=[count for _, count in counts],
            width=width_s * 900,
            name=style.label,
            showlegend=bool(of_severity),
            marker=bar_marker(style, colors),
            customdata=[date_and_time(second * 10**9) for second, _ in counts],
            hovertemplate=f"<b>{style.label}</b>: %{{y}} in the {words} from %{{customdata}} UTC<extra></extra>",
        )
    highest = max(Counter(clock.start_s(alert.started_unix_ns, width_s) for alert in alerts).values())
    framed(figure, colors, height=240)
    figure.update_layout(barmode="stack")
    legend_above(figure)
    figure.update_xaxes(type="date", title_text=_TIME.format(clock.name))
    figure.update_yaxes(title_text=f"alerts per {words}", rangemode="tozero", tickformat=",d", dtick=1 if highest <= 8 else None)
    firing = sum(alert.state == "firing" for alert in alerts)
    most = Counter(alert.name for alert in alerts).most_common(1)[0]
    sentence = f"{len(alerts):,} alerts, {firing:,} of them firing; {most[0]} most often, {most[1]:,} times."
    return DrawnFigure(figure, alert_table(alerts), sentence)


def bar_width_s(starts_unix_ns: Sequence[int]) -> tuple[int, str]:
    """Return the narrowest bar width in seconds, and its name, that needs at most ``MOST_BARS`` bars; else the widest."""
    span_s = (max(starts_unix_ns) - min(starts_unix_ns)) / 1e9
    return next(((width, words) for width, words in _WIDTHS_S if span_s < width * (MOST_BARS - 1)), _WIDTHS_S[-1])
