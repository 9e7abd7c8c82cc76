"""View of the GPUs of a run's hosts: temperature, power, clocks and events over the steps of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from rankscope.analysis.evidence.hardware import bare_uuid
from rankscope.base.errors import RankscopeError
from rankscope.base.text import sentence_case
from rankscope.dashboards.charts.cells import CellRows, bin_worst
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.events import HardwareEvent
from rankscope.dashboards.data.hardware import Hardware, SampledGpu
from rankscope.dashboards.data.hosts import rows_by_host
from rankscope.dashboards.data.metrics import METRICS, MetricLabel, of_origin, why_unknown
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import GOING_ON
from rankscope.dashboards.hardware.data import TimeColumns, source_of, statistics_of, time_columns, worst_in
from rankscope.dashboards.hardware.figures import GpuCells, gpu_cells, gpu_label, gpu_map, title_figure
from rankscope.dashboards.hardware.hints import gpu_hints
from rankscope.dashboards.hardware.lines import GAUGES, NAMES, OwnTime, gpu_lines
from rankscope.dashboards.hardware.table import COLUMNS, gpu_rows
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData, cell
from rankscope.dashboards.model.page import Block, FigureBlock, Part, RedrawMark, Section, Table, choice, rank_choice, rows_choice
from rankscope.dashboards.model.picks import steps_of_drag
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import Help, View

_FOUND_NONE: Final = "no samples of its GPUs"


@dataclass(frozen=True, slots=True)
class _HardwareInput:
    """Common input of all figures and tables of the view."""

    hardware: Hardware
    columns: TimeColumns

    @property
    def simulated(self) -> str:
        """Suffix of a sentence: `` (SIMULATED)`` for simulated GPUs, else ``""``."""
        return " (SIMULATED)" if self.is_simulated else ""

    @property
    def is_simulated(self) -> bool:
        """True if readings of any shown GPU are simulated."""
        return any(gpu.simulated for gpu in self.hardware.gpus)


def _figure_input(run: RunData, state: PageState) -> _HardwareInput:
    if not run.hardware.gpus:
        raise RankscopeError(f"This run has no GPU readings: {run.hardware.index.why_none or _FOUND_NONE}")
    return _HardwareInput(run.hardware, time_columns(run.hardware, state.steps))


def _gauge(state: PageState) -> tuple[str, MetricLabel]:
    name = state.gauge if state.gauge in of_origin("samples") else PageState().gauge
    return name, METRICS[name]


def _chosen(state: PageState, hardware: Hardware) -> SampledGpu | None:
    """Return the GPU in the address; ``None`` if there is none. A rank on another GPU was picked later, so its GPU wins."""
    picked_gpu = next(
        (gpu for gpu in hardware.gpus if state.gpu is not None and bare_uuid(gpu.gpu_uuid) == bare_uuid(state.gpu)), None
    )
    if state.rank is None or (picked_gpu is not None and state.rank in picked_gpu.ranks):
        return picked_gpu
    return next((gpu for gpu in hardware.gpus if state.rank in gpu.ranks), None)


def _picked(run: RunData, state: PageState, hardware: Hardware) -> SampledGpu:
    """Return the chosen GPU, else the blamed rank's, else the first with an event, else the first.

    Raises ``RankscopeError`` if the chosen GPU has no samples.
    """
    if (chosen := _chosen(state, hardware)) is not None:
        return chosen
    if state.gpu is not None or state.rank is not None:
        gpu_text = f"GPU {state.gpu}" if state.rank is None else f"the GPU of rank {state.rank}"
        raise RankscopeError(f"There are no samples of {gpu_text}. Pick one in the table.")
    blamed = run.analysis.verdict.rank
    hit = {event.gpu_uuid for event in run.events.events}
    choices = (
        next((gpu for gpu in hardware.gpus if blamed in gpu.ranks), None),
        next((gpu for gpu in hardware.gpus if gpu.gpu_uuid in hit), None),
    )
    return next((gpu for gpu in choices if gpu is not None), hardware.gpus[0])


def _cells(run: RunData, state: PageState, shown: _HardwareInput) -> GpuCells:
    name, metric = _gauge(state)
    gpus, chosen = shown.hardware.gpus, _chosen(state, shown.hardware)
    values = worst_in(shown.hardware, name, shown.columns)
    opened = None if chosen is None else gpus.index(chosen)
    return gpu_cells(values, gpus, metric.worst, by_host=_by_host(run, state), opened=opened)


def _several_hosts(run: RunData) -> int:
    """Return the number of hosts; 0 if their rows would say no more than those of GPUs."""
    gpus = run.hardware.gpus
    hosts = len({gpu.host for gpu in gpus})
    return hosts if 1 < hosts < len(gpus) else 0


def _by_host(run: RunData, state: PageState) -> bool:
    return _several_hosts(run) > 0 and rows_by_host(run.analysis, state.rows)


def _map(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    shown, (name, metric) = _figure_input(run, state), _gauge(state)
    gpus, columns, cells = shown.hardware.gpus, shown.columns, _cells(run, state, shown)
    chosen = _chosen(state, shown.hardware)
    picked = None if chosen is None else gpus.index(chosen)
    picture = gpu_map(cells, columns, colors, metric=metric, why_unknown=why_unknown(name), picked=picked)
    title_figure(picture, colors, steps=state.steps, simulated=shown.is_simulated)
    x = "first step" if columns.steps_each else "time since first sample [s]"
    table = FigureData(
        (cells.rows.row_kind, x, "begin [unix ns]", f"{metric.label}, {metric.worst} [{metric.unit}]"),
        CellRows(
            [(text,) for text in _row_names(cells)],
            list(zip(columns.at.tolist(), columns.edges_ns[:-1].tolist(), strict=True)),
            cells.values,
        ),
    )
    hosts = len({gpu.host for gpu in gpus})
    return DrawnFigure(
        picture, table, f"{metric.label} of {len(gpus):,} GPUs on {hosts:,} hosts{shown.simulated}; {_worst(cells, metric)}"
    )


def _row_names(cells: GpuCells) -> list[str]:
    names = cells.rows.names or ()
    return [", ".join(names[item] for item in cells.rows.of(row)) for row in range(len(cells.rows))]


def _worst(cells: GpuCells, metric: MetricLabel) -> str:
    if not np.isfinite(cells.values).any():
        return "not known"
    at = np.nanargmin(cells.values) if metric.worst == "lowest" else np.nanargmax(cells.values)
    row = int(np.unravel_index(at, cells.values.shape)[0])
    return f"the {metric.worst} is on {_row_names(cells)[row]}"


def _lines(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    shown = _figure_input(run, state)
    gpu, columns = _picked(run, state, shown.hardware), shown.columns
    first, last = columns.span_unix_ns
    source = source_of(shown.hardware, gpu, "temperature_celsius")
    series = shown.hardware.series(source.gpu_uuid, since_unix_ns=first, until_unix_ns=last)
    if source is not gpu:
        own = shown.hardware.series(gpu.gpu_uuid, since_unix_ns=first, until_unix_ns=last)
        if len(own.unix_ns) == len(series.unix_ns) and (own.unix_ns == series.unix_ns).all():
            own_values = {gauge: own.values[gauge] for gauge in gpu.gauges}
            series = replace(series, values={**series.values, **own_values})
    uuids = {gpu.gpu_uuid, source.gpu_uuid}
    events = [event for event in run.events.events if event.gpu_uuid in uuids and _overlaps(event, first, last)]
    picture = gpu_lines(series, events, _own_time(run, gpu, columns), columns, colors)
    title_figure(picture, colors, title=_whose(gpu), steps=state.steps, simulated=shown.is_simulated)
    table = FigureData(
        ("time [unix ns]", "step", *(f"{NAMES[gauge]} [{METRICS[gauge].unit}]" for gauge in GAUGES)),
        [
            (int(at), math.floor(step) if columns.steps_each else None, *(cell(series.values[gauge][row]) for gauge in GAUGES))
            for row, (at, step) in enumerate(zip(series.unix_ns, columns.along(series.unix_ns), strict=True))
        ],
    )
    shared = f"; heat, power and clock are those of the whole GPU {source.gpu_uuid}" if source is not gpu else ""
    happened = f"{len(events):,} events" if len(events) != 1 else "1 event"
    return DrawnFigure(picture, table, f"{_whose(gpu)}{shared}{shown.simulated}: {len(series.unix_ns):,} points, {happened}")


def _whose(gpu: SampledGpu) -> str:
    ranks = ", ".join(map(str, gpu.ranks))
    return f"{gpu_label(gpu)}, {f'rank {ranks}' if ranks else 'no rank of the run'}"


def _overlaps(event: HardwareEvent, first: int, last: int) -> bool:
    return event.unix_ns <= last and event.until_unix_ns >= first


def _own_time(run: RunData, gpu: SampledGpu, columns: TimeColumns) -> OwnTime | None:
    """Return the own time of the first rank on the GPU, the worst of each bin of steps; ``None`` if it is unknown."""
    table = run.steps
    numbers, ranks = np.asarray(table.steps), np.asarray(table.ranks)
    if not gpu.ranks or gpu.ranks[0] not in ranks or not columns.steps_each:
        return None
    low, high = np.searchsorted(numbers, (columns.at[0], columns.at[-1] + columns.steps_each))
    part = table.part("own_us", int(low), int(high))
    row = int(np.searchsorted(ranks, gpu.ranks[0]))
    binned = bin_worst(part.values[row : row + 1])
    at = numbers[part.first :: part.steps_per_column * binned.columns_per_bin][: binned.values.shape[1]]
    return OwnTime(gpu.ranks[0], at, binned.values[0])


def _rows(run: RunData, state: PageState) -> list[dict[str, Any]]:
    try:
        shown = _figure_input(run, state)
    except RankscopeError:
        return []  # a note above the table shows the error
    gpus, statistics = shown.hardware.gpus, statistics_of(shown.hardware, shown.columns)
    of = {(gpu.host, bare_uuid(gpu.gpu_uuid)): row for gpu, row in zip(gpus, statistics, strict=True)}
    parents = ((gpu, of.get((gpu.host, bare_uuid(gpu.parent_uuid)))) for gpu in gpus if gpu.parent_uuid is not None)
    return gpu_rows(gpus, statistics, {gpu.gpu_uuid: of_parent for gpu, of_parent in parents if of_parent is not None})


def _with_gpu(state: PageState, gpu: SampledGpu) -> PageState:
    return replace(state, gpu=gpu.gpu_uuid, rank=gpu.ranks[0] if gpu.ranks else None)


def _pick_row(run: RunData, state: PageState, row: str) -> PageState:
    return _with_gpu(state, next(gpu for gpu in run.hardware.gpus if gpu.gpu_uuid == row))


def _pick_cell(run: RunData, state: PageState, point: Mapping[str, Any]) -> PageState:
    """Select the GPU of a cell; if its row covers several GPUs, the one whose value is shown."""
    shown, (name, metric) = _figure_input(run, state), _gauge(state)
    cells = _cells(run, state, shown)
    members = cells.members[cells.rows.row(point["y"])]
    column = int(np.argmin(np.abs(shown.columns.at - float(point["x"]))))
    values = worst_in(shown.hardware, name, shown.columns)[members, column]
    place = 0
    if np.isfinite(values).any():
        place = int(np.nanargmin(values) if metric.worst == "lowest" else np.nanargmax(values))
    return _with_gpu(state, shown.hardware.gpus[members[place]])


def _blocks(run: RunData, state: PageState) -> list[Block]:
    hints = Part("gpu-hints", lambda: gpu_hints(run.hardware, run.events, state.steps))
    if not run.hardware.gpus:
        return [hints, *([RedrawMark("hardware")] if run.summary.status in GOING_ON else [])]
    gauges = {gauge for gpu in run.hardware.gpus for gauge in gpu.gauges}
    steps = partial(steps_of_drag, state)
    return [
        hints,
        Section(
            name="gpus",
            title="Every GPU over time",
            help="A hot or slow GPU is a line, an event on all GPUs a column, a host with bad cooling a block. Grey: no sample.",
            use="Click a row to see its GPU below; drag over steps to zoom, double-click to see all again.",
            blocks=[
                FigureBlock(
                    name="gpu-map",
                    reads=("gauge", "steps", "rank", "gpu", "rows"),
                    label="Heat map of the chosen gauge by GPU and step; the table below has the medians",
                    draw=partial(_map, run, state),
                    height=320,
                    pick=partial(_pick_cell, run, state),
                    zoom=steps,
                )
            ],
            tools=[
                choice("gauge", "Gauge", _gauges(gauges), state),
                *rows_choice(hosts=_several_hosts(run), by_host=_by_host(run, state)),
                rank_choice(state),
            ],
        ),
        Section(
            name="gpu",
            title="One GPU, and the own time of its rank",
            help="Shaded: its clock was reduced; the lines at the top name the reason. If own time rises where the clock drops, "
            "the clock is a cause; if own time rises alone, the GPU is not.",
            blocks=[
                FigureBlock(
                    name="gpu-lines",
                    reads=("steps", "rank", "gpu"),
                    label="Temperature, power, SM clock and use of the picked GPU, own time of its rank below",
                    draw=partial(_lines, run, state),
                    height=480,
                    zoom=steps,
                )
            ],
        ),
        Section(
            name="gpu-table",
            title="All GPUs",
            help="Medians and extremes are of the steps shown; throttling, errors and links of the whole run. A dash means not "
            "known.",
            use="Click a row to pick its GPU.",
            blocks=[
                Table(
                    name="gpu-table",
                    reads=("steps",),
                    columns=COLUMNS,
                    rows=lambda: _rows(run, state),
                    file_name=f"rankscope-{run.summary.run_id}-gpus",
                    pick=partial(_pick_row, run, state),
                )
            ],
        ),
    ]


def _gauges(gauges: Iterable[str]) -> list[dict[str, Any]]:
    available = set(gauges)
    return [
        {
            "value": name,
            "label": sentence_case(METRICS[name].label) + ("" if name in available else " (not known)"),
            "disabled": name not in available,
        }
        for name in of_origin("samples")
    ]


VIEW: Final = View(
    slug="hardware",
    label="Hardware",
    help=Help(
        shows="What the GPUs of the run's hosts did while it trained: heat, power, clocks, use, throttling, errors and links.",
        formula="Samples of each host's exporter, put on the steps by the clock of one host: a sample stands until the next one, "
        "but not longer than three times their usual distance. Where several share a cell, the worst counts: the highest, "
        "of clocks, use and headroom the lowest.",
        do="Look for a GPU that is hotter or slower than its neighbours, pick it, and see whether own time rises where its clock "
        "drops.",
    ),
    blocks=_blocks,
)
