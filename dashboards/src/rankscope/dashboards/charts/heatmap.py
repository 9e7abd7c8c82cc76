"""Heat map of one value per rank (or host) and step: a slow rank is a row and a slow moment a column."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.analysis.result.text import first_of
from rankscope.base.text import ranges_text
from rankscope.dashboards.charts.bars import frame_row
from rankscope.dashboards.charts.cells import bin_worst
from rankscope.dashboards.charts.frame import framed, marked_label, note
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
"""Maximum number of ranks named per row of cells."""
_LONGEST_HOST: Final = 28
"""Maximum characters of a host's name at the axis. Hover text has all of it."""
_EVERY_STEP_UP_TO: Final = 12
"""Up to this many steps the axis needs an explicit tick distance of 1; with more, Plotly labels whole steps anyway."""
_FRAMED_UP_TO: Final = 64
"""With more rows a frame would hide the row it marks; then only the axis label marks it."""


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
    hosts: Sequence[str] | None = None,
    blamed: Collection[int] = (),
    picked: int | None = None,
) -> go.Figure:
    """Draw ``matrix`` [ranks, steps] as a heat map; NaN stays a visible hole.

    ``unit`` is one of ``data.metrics``, converted to the unit that reads best. ``steps``: the first step of each column; a column
    covers ``steps_per_column`` recorded steps. ``order``: matrix rows in display order, from the top; by default the map is in
    order of ranks. With an ``order``, ranks without a row come last. ``hosts``: names of the rows, which are then hosts;
    ``ranks``, ``blamed`` and ``picked`` are then positions in it.

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
        return note(
            "The numbers of ranks or steps have gaps too wide to draw:<br>the run's files look damaged.",
            colors,
        )
    cells = step_cells(matrix, ranks, steps, worst=worst, order=order, steps_per_column=steps_per_column, hosts=hosts)
    size, in_unit = shown_unit(unit, float(np.nanmax(cells.values)))
    values = cells.values / np.float32(size)
    rows, columns = values.shape
    wide = cells.steps_per_cell
    lowest, highest = color_scale(values[np.isfinite(values)], worst)
    by_rank = order is None and hosts is None
    positions = cells.positions(by_rank=by_rank)
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=cells.at,
            y=positions,
            zmin=lowest,
            zmax=highest,
            reversescale=worst == "lowest",  # bad values have the same colours in every metric
            **coloring(in_unit, colors),
            hoverongaps=True,
            hovertemplate=_hover(
                label,
                in_unit,
                worst,
                rows=cells.ranks_per_cell,
                columns=wide,
                by_rank=by_rank,
                unit_of_rows="rank" if hosts is None else "host",
            ),
        )
    )
    framed(figure, colors, height=min(540, max(240, 114 + 26 * rows)))
    figure.update_layout(plot_bgcolor=colors.missing, margin_t=TOOLS_PX)
    _rows_axis(figure, positions, cells, colors, blamed=blamed, picked=picked)
    # Without this, marks above the map would widen its axis.
    ends = [float(cells.at[0]) - wide / 2, float(cells.at[-1]) + wide / 2]
    figure.update_xaxes(title_text="step", showgrid=False, zeroline=False, range=ends)
    if columns * wide <= _EVERY_STEP_UP_TO:
        figure.update_xaxes(dtick=1)  # there is no step 0.5
    return figure


@dataclass(frozen=True, slots=True)
class StepCells:
    """Cells of a heat map: each is the worst value of a block of ranks and steps."""

    values: NDArray[np.float32]
    """[rows, columns]; NaN is unknown."""
    rank_of_row: NDArray[np.int64]
    """All ranks from 0 in display order. Each row of cells covers the next ``ranks_per_cell``."""
    ranks_per_cell: int
    at: NDArray[np.integer[Any]]
    """[columns], the first step of each column."""
    steps_per_cell: int
    hosts: Sequence[str] | None = None
    """Names of the rows if these are hosts: their positions stand in for ranks."""

    def ranks(self, row: int) -> list[int]:
        """Return the ranks of a row of cells."""
        found: list[int] = self.rank_of_row[row * self.ranks_per_cell : (row + 1) * self.ranks_per_cell].tolist()
        return found

    def row(self, position: str | float) -> int:
        """Return the row of cells at an axis position, as a click event reports it. Raises ``ValueError`` if there is none."""
        return self.positions(by_rank=not isinstance(position, str)).index(position)  # type: ignore[arg-type]  # a float is an int

    def positions(self, *, by_rank: bool) -> list[int] | list[str]:
        """Return the axis position of each row of cells: its first rank if ``by_rank``, else its ranks or hosts in words."""
        if by_rank:
            return [int(rank) for rank in self.rank_of_row[:: self.ranks_per_cell]]
        return [first_of(self.names(row), _NAMED) for row in range(len(self.values))]

    def names(self, row: int) -> list[str]:
        """Return the ranks or hosts of a row of cells in words, which Plotly reads as HTML."""
        return [str(rank) if self.hosts is None else plotly_text(self.hosts[rank]) for rank in self.ranks(row)]


def step_cells(
    matrix: NDArray[np.floating[Any]],
    ranks: Sequence[int] | NDArray[np.int64],
    steps: Sequence[int] | NDArray[np.int64],
    *,
    worst: Worst = "highest",
    order: Sequence[int] | None = None,
    steps_per_column: int = 1,
    hosts: Sequence[str] | None = None,
) -> StepCells:
    """Return the cells of ``matrix``; see ``step_heatmap``."""
    # Columns of several steps cover recorded steps only, so they have no gaps to show.
    shown = np.asarray(steps) if steps_per_column == 1 else np.arange(len(steps))
    values, first_step = _with_holes(matrix, np.asarray(ranks), shown)
    rank_of_row = _rank_of_row(len(values), np.asarray(ranks), order)
    binned = bin_worst(values if order is None else values[rank_of_row], worst=worst)
    at = first_step + np.arange(binned.values.shape[1], dtype=np.int32) * binned.columns_per_bin
    return StepCells(
        binned.values,
        rank_of_row,
        binned.rows_per_bin,
        at if steps_per_column == 1 else np.asarray(steps)[at],
        binned.columns_per_bin * steps_per_column,
        hosts,
    )


def coloring(in_unit: str, colors: Palette) -> dict[str, Any]:
    """Return the settings of a heat map's colour scale and colour bar."""
    return {
        "colorscale": [[index / (len(colors.sequential) - 1), color] for index, color in enumerate(colors.sequential)],
        "colorbar": {
            "title": {"text": in_unit, "side": "top", "font": {"size": 12, "color": colors.muted}},
            "tickfont": {"color": colors.muted, "size": 11},
            "thickness": 10,
            "outlinewidth": 0,
            "len": 1,
            "xpad": 6,
        },
    }


