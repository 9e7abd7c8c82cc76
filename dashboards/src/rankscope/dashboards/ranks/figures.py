"""GPU events, marked on the step axis above a heat map of steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.events import COUNTED, THROTTLES, HardwareEvent
from rankscope.dashboards.words.inert import plotly_text

_STRIP_PX: Final = 30


@dataclass(frozen=True, slots=True)
class _Mark:
    label: str
    symbol: str
    kinds: frozenset[str]


_MARKS: Final = (
    _Mark("error", "x", frozenset({"xid", "ecc"})),
    _Mark("link", "diamond", frozenset(kind for kind, _ in COUNTED.values()) - {"xid", "ecc"}),
    _Mark("throttled or slowed", "triangle-down", frozenset({*THROTTLES, "clock_drop"})),
)
"""Marks of events, each with its own shape."""


def events_within(events: Iterable[HardwareEvent], steps: tuple[int, int]) -> list[HardwareEvent]:
    """Return the events that overlap ``steps`` (first and last, inclusive). Events without a step are left out."""
    return [
        event
        for event in events
        if event.step is not None and event.until_step is not None and event.step <= steps[1] and event.until_step >= steps[0]
    ]


def mark_events(figure: go.Figure, events: Iterable[HardwareEvent], colors: Palette, *, steps: tuple[int, int]) -> go.Figure:
    """Mark the ``events`` that are ``within`` the ``steps`` of ``figure`` in a strip above it, and return ``figure``.

    A mark is at the step in which the event began; its line ends at the step in which it was last seen. Both are clipped to
    ``steps``. A point's ``customdata`` is the rank, or ``None``. Without such events ``figure`` is unchanged.
    """
    shown = events_within(events, steps)
    if not shown:
        return figure
    height = figure.layout.height + _STRIP_PX
    for mark in _MARKS:
        of_mark = [event for event in shown if event.kind in mark.kinds]
        if of_mark:
            figure.add_trace(_trace(mark, of_mark, colors, steps))
    share = _STRIP_PX / height
    figure.update_layout(
        height=height,
        yaxis={"domain": [0, 1 - share]},
        yaxis2={
            "domain": [1 - share, 1],
            "anchor": "x",
            "range": [-1, 1],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "tickmode": "array",
            "tickvals": [0],
            "ticktext": ["GPU"],
            "tickfont": {"color": colors.muted, "size": 11},
        },
        showlegend=False,
    )
    # Without this the strip has the map's background colour, which means "no record".
    figure.add_shape(
        type="rect",
        layer="below",
        xref="x domain",
        yref="y2 domain",
        x0=0,
        x1=1,
        y0=0,
        y1=1,
        fillcolor=colors.surface,
        line={"width": 0},
    )
    return figure


def _trace(mark: _Mark, events: Sequence[HardwareEvent], colors: Palette, steps: tuple[int, int]) -> go.Scatter:
    across: list[int | None] = []
    texts: list[str | None] = []
    ranks: list[int | None] = []
    for event in events:
        text = _hover(mark, event)
        across += [max(event.step or 0, steps[0]), min(event.until_step or 0, steps[1]), None]
        texts += [text, text, None]
        ranks += [event.rank, event.rank, None]
    return go.Scatter(
        x=across,
        y=[0] * len(across),
        yaxis="y2",
        mode="lines+markers",
        line={"color": colors.emphasis, "width": 2},
        marker={"symbol": [mark.symbol, "line-ns-open", "circle"] * len(events), "size": 9, "color": colors.emphasis},
        customdata=ranks,
        hovertext=texts,
        hoverinfo="text",
        name=mark.label,
    )


def _hover(mark: _Mark, event: HardwareEvent) -> str:
    whom = f"GPU {event.gpu_uuid} on {event.host}" + ("" if event.rank is None else f", rank {event.rank}")
    when = f"step {event.step}" if event.step == event.until_step else f"steps {event.step} to {event.until_step}"
    simulated = "<br>SIMULATED" if event.simulated else ""
    return f"<b>{mark.label}</b>: {plotly_text(event.detail)}<br>{plotly_text(whom)}<br>{when}{simulated}"
