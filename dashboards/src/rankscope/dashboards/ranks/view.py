"""View of one value per rank and step, for finding stragglers: map, numbers of one step, table of all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.dashboards.charts.cells import CellRows, LazyRows
from rankscope.dashboards.charts.heatmap import MapRows, StepCells, step_cells, step_heatmap
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.events import HardwareEvents
from rankscope.dashboards.data.hosts import (
    UNKNOWN_HOST,
    HostRows,
    blamed_hosts,
    blamed_ranks,
    host_rows,
    known_hosts,
    rows_by_host,
    several_hosts,
)
from rankscope.dashboards.data.metrics import METRICS, MetricLabel, choices, why_unknown
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import StepPart
from rankscope.dashboards.data.topology import row_order
from rankscope.dashboards.model.drawn import NO_DATA, DrawnFigure, FigureData
from rankscope.dashboards.model.line import Line, PageLink, Span
from rankscope.dashboards.model.page import Block, FigureBlock, Part, Rows, Section, Table, Text, choice, rank_choice, rows_choice
from rankscope.dashboards.model.picks import rank_of_row, steps_of_drag
from rankscope.dashboards.model.state import DEFAULT_METRIC, PageState, run_path
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.ranks.data import RankStep, RankValue, rank_step
from rankscope.dashboards.ranks.figures import events_within, mark_events
from rankscope.dashboards.ranks.tables import COLUMNS, HOST_COLUMNS, host_table, rank_table
from rankscope.dashboards.words.units import duration, shown_unit
from rankscope.dashboards.words.wording import count

_ANOTHER: Final = "Click another cell for another step."


def step_card(rank: int, step: int, values: RankStep | None, timeline: str) -> list[Block]:
    """Return a table of the rank's numbers and the median of the ranks. ``timeline``: address of the window's timeline."""
    if values is None:
        body: list[Block] = [Text(f"The run has no record of rank {rank} in step {step:,}.")]
    elif not values.values:
        body = [Text(f"Rank {rank} left no record of step {step:,}.")]
    else:
        body = [_numbers(values.values), _profiled(values, timeline)]
    help_text = "Each number beside the median of all ranks in this step."
    return [Section(name="step", title=f"Rank {rank} in step {step:,}", help=help_text, use=_ANOTHER, blocks=body)]


def _numbers(values: list[RankValue]) -> Block:
    columns = (("Metric", "head"), ("This rank", ""), ("Median of the ranks", ""), ("Difference", ""))
    rows: list[tuple[Line, ...]] = [
        (
            METRICS[value.metric].label,
            _value_text(value.metric, value.value),
            [_value_text(value.metric, value.median), Span(f" of {count(value.ranks, 'rank')}", "small")],
            _difference(value),
        )
        for value in values
    ]
    return Rows(columns, rows, "step-numbers")


def _value_text(metric: str, value: float) -> str:
    unit = METRICS[metric].unit
    if unit == "us":
        return duration(value) if value else "0 µs"
    size, name = shown_unit(unit, value)
    return f"{value / size:,.4g} {name}"


def _difference(value: RankValue) -> str:
    difference = value.value - value.median
    if difference == 0:
        return "none"
    sign, size = ("+" if difference > 0 else "-"), _value_text(value.metric, abs(difference))
    share = f" ({100 * difference / value.median:+,.0f} %)" if value.median and abs(difference / value.median) >= 0.005 else ""
    return f"{sign}{size}{share}"


def _profiled(values: RankStep, timeline: str) -> Block:
    if values.window is None:
        return Text("This step was not profiled: there is no timeline of it.", "help")
    return Text(PageLink(f"Timeline of the window from step {values.window:,}", timeline))


@dataclass(frozen=True, slots=True)
class _MetricPart:
    """Shown part of the chosen metric."""

    name: str
    metric: MetricLabel
    part: StepPart
    ranks: NDArray[np.int64]
    steps: NDArray[np.int64]
    """[columns of the part], the first step of each."""
    order: list[int] | None
    hosts: HostRows | None
    """Hosts that the rows are; ``None``: ranks."""
    host_of: dict[int, str]

    def rows(self) -> dict[str, Any]:
        """Return the rows of the heat map, as arguments of ``step_cells``."""
        if self.hosts is None:
            rows = MapRows("rank", hosts=self.host_of)
            return {"matrix": self.part.values, "ranks": self.ranks, "order": self.order, "rows": rows}
        values = self.part.values
        return {
            "matrix": self.hosts.reduce(values, self.metric.worst) if values.size else values,
            "ranks": np.arange(len(self.hosts.names)),
            "rows": MapRows("host", names=self.hosts.names, labels=self.hosts.labels),
        }

    def cells(self) -> StepCells:
        return step_cells(**self.rows(), steps=self.steps, worst=self.metric.worst, steps_per_column=self.part.steps_per_column)

    def ranks_of(self, items: Sequence[int]) -> list[int]:
        """Return the ranks of items of the map's rows."""
        if self.hosts is None:
            return list(items)
        return [int(self.ranks[row]) for item in items for row in self.hosts.members[item]]