def _rows_axis(
    figure: go.Figure,
    positions: list[int] | list[str],
    cells: StepCells,
    colors: Palette,
    *,
    blamed: Collection[int],
    picked: int | None,
) -> None:
    """Label about sixteen rows and the rows of marked ranks; frame the latter if there is room.

    In order of ranks the axis is the rank number. In another order it has a category per row of cells, at 0, 1, 2 …
    """
    per_bin, bins = cells.ranks_per_cell, len(positions)
    at = per_bin if isinstance(positions[0], int) else 1
    row_of = {int(rank): row // per_bin for row, rank in enumerate(cells.rank_of_row)}
    blocks = _blocks({row_of[rank] for rank in blamed if rank in row_of})
    marked: dict[int, str] = {}
    for first, last in blocks:
        inside = sorted(rank for rank in blamed if first <= row_of.get(rank, -1) <= last)
        marked[(first + last) // 2] = marked_label(_names(cells, inside), blamed=True, picked=False)
    if picked is not None and picked in row_of and picked not in blamed:
        marked[row_of[picked]] = marked_label(_names(cells, [picked]), blamed=False, picked=True)
        blocks.append((row_of[picked], row_of[picked]))
    every = max(1, -(-bins // 16))
    regular = {
        row: _names(cells, cells.ranks(row)[:1])
        for row in range(0, bins, every)
        if all(abs(row - other) > every // 2 for other in marked) and not any(first <= row <= last for first, last in blocks)
    }
    ticks = dict(sorted({**regular, **marked}.items()))
    figure.update_yaxes(
        title_text="rank" if cells.hosts is None else "host",
        type="linear" if isinstance(positions[0], int) else "category",
        tickmode="array",
        tickvals=[positions[row] for row in ticks],
        ticktext=list(ticks.values()),
        range=[(bins - 0.5) * at, -at / 2],
        showgrid=False,
        zeroline=False,
        fixedrange=True,  # dragging chooses steps
    )
    for first, last in blocks if bins <= _FRAMED_UP_TO else ():
        frame_row(figure, (first + last) / 2 * at, colors, half=(last - first + 1) / 2 * at)


def _blocks(rows: Collection[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive rows."""
    firsts = sorted(row for row in rows if row - 1 not in rows)
    lasts = sorted(row for row in rows if row + 1 not in rows)
    return list(zip(firsts, lasts, strict=True))


def _names(cells: StepCells, ranks: Sequence[int]) -> str:
    """Return the label of ranks or hosts at the axis."""
    if cells.hosts is None:
        return ranges_text(ranks, most=2)
    return first_of([plotly_text(cells.hosts[rank], _LONGEST_HOST) for rank in ranks], 1)


def _rank_of_row(rows: int, ranks: NDArray[np.int64], order: Sequence[int] | None) -> NDArray[np.int64]:
    """Return the ranks 0 to ``rows`` - 1 in display order."""
    everybody = np.arange(rows)
    if order is None:
        return everybody
    first = ranks[np.asarray(order, dtype=np.intp)]
    return np.concatenate([first, np.setdiff1d(everybody, first)])


def color_scale(finite: NDArray[np.float32], worst: Worst) -> tuple[float, float]:
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
    whole = np.full((int(ranks[-1]) + 1, int(steps[-1]) - first_step + 1), np.nan, np.float32)
    whole[np.ix_(ranks, steps - first_step)] = matrix
    return whole, first_step


def _hover(label: str, unit: str, worst: Worst, *, rows: int, columns: int, by_rank: bool, unit_of_rows: str) -> str:
    """Return the hover template of cells that cover ``rows`` ranks or hosts and ``columns`` steps.

    In order of ranks the axis names the first rank of a cell, else all of them.
    """
    rank = f"{unit_of_rows} %{{y}}" if unit_of_rows == "rank" else "%{y}"
    if rows > 1:
        rank = f"rank %{{y}} and the {rows - 1} after it" if by_rank else f"{unit_of_rows}s %{{y}}"
    step = "step %{x}" + (f" and the {columns - 1} after it" if columns > 1 else "")
    which = f"{worst} " if rows * columns > 1 else ""
    return f"<b>{rank}</b><br>{step}<br>{which}{label}: <b>%{{z:,.2f}} {unit}</b><extra></extra>"
