"""Number of alerts that began, over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.data.alert_record import AlertRecord
from rankscope.dashboards.figures.alert_times import NONE, alert_table
from rankscope.dashboards.figures.drawn import NO_TABLE, Drawn
from rankscope.dashboards.figures.frame import framed, hatched, legend_above, note
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import moment

MOST_BARS: Final = 60

_WIDTHS_S: Final = (
    (60, "minute"), (600, "10 minutes"), (3_600, "hour"), (6 * 3_600, "6 hours"), (86_400, "day"), (7 * 86_400, "7 days"),
    (30 * 86_400, "30 days"), (360 * 86_400, "360 days"),
)  # fmt: skip
"""Allowed bar widths: seconds, and their name."""

_SEVERITIES: Final = (
    ("critical", "Critical", "exposed_communication", ""),
    ("warning", "Warning", "exposed_memcpy", "/"),
    (None, "Other", "idle", "x"),
)
"""Severity, its name, role of its colour, hatching."""


def alert_counts(alerts: Sequence[AlertRecord], colors: Palette) -> Drawn:
    """Draw stacked bars of the number of alerts that began, by severity."""
    if not alerts:
        return Drawn(note(NONE, colors), NO_TABLE, NONE.replace("<br>", " "))
    width_s, words = bar_width_s([alert.started_unix_ns for alert in alerts])
    named = {severity for severity, *_ in _SEVERITIES}
    figure = go.Figure()
    for severity, name, role, hatch in _SEVERITIES:
        some = [alert for alert in alerts if (alert.severity if alert.severity in named else None) == severity]
        counts = sorted(Counter(_bin(alert.started_unix_ns, width_s) for alert in some).items())
        figure.add_bar(
            x=[moment(second * 10**9 + width_s * 10**9 // 2) for second, _ in counts],
            y=[count for _, count in counts],
            width=width_s * 900,
            name=name,
            showlegend=bool(some),
            marker=hatched(getattr(colors, role), hatch, colors),
            customdata=[moment(second * 10**9) for second, _ in counts],
            hovertemplate=f"<b>{name}</b>: %{{y}} in the {words} from %{{customdata}} UTC<extra></extra>",
        )
    highest = max(Counter(_bin(alert.started_unix_ns, width_s) for alert in alerts).values())
    framed(figure, colors, height=240)
    figure.update_layout(barmode="stack")
    legend_above(figure)
    figure.update_xaxes(type="date", title_text="time (UTC)")
    figure.update_yaxes(title_text=f"alerts per {words}", rangemode="tozero", tickformat=",d", dtick=1 if highest <= 8 else None)
    firing = sum(alert.state == "firing" for alert in alerts)
    most = Counter(alert.name for alert in alerts).most_common(1)[0]
    says = f"{len(alerts):,} alerts, {firing:,} of them firing; {most[0]} most often, {most[1]:,} times."
    return Drawn(figure, alert_table(alerts), says)


def bar_width_s(starts_unix_ns: Sequence[int]) -> tuple[int, str]:
    """Return the narrowest bar width in seconds, and its name, that needs at most ``MOST_BARS`` bars; else the widest."""
    span_s = (max(starts_unix_ns) - min(starts_unix_ns)) / 1e9
    return next(((width, words) for width, words in _WIDTHS_S if span_s < width * (MOST_BARS - 1)), _WIDTHS_S[-1])


def _bin(unix_ns: int, width_s: int) -> int:
    return unix_ns // 10**9 // width_s * width_s
