"""Map of one gauge of all GPUs over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.charts.cells import bin_worst
from rankscope.dashboards.charts.frame import note
from rankscope.dashboards.charts.heatmap import MapRows, heat_map
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.hardware import SampledGpu
from rankscope.dashboards.data.hosts import host_rows
from rankscope.dashboards.data.metrics import MetricLabel, Worst
from rankscope.dashboards.hardware.data import TimeColumns, Values
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import on_clock, zone_name

_ROOM_PX: Final = 24


def title_figure(
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


def gpu_label(gpu: SampledGpu) -> str:
    """Return host and ``gpu_number``."""
    return f"{gpu.host} · {gpu_number(gpu)}"


def gpu_number(gpu: SampledGpu) -> str:
    """Return the GPU's number on its host, or the UUID of a GPU without a number and of a MIG device."""
    return gpu.gpu_uuid if gpu.index is None or gpu.parent_uuid is not None else f"GPU {gpu.index}"


@dataclass(frozen=True, slots=True)
class GpuCells:
    """Cells of a map of GPUs or hosts over time, the worst value in each."""

    values: Values
    rows: MapRows
    members: list[list[int]]
    """GPUs of each row, by their place among all of them."""


def gpu_cells(
    values: Values, gpus: Sequence[SampledGpu], worst: Worst, *, by_host: bool = False, opened: int | None = None
) -> GpuCells:
    """Return the cells of ``values`` [GPUs, columns]. ``by_host``: one row per host; that of the GPU ``opened`` has its GPUs."""
    if by_host:
        hosts = host_rows([gpu.host for gpu in gpus], [gpu_number(gpu) for gpu in gpus], opened=opened)
        binned = bin_worst(hosts.reduce(values, worst), worst=worst)
        rows, members = MapRows("host", names=hosts.names, labels=hosts.labels), hosts.members
    else:
        binned = bin_worst(values, worst=worst)
        rows, members = MapRows("GPU", names=[gpu_label(gpu) for gpu in gpus]), [[at] for at in range(len(gpus))]
    rows = replace(rows, items=range(len(members)), per_row=binned.rows_per_bin)
    return GpuCells(binned.values, rows, [[gpu for item in rows.of(row) for gpu in members[item]] for row in range(len(rows))])


def gpu_map(
    cells: GpuCells, columns: TimeColumns, colors: Palette, *, metric: MetricLabel, why_unknown: str, picked: int | None = None
) -> go.Figure:
    """Draw a heat map of a gauge. ``picked``: the highlighted GPU."""
    if not np.isfinite(cells.values).any():
        return note(f"No {metric.label} is known in this time:<br>{why_unknown}.", colors)
    several = columns.steps_each > 1 or max(map(len, cells.members)) > 1
    rows = [at for at, members in enumerate(cells.members) if picked in members]
    figure = heat_map(
        cells.values,
        columns.at.astype(np.float32),
        cells.rows,
        colors,
        label=f"{metric.worst} {metric.label}" if several else metric.label,
        unit=metric.unit,
        column=f"{'step' if columns.steps_each else 'second'} %{{x}}{' to the next column' if columns.steps_each > 1 else ''}",
        worst=metric.worst,
        picked=cells.rows.of(rows[-1])[0] if rows else None,
    )
    figure.update_xaxes(**time_axis(columns, cells=True))
    return figure
