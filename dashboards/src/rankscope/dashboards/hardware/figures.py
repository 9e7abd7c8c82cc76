"""Map of one gauge of all GPUs over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.charts.bars import frame_row
from rankscope.dashboards.charts.cells import Binned, bin_worst
from rankscope.dashboards.charts.frame import framed, note
from rankscope.dashboards.charts.heatmap import color_scale, coloring
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.hardware import Gpu
from rankscope.dashboards.data.metrics import Metric
from rankscope.dashboards.hardware.data import TimeColumns, Values
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import on_clock, shown_unit, zone_name

_ROOM_PX: Final = 24


def finish(
    figure: go.Figure, colors: Palette, *, title: str = "", steps: tuple[int, int] | None = None, simulated: bool = False
) -> None:
    """Put ``title`` above ``figure``, with SIMULATED for simulated readings. Its zoom is kept only for the same ``steps``."""
    figure.update_layout(uirevision=str(steps))
    words = [plotly_text(title), *(["<b>SIMULATED</b>"] if simulated else [])]
    text = " · ".join(word for word in words if word)
    if text:
        figure.update_layout(
            title={
                "text": text,
                "font": {"size": 12, "color": colors.text},
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"l": 8, "t": 4},
            },
            margin={"t": 8 + _ROOM_PX},
            height=figure.layout.height + _ROOM_PX,
        )


_TICKS: Final = 7


def time_axis(columns: TimeColumns, *, cells: bool = False) -> dict[str, Any]:
    """Return settings of an x axis on which column ``n`` begins at ``columns.at[n]``, or is centred there for ``cells``."""
    count = len(columns.at)
    marks = np.unique(np.linspace(0, count - 1, min(_TICKS, count)).astype(int))
    first, last = columns.span_unix_ns
    half = (columns.along(columns.edges_ns[-1:])[0] - columns.at[-1]) / 2 if cells else 0.0
    return {
        "tickmode": "array",
        "tickvals": columns.at[marks].tolist(),
        "ticktext": [_tick(columns, int(mark), long=last - first > 86_400e9) for mark in marks],
        "range": [float(columns.at[0]) - half, float(columns.along(columns.edges_ns[-1:])[0]) - half],
        "title": {"text": f"step, and the time of day ({zone_name()})" if columns.steps_each else f"time of day ({zone_name()})"},
        "showgrid": False,
        "zeroline": False,
    }


def _tick(columns: TimeColumns, mark: int, *, long: bool) -> str:
    at = on_clock(int(columns.edges_ns[mark]))
    clock = f"{at:%m-%d %H:%M}" if long else f"{at:%H:%M:%S}"
    return f"{columns.at[mark]:.0f}<br>{clock}" if columns.steps_each else clock


_LABELS: Final = 20
"""Approximate maximum number of labelled rows."""


def gpu_label(gpu: Gpu) -> str:
    """Return host and GPU number, or host and UUID for a GPU without a number and for a MIG device."""
    number = gpu.gpu_uuid if gpu.index is None or gpu.parent_uuid is not None else f"GPU {gpu.index}"
    return f"{gpu.host} · {number}"


@dataclass(frozen=True, slots=True)
class MapRows:
    """Rows of cells: one GPU each, or several consecutive GPUs if there are very many."""

    binned: Binned
    labels: list[str]

    @classmethod
    def of(cls, values: Values, gpus: Sequence[Gpu], metric: Metric) -> MapRows:
        """Bin ``values`` [GPUs, columns] into rows, and label them."""
        binned = bin_worst(values, worst=metric.worst)
        each = binned.rows_per_bin
        names = [plotly_text(gpu_label(gpu)) for gpu in gpus]
        return cls(binned, [_joined(names[first : first + each]) for first in range(0, len(names), each)])


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def gpu_map(
    rows: MapRows, columns: TimeColumns, colors: Palette, *, metric: Metric, why_unknown: str, picked: int | None = None
) -> go.Figure:
    """Draw a heat map of a gauge, with the worst value in each cell. ``picked``: index of the highlighted GPU before binning."""
    values = rows.binned.values
    finite = values[np.isfinite(values)]
    if not len(finite):
        return note(f"No {metric.label} is known in this time:<br>{why_unknown}.", colors)
    size, unit = shown_unit(metric.unit, float(finite.max()))
    lowest, highest = color_scale(finite / size, metric.worst)
    each = " to the next column" if columns.steps_each > 1 else ""
    which = f"{metric.worst} " if rows.binned.rows_per_bin > 1 or columns.steps_each > 1 else ""
    figure = go.Figure(
        go.Heatmap(
            z=(values / size).astype(np.float32),
            x=columns.at.astype(np.float32),
            y=rows.labels,
            zmin=lowest,
            zmax=highest,
            reversescale=metric.worst == "lowest",
            **coloring(unit, colors),
            hoverongaps=True,
            hovertemplate=f"<b>%{{y}}</b><br>{'step' if columns.steps_each else 'second'} %{{x}}{each}<br>"
            f"{which}{metric.label}: <b>%{{z:,.1f}} {unit}</b><extra></extra>",
        )
    )
    count = len(rows.labels)
    framed(figure, colors, height=min(560, max(200, 110 + 20 * count)))
    figure.update_layout(plot_bgcolor=colors.missing)
    figure.update_xaxes(**time_axis(columns, cells=True))
    figure.update_yaxes(**_rows_axis(rows.labels, picked, rows.binned.rows_per_bin))
    if picked is not None:
        frame_row(figure, picked // rows.binned.rows_per_bin, colors)
    return figure


def _rows_axis(labels: Sequence[str], picked: int | None, each: int) -> dict[str, Any]:
    every = max(1, -(-len(labels) // _LABELS))
    at = None if picked is None else picked // each
    shown = [row for row in range(0, len(labels), every) if at is None or abs(row - at) > every // 2]
    ticks = sorted({*shown, *([] if at is None else [at])})
    return {
        "type": "category",
        "tickmode": "array",
        "tickvals": [labels[row] for row in ticks],
        "ticktext": [f"<b>▸ {labels[row]}</b>" if row == at else labels[row] for row in ticks],
        "range": [len(labels) - 0.5, -0.5],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }
