"""Collectives by operation, process group and size: transfer versus waiting, and measured versus expected bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.analysis.result.collectives import CollectiveBandwidth
from rankscope.analysis.result.text import counted
from rankscope.analysis.result.text import size as bytes_in_words
from rankscope.dashboards.figures.frame import framed, hatched, note
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import duration, time_unit

SHOWN: Final = 12
"""Maximum number of rows drawn, the costliest first. The table has all of them."""

NO_COLLECTIVE: Final = (
    "No collective was seen: none was profiled, or none could be read.<br>"
    "rankscope capture RUN asks a live run for a profiled window;<br>rankscope run --window-first N sets the first one."
)
NO_TRANSFER: Final = (
    "Collectives were seen, but on too few ranks to tell transfer from waiting:<br>"
    "that takes the same one on every rank of its group. Profile all ranks at the same steps."
)
NO_SIZE: Final = (
    "Bandwidth is not known: the sizes of these collectives are not recorded.<br>"
    "Profiled windows with shapes (record_shapes), or NCCL's own metadata, tell them."
)


def cost_us(row: CollectiveBandwidth) -> float:
    """Return a rank's time in these collectives: matched instances times (median transfer + mean wait); 0 if unknown."""
    return 0.0 if row.transfer_us is None else row.matched * (row.transfer_us + (row.wait_us or 0.0))


def by_cost(rows: Sequence[CollectiveBandwidth], group: str | None) -> list[CollectiveBandwidth]:
    """Return the rows of process group ``group`` (``None``: all groups), costliest first; rows of unknown cost come last."""
    return sorted((row for row in rows if group in (None, row.group)), key=cost_us, reverse=True)


def name_of(row: CollectiveBandwidth) -> str:
    """Return operation, group and size: ``all_reduce · dp (8 ranks) · 4.0 MiB``."""
    ranks = "" if row.group_size is None else f" ({counted(row.group_size, 'rank')})"
    return f"{row.op} · {row.group}{ranks} · {'size not known' if row.bytes is None else bytes_in_words(row.bytes)}"


def wait_bars(rows: Sequence[CollectiveBandwidth], colors: Palette) -> go.Figure:
    """Draw a rank's time in each row's collectives, split into transfer and waiting for later ranks. ``rows`` are in order."""
    if not rows:
        return note(NO_COLLECTIVE, colors)
    shown = [row for row in rows if row.transfer_us is not None][:SHOWN]
    if not shown:
        return note(NO_TRANSFER, colors)
    size, unit = time_unit(max(map(cost_us, shown)))
    figure = go.Figure()
    for label, each, color, hatch in (
        ("Transfer", [row.transfer_us or 0.0 for row in shown], colors.exposed_communication, "x"),
        ("Waiting for later ranks", [row.wait_us or 0.0 for row in shown], colors.straggler_wait, "\\"),
    ):
        figure.add_bar(
            x=[row.matched * us / size for row, us in zip(shown, each, strict=True)],
            y=list(range(len(shown))),
            orientation="h",
            name=label,
            marker=hatched(color, hatch, colors),
            customdata=[f"{row.matched:,} x {duration(us)}" for row, us in zip(shown, each, strict=True)],
            hovertext=[name_of(row) for row in shown],
            hovertemplate=f"<b>%{{hovertext}}</b><br>{label}: %{{x:,.2f}} {unit}<br>%{{customdata}}<extra></extra>",
        )
    for at, row in enumerate(shown):
        waiting = "waiting not known" if row.wait_us is None else f"{_share(row):.0f}% waiting"
        _behind(figure, colors.text, at, cost_us(row) / size, f"{duration(cost_us(row))} · {waiting}")
    _rows(figure, shown, colors)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text=f"{unit} of a rank, over the profiled steps", range=[0, 1.6 * cost_us(shown[0]) / size])
    return figure


