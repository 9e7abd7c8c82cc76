"""Power of hosts or racks: the sum over their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.data.group_power import GroupPower
from rankscope.dashboards.figures.frame import framed, hatched, note
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import shown_unit

MOST_BARS: Final = 40


def group_power_bars(groups: Sequence[GroupPower], colors: Palette, *, picked: str | None = None) -> go.Figure:
    """Draw a bar of the median and a mark at the highest power per group.

    A sum over only some GPUs is hatched and labelled with their number. The first ``MOST_BARS`` groups are shown, in the given
    order (highest median first).
    """
    known = [group for group in groups if group.median_watts is not None and group.highest_watts is not None][:MOST_BARS]
    if not known:
        return note("The power of no GPU is known in this time.", colors)
    size, unit = shown_unit("watts", max(group.highest_watts or 0 for group in known))
    names = [f"<b>▸ {escape(group.name)}</b>" if group.name == picked else escape(group.name) for group in known]
    texts = ["" if group.is_whole else f"{group.known} of {group.gpus} GPUs" for group in known]
    pattern = ["" if group.is_whole else "/" for group in known]
    marker = hatched(colors.compute, "", colors)
    marker["pattern"]["shape"] = pattern
    medians = [(group.median_watts or 0) / size for group in known]
    highest = [(group.highest_watts or 0) / size for group in known]
    hover = [
        f"<b>{escape(group.name)}</b><br>median {median:,.4g} {unit}, highest {most:,.4g} {unit}"
        f"<br>sum over {group.known} of {group.gpus} GPUs"
        for group, median, most in zip(known, medians, highest, strict=True)
    ]
    figure = go.Figure(
        [
            go.Bar(y=names, x=medians, orientation="h", marker=marker, hovertext=hover, hoverinfo="text", name="median"),
            go.Scatter(
                y=names,
                x=highest,
                mode="markers+text",
                marker={"symbol": "line-ns-open", "size": 14, "line": {"width": 3}, "color": colors.emphasis},
                text=texts,
                textposition="middle right",
                hovertext=hover,
                hoverinfo="text",
                cliponaxis=False,
                name="highest",
            ),
        ]
    )
    framed(figure, colors, height=70 + 24 * max(2, len(known)))
    figure.update_layout(showlegend=False, bargap=0.3)
    figure.update_xaxes(title_text=f"{unit}: bar median, mark highest", range=[0, 1.25 * max(highest)])
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure
