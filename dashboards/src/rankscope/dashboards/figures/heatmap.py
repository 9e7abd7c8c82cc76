"""One value per rank and step: the view in which a slow rank is a line and a slow moment a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.dashboards.figures.binning import bin_highest
from rankscope.dashboards.figures.breakdown import rank_label
from rankscope.dashboards.figures.frame import framed, note
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import time_unit

CLIP_PERCENTILE: Final = 99.5
"""The scale ends here: one step with a checkpoint in it must not make all others look alike. Hovering shows the true value."""

NO_STEP: Final = "No step has been recorded yet.<br>The map fills as soon as ranks finish their first training steps."

_MICROSECONDS: Final = "us"
_WIDEST_SPAN: Final = 4096
_EVERY_STEP_UP_TO: Final = 12
"""With more steps the axis labels whole ones only in any case."""
_FRAMED_UP_TO: Final = 64
"""With more rows a frame would hide the row it marks; the label at the axis marks it then."""


def step_heatmap(
    matrix: NDArray[np.float64],
    ranks: Sequence[int] | NDArray[np.int64],
    steps: Sequence[int] | NDArray[np.int64],
    colors: Palette,
    *,
    label: str,
    unit: str,
    blamed: int | None = None,
    picked: int | None = None,
) -> go.Figure:
    """Heat map of ``matrix`` [ranks, steps] in ``unit`` (for ``us``: whichever reads best). NaN stays a visible hole.

    Large matrices are binned (``bin_highest``) and sent as float32, so that a page of any run stays under a megabyte and hovering
    still shows values, not colours.
    """
    if matrix.size == 0:
        return note(NO_STEP, colors)
    if not np.isfinite(matrix).any():
        return note(
            f"{label} is not known for any step of this run:<br>the recorder had no signal for it. Choose another metric.", colors
        )
    if _too_sparse(np.asarray(ranks)) or _too_sparse(np.asarray(steps)):
        return note(
            "The numbers of ranks or steps have gaps too wide to draw:<br>the run's files look damaged.",
            colors,
        )
    size, shown_unit = time_unit(float(np.nanmax(matrix))) if unit == _MICROSECONDS else (1.0, unit)
    values, first_rank, first_step = _with_holes(matrix / size, np.asarray(ranks), np.asarray(steps))
    binned = bin_highest(values)
    rows, columns = binned.values.shape
    finite = binned.values[np.isfinite(binned.values)]
    lowest, highest = _scale(finite)
    figure = go.Figure(
        go.Heatmap(
            z=binned.values,
            x=first_step + np.arange(columns, dtype=np.int32) * binned.columns_per_bin,
            y=first_rank + np.arange(rows, dtype=np.int32) * binned.rows_per_bin,
            zmin=lowest,
            zmax=highest,
            colorscale=[[index / (len(colors.sequential) - 1), color] for index, color in enumerate(colors.sequential)],
            colorbar={
                "title": {"text": shown_unit, "side": "top", "font": {"size": 12, "color": colors.muted}},
                "tickfont": {"color": colors.muted, "size": 11},
                "thickness": 10,
                "outlinewidth": 0,
                "len": 1,
                "xpad": 6,
            },
            hoverongaps=True,
            hovertemplate=_hover(label, shown_unit, binned.rows_per_bin, binned.columns_per_bin),
        )
    )
    framed(figure, colors, height=min(520, max(220, 90 + 26 * rows)))
    figure.update_layout(plot_bgcolor=colors.missing)
    half = binned.rows_per_bin / 2
    marked = sorted(
        {rank for rank in (blamed, picked) if rank is not None and 0 <= rank - first_rank < rows * binned.rows_per_bin}
    )
    tops = [first_rank + (rank - first_rank) // binned.rows_per_bin * binned.rows_per_bin for rank in marked]
    ticks = _rank_ticks(first_rank, rows * binned.rows_per_bin, dict(zip(tops, marked, strict=True)))
    figure.update_yaxes(
        title_text="rank",
        tickmode="array",
        tickvals=list(ticks),
        ticktext=[rank_label(rank, blamed, picked, word="") for rank in ticks.values()],
        range=[first_rank + rows * binned.rows_per_bin - half, first_rank - half],
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(title_text="step", showgrid=False, zeroline=False)
    if columns * binned.columns_per_bin <= _EVERY_STEP_UP_TO:
        figure.update_xaxes(dtick=1)  # there is no step 0.5
    for top in tops if rows <= _FRAMED_UP_TO else ():
        figure.add_shape(
            type="rect", xref="x domain", x0=0, x1=1, y0=top - half, y1=top + half, line={"color": colors.emphasis, "width": 2}
        )
    return figure


def _scale(finite: NDArray[np.float32]) -> tuple[float, float]:
    """Ends of the colour scale. At least a quarter of the typical value, so that noise does not look like a finding."""
    lowest = float(finite.min())
    return lowest, max(float(np.percentile(finite, CLIP_PERCENTILE)), lowest + max(0.25 * abs(float(np.median(finite))), 1e-9))


def _too_sparse(numbers: NDArray[np.int64]) -> bool:
    """Whether drawing the gaps between ``numbers`` (ascending) would take absurdly more room than the numbers themselves."""
    return int(numbers[-1]) - int(numbers[0]) > _WIDEST_SPAN and int(numbers[-1]) - int(numbers[0]) > 16 * len(numbers)


def _with_holes(
    matrix: NDArray[np.float64], ranks: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[np.float64], int, int]:
    """``matrix`` over all ranks from 0 and all steps from the first, NaN where there was no row or column; with both firsts.

    A rank without any record is a hole in the map, not a row that is not there.
    """
    first_step = int(steps[0])
    whole = np.full((int(ranks[-1]) + 1, int(steps[-1]) - first_step + 1), np.nan)
    whole[np.ix_(ranks, steps - first_step)] = matrix
    return whole, 0, first_step


def _hover(label: str, unit: str, rows_per_bin: int, columns_per_bin: int) -> str:
    rank = "rank %{y}" + (f" and the {rows_per_bin - 1} after it" if rows_per_bin > 1 else "")
    step = "step %{x}" + (f" and the {columns_per_bin - 1} after it" if columns_per_bin > 1 else "")
    highest = "" if rows_per_bin == columns_per_bin == 1 else "highest "
    return f"<b>{rank}</b><br>{step}<br>{highest}{label.lower()}: <b>%{{z:,.2f}} {unit}</b><extra></extra>"


def _rank_ticks(first: int, span: int, marked: dict[int, int]) -> dict[int, int]:
    """Position to rank for about sixteen labels; ``marked`` positions are among them, unmarked ones next to them are not."""
    every = max(1, -(-span // 16))
    regular = {rank: rank for rank in range(first, first + span, every) if all(abs(rank - top) > every // 2 for top in marked)}
    return dict(sorted({**regular, **marked}.items()))
