"""GPU time lost per host, by cause."""

from __future__ import annotations

from typing import Final, get_args

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.analysis.result.cause import Cause
from rankscope.dashboards.charts.bars import row_bars
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.charts.frame import drawn_note, framed, legend_above, rows_axis
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.lost_hours.data import ClusterLosses, HostLoss
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.wording import gpu_hours, gpu_time_unit

SHOWN: Final = 20
"""Maximum number of hosts drawn. The table has all of them."""
_MOST_LETTERS: Final = 36
"""Maximum length of a name at the axis. The hover text has all of it."""

NO_HOST: Final = "no single host"


def lost_hours_bars(losses: ClusterLosses, colors: Palette) -> DrawnFigure:
    """Draw a stacked bar of lost GPU-hours per host. Hosts blamed in several runs have a flag."""
    hosts = [host for host in losses.hosts if host.gpu_hours > 0]
    if not hosts:
        reason = "No GPU time was lost in the runs that are counted." if losses.counted else "No run is counted yet."
        return drawn_note(reason, colors)
    shown = hosts[:SHOWN]
    names = [plotly_text(_name(host), _MOST_LETTERS) for host in shown]
    size, unit = gpu_time_unit(max(host.gpu_hours for host in shown))
    figure = go.Figure()
    for cause in get_args(Cause):
        style = CAUSES[cause]
        hours = np.array([host.by_cause.get(cause, 0.0) for host in shown])
        if hours.any():
            row_bars(
                figure,
                style,
                hours / size,
                colors,
                hovertext=[plotly_text(_name(host)) for host in shown],
                hovertemplate=f"<b>%{{hovertext}}</b><br>{style.label}: %{{x:,.3g}} {unit}<extra></extra>",
            )
    framed(figure, colors, height=110 + 30 * len(shown))
    figure.update_layout(barmode="stack", bargap=0.3)
    legend_above(figure)
    figure.update_xaxes(title_text=f"{unit} lost", rangemode="tozero")
    rows_axis(figure, [f"<b>⚑ {name}</b>" if host.repeated else name for name, host in zip(names, shown, strict=True)])
    return DrawnFigure(figure, lost_hours_table(losses), _summary_sentence(hosts, losses.gpu_hours))


def lost_hours_table(losses: ClusterLosses) -> FigureData:
    """Return a table with a row per host and cause."""
    rows = [
        (
            _name(host),
            cause,
            hours,
            len(host.runs),
            host.trained_gpu_hours,
            " ".join(host.runs),
            host.rare_by_cause.get(cause, 0.0),
        )
        for host in losses.hosts
        for cause, hours in sorted(host.by_cause.items(), key=lambda item: -item[1])
    ]
    columns = (
        "host",
        "cause",
        "lost [GPU-h]",
        "runs blamed in",
        "trained on the host [GPU-h]",
        "run ids",
        "lost in rare steps [GPU-h]",
    )
    return FigureData(columns, rows)


def _name(host: HostLoss) -> str:
    return host.host or NO_HOST


def _summary_sentence(hosts: list[HostLoss], total_hours: float) -> str:
    most = max(hosts, key=lambda host: host.gpu_hours)
    repeated = sum(host.repeated for host in hosts)
    more = f"; {repeated} of {len(hosts)} were blamed in several runs" if repeated else ""
    return f"{_name(most)} cost most: {gpu_hours(most.gpu_hours)} of {gpu_hours(total_hours)} lost{more}."
