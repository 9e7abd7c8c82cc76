"""Heat maps: of one value per rank (or host) and step, of waits between ranks, of a gauge per GPU and time.

A row is a rank, a host or a GPU, or several of them where there are very many. The rows are named by the host, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.analysis.result.text import first_of
from rankscope.base.text import ranges_text
from rankscope.dashboards.charts.bar_names import LONGEST_LABEL
from rankscope.dashboards.charts.bars import frame_row
from rankscope.dashboards.charts.cells import bin_worst
from rankscope.dashboards.charts.frame import framed, marked_label, note, steps_axis
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.metrics import Worst
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import shown_unit

TOOLS_PX: Final = 32
"""Pixels above a map for Plotly's tool bar, which would cover the unit of the colour bar."""
CLIP_PERCENTILE: Final = 99.5
"""Percentile at which the colour scale ends, so that one checkpoint step does not flatten all others. Hover shows true values."""

NO_STEP: Final = "No step has been recorded yet.<br>The map fills as soon as ranks finish their first training steps."

_WIDEST_SPAN: Final = 4096
_NAMED: Final = 6
"""Maximum number of ranks, hosts or GPUs named per row of cells."""
_NAMED_HOSTS: Final = 2
"""Maximum number of hosts named per row of ranks."""
_LABELS: Final = 16
"""Approximate maximum number of labelled rows."""
_FRAMED_UP_TO: Final = 64
"""With more rows a frame would hide the row it marks; then only the axis label marks it."""


@dataclass(frozen=True, slots=True)
class MapRows:
    """Rows of a heat map from the top, each of ``per_row`` consecutive ``items``: ranks, or what ``names`` names."""

    row_kind: str
    """Title of the axis, such as ``rank``."""
    items: Sequence[int] = ()
    """Numbers of the items in display order."""
    per_row: int = 1
    names: Sequence[str] | None = None
    """Names of the items by number; ``None``: they are ranks."""
    labels: Sequence[str] | None = None
    """Names at the axis, where these are shorter."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Hosts of ranks, as far as known."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return (len(self.items) + self.per_row - 1) // self.per_row

    def of(self, row: int) -> list[int]:
        """Return the items of a row."""
        return list(self.items[row * self.per_row : (row + 1) * self.per_row])

    def row(self, position: object) -> int:
        """Return the row at an axis position, as a click event reports it. Raises ``ValueError`` if there is none."""
        return self.positions().index(str(position))

    def positions(self) -> list[str]:
        """Return the axis position of each row: its items in words, with hosts, as Plotly's hover text shows them."""
        texts = [self.text(self.of(row)) for row in range(len(self))]
        # Names that were cut may be equal, and Plotly draws equal categories over each other.
        return texts if len(set(texts)) == len(texts) else [f"{text} (row {row + 1})" for row, text in enumerate(texts)]

    def text(self, items: Sequence[int]) -> str:
        """Return items in words, which Plotly reads as HTML: ``ranks 4 to 7 on node-1``."""
        if self.names is not None:
            return first_of([plotly_text(self.names[item]) for item in items], _NAMED)
        ranks = f"rank{'s' if len(items) > 1 else ''} {ranges_text(items, most=_NAMED)}"
        hosts = list(dict.fromkeys(plotly_text(self.hosts[item]) for item in items if item in self.hosts))
        return f"{ranks} on {first_of(hosts, _NAMED_HOSTS)}" if hosts else ranks

    def label(self, items: Sequence[int]) -> str:
        """Return the label of items at the axis."""
        names = self.labels or self.names
        if names is None:
            return ranges_text(items, most=2)
        return first_of([plotly_text(names[item], LONGEST_LABEL) for item in items], 1)


RANKS: Final = MapRows("rank")


