"""Scaling efficiency by world size, and the parts of the step that its losses are due to."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.analysis.compare.result import Scaling
from rankscope.dashboards.figures.drawn import NO_TABLE, Drawn, Table
from rankscope.dashboards.figures.frame import framed, hatched, legend_above, note
from rankscope.dashboards.figures.palette import Palette

_HATCHES: Final = ("", "/", "x", ".", "\\", "|", "-", "+")
_ROLES: Final = ("compute", "overlap", "exposed_communication", "exposed_memcpy", "idle")


def scaling_efficiency(scaling: Scaling, colors: Palette) -> Drawn:
    """Draw efficiency per world size with its interval; the ideal is the line at 100 %."""
    rows = [row for row in scaling.rows if row.efficiency is not None]
    if not rows:
        return Drawn(note(scaling.summary, colors), NO_TABLE, scaling.summary)
    percents = [100 * (row.efficiency or 0.0) for row in rows]
    figure = go.Figure(
        go.Scatter(
            x=[row.world_size for row in rows],
            y=percents,
            mode="lines+markers",
            name="measured",
            line={"color": colors.compute, "width": 2.5},
            marker={"size": 9},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [
                    0 if row.efficiency_high is None else 100 * row.efficiency_high - at
                    for row, at in zip(rows, percents, strict=True)
                ],
                "arrayminus": [
                    0 if row.efficiency_low is None else at - 100 * row.efficiency_low
                    for row, at in zip(rows, percents, strict=True)
                ],
                "color": colors.compute,
            },
            customdata=[(row.label, row.per_s, row.speedup, row.linear) for row in rows],
            hovertemplate="<b>%{customdata[0]}: %{x} ranks</b><br>efficiency %{y:.1f}%<br>"
            f"%{{customdata[1]:,.1f}} {(scaling.work or '').replace('_', ' ')}/s<br>"
            "speedup %{customdata[2]:.2f} of %{customdata[3]:.2f}<extra></extra>",
        )
    )
    figure.add_scatter(
        x=[row.world_size for row in rows],
        y=[100] * len(rows),
        mode="lines",
        name="ideal",
        line={"color": colors.muted, "dash": "dash", "width": 2},
        hoverinfo="skip",
    )
    framed(figure, colors, height=320)
    legend_above(figure)
    figure.update_xaxes(title_text="world size, ranks", type="log", tickvals=[row.world_size for row in rows])
    figure.update_yaxes(title_text="efficiency, %", rangemode="tozero")
    columns = ("side", "world size", f"{scaling.work or 'work'} [1/s]", "speedup", "linear", "efficiency", "low", "high")
    table = Table(
        columns,
        [
            (
                row.label,
                row.world_size,
                row.per_s,
                row.speedup,
                row.linear,
                row.efficiency,
                row.efficiency_low,
                row.efficiency_high,
            )
            for row in scaling.rows
        ],
    )
    return Drawn(figure, table, scaling.summary)


def scaling_losses(scaling: Scaling, colors: Palette) -> Drawn:
    """Draw the additional rank-time per unit of work versus the reference, by part. Negative values are gains."""
    rows = [row for row in scaling.rows if row.losses]
    if not rows:
        says = "Where the efficiency went is not known of any of these runs."
        return Drawn(note(says, colors), NO_TABLE, says)
    names = list(dict.fromkeys(loss.name for row in rows for loss in row.losses))
    labels = {loss.name: loss.label for row in rows for loss in row.losses}
    figure = go.Figure()
    for index, name in enumerate(names):
        shares = [next((100 * loss.share for loss in row.losses if loss.name == name), None) for row in rows]
        figure.add_bar(
            x=[f"{row.world_size:,} ranks ({row.label})" for row in rows],
            y=shares,
            name=labels[name],
            marker=hatched(getattr(colors, _ROLES[index % len(_ROLES)]), _HATCHES[index % len(_HATCHES)], colors),
            hovertemplate=f"{labels[name]}: %{{y:+.2f}}% of all rank-time<extra></extra>",
        )
    framed(figure, colors, height=340)
    figure.update_layout(barmode="relative", bargap=0.6, showlegend=True)
    figure.update_yaxes(title_text="% of all rank-time lost", zeroline=True, zerolinecolor=colors.muted)
    table = Table(
        ("side", "world size", "part", "share of rank-time lost"),
        [(row.label, row.world_size, loss.label, loss.share) for row in rows for loss in row.losses],
    )
    last = max(rows, key=lambda row: row.world_size)
    most = max(last.losses, key=lambda loss: loss.share)
    return Drawn(
        figure, table, f"With {last.world_size:,} ranks most is lost to {most.label}: {100 * most.share:.1f}% of all rank-time."
    )