def bandwidth_bars(rows: Sequence[CollectiveBandwidth], colors: Palette) -> go.Figure:
    """Draw measured bus bandwidth with its 10th and 90th percentile, and a mark at the expected rate. ``rows`` are in order."""
    if not rows:
        return note(NO_COLLECTIVE, colors)
    shown = [row for row in rows if _measured(row) is not None][:SHOWN]
    if not shown:
        return note(NO_SIZE if any(row.transfer_us is not None for row in rows) else NO_TRANSFER, colors, height=110)
    figure = go.Figure()
    measured = [_measured(row) or 0.0 for row in shown]
    figure.add_bar(
        x=measured,
        y=list(range(len(shown))),
        orientation="h",
        name="Measured",
        marker=hatched(colors.compute, "", colors),
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [0 if row.bus_gb_s is None else (row.bus_p90_gb_s or row.bus_gb_s) - row.bus_gb_s for row in shown],
            "arrayminus": [0 if row.bus_gb_s is None else row.bus_gb_s - (row.bus_p10_gb_s or row.bus_gb_s) for row in shown],
            "color": colors.muted,
            "thickness": 1,
            "width": 4,
        },
        hovertext=[name_of(row) for row in shown],
        customdata=[against(row) for row in shown],
        hovertemplate="<b>%{hovertext}</b><br>bus bandwidth %{x:,.3~g} GB/s<br>%{customdata}<extra></extra>",
    )
    longest = max([*measured, *(row.expected_gb_s or 0.0 for row in shown), *(row.bus_p90_gb_s or 0.0 for row in shown)])
    for at, row in enumerate(shown):
        if row.expected_gb_s is not None:
            figure.add_shape(
                type="line", x0=row.expected_gb_s, x1=row.expected_gb_s, y0=at - 0.44, y1=at + 0.44,
                line={"color": colors.emphasis, "width": 3},
            )  # fmt: skip
        end = max(measured[at], row.expected_gb_s or 0.0, row.bus_p90_gb_s or 0.0)
        _behind(figure, colors.text if row.expected_gb_s is not None else colors.muted, at, end, against(row))
    _rows(figure, shown, colors)
    figure.update_xaxes(title_text="GB/s on the bus<br>the mark: what the link should give", range=[0, 1.9 * longest or 1])
    return figure


def against(row: CollectiveBandwidth) -> str:
    """Return measured versus expected bandwidth, with its caveats: ``38 of 50 GB/s · 76%``."""
    measured = "" if row.bus_gb_s is not None else "at least "
    shown = f"{measured}{_measured(row):,.3g}"
    if row.expected_gb_s is None:
        return f"{shown} GB/s · expected not known"
    share = "" if row.share is None else f" · {100 * row.share:.0f}%"
    latency = ", bound by latency" if row.bound_by == "latency" else ""
    return f"{shown} of {row.expected_gb_s:,.3g} GB/s{share}{latency}"


def _measured(row: CollectiveBandwidth) -> float | None:
    return row.bus_gb_s if row.bus_gb_s is not None else row.bus_at_least_gb_s


def _share(row: CollectiveBandwidth) -> float:
    whole = (row.transfer_us or 0.0) + (row.wait_us or 0.0)
    return 100 * (row.wait_us or 0.0) / whole if whole else 0.0


def _rows(figure: go.Figure, rows: Sequence[CollectiveBandwidth], colors: Palette) -> None:
    """Lay out one line per row. The name is above the bar: a narrow screen has no room beside it."""
    framed(figure, colors, height=70 + 48 * max(len(rows), 2))
    for at, row in enumerate(rows):
        figure.add_annotation(
            text=name_of(row), x=0, xref="paper", y=at - 0.46, showarrow=False, xanchor="left", yanchor="middle",
            font={"size": 12, "color": colors.muted},
        )  # fmt: skip
    figure.update_layout(bargap=0.52, showlegend=False)
    figure.update_yaxes(visible=False, range=[len(rows) - 0.6, -0.7], fixedrange=True)


def _behind(figure: go.Figure, color: str, row: int, at: float, text: str) -> None:
    figure.add_annotation(text=text, x=at, y=row, showarrow=False, xanchor="left", xshift=8, font={"size": 12, "color": color})