def heat_map(
    values: NDArray[np.floating[Any]],
    x: Sequence[Any] | NDArray[Any],
    rows: MapRows,
    colors: Palette,
    *,
    label: str,
    unit: str,
    column: str,
    worst: Worst = "highest",
    blamed: Collection[int] = (),
    picked: int | None = None,
) -> go.Figure:
    """Draw ``values`` [rows, columns], some of which are finite, as a heat map; NaN stays a visible hole.

    ``unit`` is one of ``data.metrics``, converted to the unit that reads best. ``column``: hover text of a column, a template of
    Plotly. ``blamed`` and ``picked`` are items of ``rows``.
    """
    size, in_unit = shown_unit(unit, float(np.nanmax(values)))
    shown = (values / np.float32(size)).astype(np.float32)
    lowest, highest = _color_scale(shown[np.isfinite(shown)], worst)
    positions = rows.positions()
    figure = go.Figure(
        go.Heatmap(
            z=shown,
            x=x,
            y=positions,
            zmin=lowest,
            zmax=highest,
            reversescale=worst == "lowest",  # bad values have the same colours in every metric
            colorscale=[[index / (len(colors.sequential) - 1), color] for index, color in enumerate(colors.sequential)],
            colorbar={
                "title": {"text": in_unit, "side": "top", "font": {"size": 12, "color": colors.muted}},
                "tickfont": {"color": colors.muted, "size": 11},
                "thickness": 10,
                "outlinewidth": 0,
                "len": 1,
                "xpad": 6,
            },
            hoverongaps=True,
            hovertemplate=f"<b>%{{y}}</b><br>{column}<br>{label}: <b>%{{z:,.2f}} {in_unit}</b><extra></extra>",
        )
    )
    framed(figure, colors, height=min(540, max(240, 114 + 26 * len(rows))))
    figure.update_layout(plot_bgcolor=colors.missing, margin_t=TOOLS_PX)
    figure.update_xaxes(showgrid=False, zeroline=False)
    _rows_axis(figure, positions, rows, colors, blamed=blamed, picked=picked)
    return figure


def step_heatmap(
    matrix: NDArray[np.floating[Any]],
    ranks: Sequence[int] | NDArray[np.int64],
    steps: Sequence[int] | NDArray[np.int64],
    colors: Palette,
    *,
    label: str,
    unit: str,
    worst: Worst = "highest",
    why_unknown: str = "the recorder had no signal for it",
    order: Sequence[int] | None = None,
    steps_per_column: int = 1,
    rows: MapRows = RANKS,
    blamed: Collection[int] = (),
    picked: int | None = None,
) -> go.Figure:
    """Draw ``matrix`` [ranks, steps] as a heat map: a slow rank is a row and a slow moment a column.

    ``steps``: the first step of each column; a column covers ``steps_per_column`` recorded steps. ``order``: matrix rows in
    display order, from the top; by default the map is in order of ranks. With an ``order``, ranks without a row come last.
    ``rows``: how the rows are named. If they are hosts, ``ranks``, ``blamed`` and ``picked`` are positions in its names.

    Large matrices are binned (``bin_worst``) and sent as float32. A page of any run stays under a megabyte, and hover text still
    shows values.
    """
    if matrix.size == 0:
        return note(NO_STEP, colors)
    if not np.isfinite(matrix).any():
        return note(
            f"{label[:1].upper()}{label[1:]} is not known for any of these steps:<br>{why_unknown}.<br>Choose another metric.",
            colors,
        )
    if _too_sparse(np.asarray(ranks)) or _too_sparse(np.asarray(steps)):
        return note("The numbers of ranks or steps have gaps too wide to draw:<br>the run's files look damaged.", colors)
    cells = step_cells(matrix, ranks, steps, worst=worst, order=order, steps_per_column=steps_per_column, rows=rows)
    wide, columns = cells.steps_per_cell, len(cells.at)
    figure = heat_map(
        cells.values,
        cells.at,
        cells.rows,
        colors,
        label=f"{worst} {label}" if cells.rows.per_row * wide > 1 else label,
        unit=unit,
        column="step %{x}" + (f" and the {wide - 1} after it" if wide > 1 else ""),
        worst=worst,
        blamed=blamed,
        picked=picked,
    )
    # Without this, marks above the map would widen its axis.
    ends = [float(cells.at[0]) - wide / 2, float(cells.at[-1]) + wide / 2]
    steps_axis(figure, columns * wide, range=ends)
    return figure


@dataclass(frozen=True, slots=True)
class StepCells:
    """Cells of a map of steps: each is the worst value of a block of ranks and steps."""

    values: NDArray[np.float32]
    """[rows, columns]; NaN is unknown."""
    rows: MapRows
    at: NDArray[np.integer[Any]]
    """[columns], the first step of each column."""
    steps_per_cell: int