def _metric_part(run: RunData, state: PageState) -> _MetricPart:
    name = state.metric if state.metric in METRICS else DEFAULT_METRIC
    table = run.steps
    steps = np.asarray(table.steps)
    first, last = (0, len(steps)) if state.steps is None else np.searchsorted(steps, (state.steps[0], state.steps[1] + 1))
    part = table.part(name, int(first), int(last))
    columns = steps[part.first :: part.steps_per_column][: part.values.shape[1]]
    order, host_of = _order(run, state.sort), known_hosts(run.analysis)
    ranks, hosts = [int(rank) for rank in table.ranks], None
    if rows_by_host(run.analysis, state.rows):
        opened = ranks.index(state.rank) if state.rank in ranks else None
        names = [f"rank {rank}" for rank in ranks]
        hosts = host_rows([host_of.get(rank, UNKNOWN_HOST) for rank in ranks], names, order, opened=opened)
    return _MetricPart(name, METRICS[name], part, np.asarray(table.ranks), columns, order, hosts, host_of)


def _heatmap(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    shown = _metric_part(run, state)
    metric, per_column = shown.metric, shown.part.steps_per_column
    blamed, picked = blamed_ranks(run.analysis.verdict), state.rank
    if shown.hosts is not None:
        at_fault = blamed_hosts(run.analysis)
        blamed = [at for at, host in enumerate(shown.hosts.names) if host in at_fault]
        ranks = shown.ranks.tolist()
        picked = shown.hosts.place(ranks.index(picked)) if picked in ranks else None
    picture = step_heatmap(
        **shown.rows(),
        steps=shown.steps,
        colors=colors,
        label=metric.label,
        unit=metric.unit,
        worst=metric.worst,
        why_unknown=why_unknown(shown.name),
        steps_per_column=per_column,
        blamed=blamed,
        picked=picked,
    )
    steps = min(shown.part.values.shape[1] * per_column, len(run.steps.steps))
    on = "" if shown.hosts is None else f" on {count(several_hosts(run.analysis), 'host')}"
    sentence = f"{metric.label} of {count(len(shown.ranks), 'rank')}{on} in {count(steps, 'step')}"
    if picture.data:
        across = (int(shown.steps[0]), min(int(shown.steps[-1]) + per_column - 1, int(run.steps.steps[-1])))
        mark_events(picture, run.events.events, colors, steps=across)
        sentence += _happened(run.events, across)
    # The address alone sets the zoom: the axis range that the browser remembers belongs to other steps.
    picture.update_layout(uirevision=str(state.steps))
    table = _table(shown) if picture.data else NO_DATA
    return DrawnFigure(picture, table, sentence)


def _table(shown: _MetricPart) -> FigureData:
    """Return the shown cells as a table, in the metric's own unit."""

    def rows() -> CellRows:
        cells = shown.cells()
        names = {} if shown.hosts is None else dict(enumerate(shown.hosts.names))
        ranks = [(", ".join(names.get(item, str(item)) for item in cells.rows.of(row)),) for row in range(len(cells.values))]
        steps = [(int(step), cells.steps_per_cell) for step in cells.at]
        return CellRows(ranks, steps, cells.values)

    value_name = f"{shown.metric.label}, {shown.metric.worst} [{shown.metric.unit}]"
    return FigureData(("ranks" if shown.hosts is None else "hosts", "first step", "steps", value_name), LazyRows(rows))


def _happened(events: HardwareEvents, steps: tuple[int, int]) -> str:
    """Return the number of GPU events in these steps by kind, and the number of events that the run leaves out."""
    counts = Counter(event.kind for event in events_within(events.events, steps))
    kinds = ", ".join(f"{count:,} x {kind}" for kind, count in counts.most_common())
    more = f" ({events.left_out:,} more in this run are left out)" if events.left_out else ""
    return f"; marked above: {kinds}{more}" if kinds else ""


def _order(run: RunData, sort: str) -> list[int] | None:
    """Return the rows of the step matrices in display order; ``None`` for the order of ranks."""
    topology = run.topology
    # A live run may have got new ranks between the reads of topology and steps.
    same = [place.rank for place in topology.places] == list(run.steps.ranks)
    is_sorted = sort != "rank" and sort in topology.sorts
    return row_order(topology, run.analysis.imposed_wait, sort) if is_sorted and same else None


def _pick(run: RunData, state: PageState, point: Mapping[str, Any]) -> PageState:
    """Select rank and step of a cell; if it covers several, those whose value it shows. An event's mark has its own."""
    if "customdata" in point:
        rank = point["customdata"]  # a GPU may have no known rank
        return replace(state, rank=None if rank is None else int(rank), step=int(point["x"]))
    shown = _metric_part(run, state)
    cells = shown.cells()
    ranks = shown.ranks_of(cells.rows.of(cells.rows.row(point["y"])))
    begin = int(point["x"])
    table = run.steps
    rows, steps = np.flatnonzero(np.isin(shown.ranks, ranks)), np.asarray(table.steps)
    first, last = np.searchsorted(steps, (begin, begin + cells.steps_per_cell))
    if not len(rows) or first == last:  # a hole: ranks or steps without a record
        return replace(state, rank=ranks[0], step=begin)
    values = table.part(shown.name, int(first), int(last)).values[rows]
    if not np.isfinite(values).any():
        return replace(state, rank=int(shown.ranks[rows[0]]), step=int(steps[first]))
    at = np.nanargmin(values) if shown.metric.worst == "lowest" else np.nanargmax(values)
    row, column = np.unravel_index(at, values.shape)
    return replace(state, rank=int(shown.ranks[rows[row]]), step=int(steps[first + column]))


def _step(run: RunData, state: PageState) -> list[Block]:
    if state.rank is None or state.step is None:
        return []
    values = rank_step(run.steps, state.rank, state.step)
    window = replace(state, window=None if values is None else values.window)
    return step_card(state.rank, state.step, values, run_path(run.summary.run_id, "timeline") + window.search)


_SORTS: Final = {"rank": "Rank", "host": "Host", "imposed": "Wait imposed on others"}


def _sorts(run: RunData) -> list[dict[str, Any]]:
    """Return the choices of row order. Dimensions of the parallel layout keep their own names."""
    return [{"value": sort, "label": _SORTS.get(sort, sort)} for sort in run.topology.sorts]


def _blocks(run: RunData, state: PageState) -> list[Block]:
    several = several_hosts(run.analysis)
    by_host = rows_by_host(run.analysis, state.rows)
    return [
        Section(
            name="steps",
            title="Every rank, every step",
            help="A slow rank is a line, a slow moment a column. Own time is wall time minus time blocked on other ranks. Grey: "
            "no record. Marks above the map: GPU events.",
            use="Click a cell for its numbers; drag over steps to zoom, double-click to see all again.",
            blocks=[
                FigureBlock(
                    name="step-heatmap",
                    reads=("rank", "metric", "steps", "sort", "rows"),
                    label="Heat map of the chosen metric by rank and step; the table below has the medians",
                    draw=partial(_heatmap, run, state),
                    pick=partial(_pick, run, state),
                    zoom=partial(steps_of_drag, state),
                )
            ],
            tools=[
                choice("metric", "Metric", choices(run.steps.metrics), state),
                *rows_choice(hosts=several, by_host=by_host),
                choice("sort", "Rows by", _sorts(run), state),
                rank_choice(state),
            ],
        ),
        Part("step-card", lambda: _step(run, state)),
        Section(
            name="table",
            title="All ranks",
            help="All times are per step. Own, blocked and wall are medians, so own and blocked need not add up to wall. "
            "The others are means over the profiled steps. A dash means not known."
            + (" A row of a host has medians over its ranks." if several else ""),
            use="A click on a host picks its worst rank." if by_host else "",
            blocks=[
                Table(
                    name="rank-table",
                    reads=("rows",),
                    columns=HOST_COLUMNS if by_host else COLUMNS,
                    rows=lambda: host_table(run.analysis) if by_host else rank_table(run.analysis),
                    file_name=f"rankscope-{run.summary.run_id}",
                    pick=partial(rank_of_row, state),
                )
            ],
        ),
    ]


VIEW: Final = View(
    slug="ranks",
    label="Ranks × steps",
    help=Help(
        shows="One value per rank and step, and every number of every rank.",
        formula="Own time = wall time of a step − time blocked on other ranks. Collectives make wall times equal; "
        "own times differ by rank. Where several ranks or steps share a cell, the worst of them is shown: "
        "the highest, of ratios and clocks the lowest. A row of a host shows the worst of its ranks in each step; "
        "below the host of the picked rank are its ranks.",
        do="Look for lines (a slow rank), columns (a slow moment) and blocks (a slow host, whose row opens into its ranks).",
    ),
    blocks=_blocks,
)
