"""Times at which alerts fired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.base.text import shortened
from rankscope.dashboards.data.alert_record import AlertRecord, State
from rankscope.dashboards.figures.drawn import Table
from rankscope.dashboards.figures.frame import framed, hatched, legend_above, note, rows_axis
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import duration, moment

SHOWN: Final = 24
"""Maximum number of rows, one per alert name and subject. The table has all alerts."""

COLUMNS: Final = (
    "alert", "severity", "state", "run id", "rank", "started [unix ns]", "ended [unix ns]", "source", "summary", "labels"
)  # fmt: skip

NONE: Final = "No alert is known: nothing was found,<br>or nobody watched. rankscope alerts watch RUNS watches."

_STATES: Final[tuple[tuple[State, str, str], ...]] = (
    ("firing", "Fires", ""),
    ("pending", "Pending", "."),
    ("lost", "End unknown", "/"),
    ("resolved", "Past", "x"),
)
"""State, its name, and the hatching that shows it without colour."""


def alert_times(alerts: Sequence[AlertRecord], colors: Palette, *, now_unix_ns: int) -> go.Figure:
    """Draw a bar from the start of each alert to its end, or to now, in one row per alert name and subject."""
    rows = list(dict.fromkeys(row_label(alert) for alert in alerts))[:SHOWN]
    if not rows:
        return note(NONE, colors)
    fills = {
        "firing": colors.exposed_communication, "pending": colors.exposed_memcpy, "lost": colors.missing, "resolved": colors.idle,
    }  # fmt: skip
    figure = go.Figure()
    for state, name, hatch in _STATES:
        some = [alert for alert in alerts if alert.state == state and row_label(alert) in rows]
        ends = [alert.ended_unix_ns or max(now_unix_ns, alert.started_unix_ns) for alert in some]
        figure.add_bar(
            base=[moment(alert.started_unix_ns) for alert in some],
            x=[(end - alert.started_unix_ns) / 1e6 for alert, end in zip(some, ends, strict=True)],
            y=[rows.index(row_label(alert)) for alert in some],
            orientation="h",
            name=name,
            showlegend=bool(some),
            marker=hatched(fills[state], hatch, colors),
            customdata=[
                [name, duration((end - alert.started_unix_ns) / 1e3), moment(alert.started_unix_ns)]
                for alert, end in zip(some, ends, strict=True)
            ],
            hovertemplate="<b>%{customdata[0]}</b> since %{customdata[2]} UTC, for %{customdata[1]}<extra></extra>",
        )
    framed(figure, colors, height=90 + 30 * max(len(rows), 2))
    figure.update_layout(barmode="overlay", bargap=0.35)
    legend_above(figure)
    figure.update_xaxes(type="date", title_text="time (UTC)")
    rows_axis(figure, rows)
    return figure


def alert_table(alerts: Sequence[AlertRecord]) -> Table:
    """Return a table with all fields of each alert."""
    return Table(
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