def step_cells(
    matrix: NDArray[np.floating[Any]],
    ranks: Sequence[int] | NDArray[np.int64],
    steps: Sequence[int] | NDArray[np.int64],
    *,
    worst: Worst = "highest",
    order: Sequence[int] | None = None,
    steps_per_column: int = 1,
    rows: MapRows = RANKS,
) -> StepCells:
    """Return the cells of ``matrix``; see ``step_heatmap``."""
    # Columns of several steps cover recorded steps only, so they have no gaps to show.
    shown = np.asarray(steps) if steps_per_column == 1 else np.arange(len(steps))
    values, first_step = _with_holes(matrix, np.asarray(ranks), shown)
    items = _items(len(values), np.asarray(ranks), order)
    binned = bin_worst(values if order is None else values[items], worst=worst)
    at = first_step + np.arange(binned.values.shape[1], dtype=np.int32) * binned.columns_per_bin
    return StepCells(
        binned.values,
        replace(rows, items=items.tolist(), per_row=binned.rows_per_bin),
        at if steps_per_column == 1 else np.asarray(steps)[at],
        binned.columns_per_bin * steps_per_column,
    )


def _rows_axis(
    figure: go.Figure, positions: Sequence[str], rows: MapRows, colors: Palette, *, blamed: Collection[int], picked: int | None
) -> None:
    """Label about sixteen rows and the rows of marked items; frame the latter if there is room. Row ``n`` is at ``n``."""
    count = len(rows)
    row_of = {int(item): place // rows.per_row for place, item in enumerate(rows.items)}
    blocks = _blocks({row_of[item] for item in blamed if item in row_of})
    marked: dict[int, str] = {}
    for first, last in blocks:
        inside = sorted(item for item in blamed if first <= row_of.get(item, -1) <= last)
        marked[(first + last) // 2] = marked_label(rows.label(inside), blamed=True, picked=False)
    if picked is not None and picked in row_of and picked not in blamed:
        marked[row_of[picked]] = marked_label(rows.label([picked]), blamed=False, picked=True)
        blocks.append((row_of[picked], row_of[picked]))
    every = max(1, -(-count // _LABELS))
    regular = {
        row: rows.label(rows.of(row)[:1])
        for row in range(0, count, every)
        if all(abs(row - other) > every // 2 for other in marked) and not any(first <= row <= last for first, last in blocks)
    }
    ticks = dict(sorted({**regular, **marked}.items()))
    figure.update_yaxes(
        title_text=rows.row_kind,
        type="category",
        tickmode="array",
        tickvals=[positions[row] for row in ticks],
        ticktext=list(ticks.values()),
        range=[count - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        fixedrange=True,  # dragging chooses steps
    )
    for first, last in blocks if count <= _FRAMED_UP_TO else ():
        frame_row(figure, (first + last) / 2, colors, half=(last - first + 1) / 2)


def _blocks(rows: Collection[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive rows."""
    firsts = sorted(row for row in rows if row - 1 not in rows)
    lasts = sorted(row for row in rows if row + 1 not in rows)
    return list(zip(firsts, lasts, strict=True))


def _items(rows: int, ranks: NDArray[np.int64], order: Sequence[int] | None) -> NDArray[np.int64]:
    """Return the ranks 0 to ``rows`` - 1 in display order."""
    all_rows = np.arange(rows)
    if order is None:
        return all_rows
    first = ranks[np.asarray(order, dtype=np.intp)]
    return np.concatenate([first, np.setdiff1d(all_rows, first)])


def _color_scale(finite: NDArray[np.float32], worst: Worst) -> tuple[float, float]:
    """Return the ends of the colour scale. It spans at least a quarter of the median, so that noise does not look significant."""
    least = max(0.25 * abs(float(np.median(finite))), 1e-9)
    if worst == "lowest":
        highest = float(finite.max())
        return min(float(np.percentile(finite, 100 - CLIP_PERCENTILE)), highest - least), highest
    lowest = float(finite.min())
    return lowest, max(float(np.percentile(finite, CLIP_PERCENTILE)), lowest + least)


def _too_sparse(numbers: NDArray[np.int64]) -> bool:
    """Return whether ``numbers`` (ascending) span more than ``_WIDEST_SPAN`` and more than 16 times their count."""
    return int(numbers[-1]) - int(numbers[0]) > _WIDEST_SPAN and int(numbers[-1]) - int(numbers[0]) > 16 * len(numbers)


def _with_holes(
    matrix: NDArray[np.floating[Any]], ranks: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[np.float32], int]:
    """Return ``matrix`` expanded to all ranks from 0 and all steps from the first, with the first step. Gaps are NaN.

    A rank without any record is therefore an empty row of the map, not a missing one.
    """
    first_step = int(steps[0])
    expanded = np.full((int(ranks[-1]) + 1, int(steps[-1]) - first_step + 1), np.nan, np.float32)
    expanded[np.ix_(ranks, steps - first_step)] = matrix
    return expanded, first_step
