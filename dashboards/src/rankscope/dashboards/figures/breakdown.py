"""Breakdown of each rank's profiled time: stacked bars that sum to the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.analysis.result.analysis import RankResult
from rankscope.dashboards.figures.frame import framed, hatched, note, rows_axis
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import time_unit

ALL_UP_TO: Final = 24
"""With more ranks than this, only the mean of all and the ranks that differ most from it are drawn."""
NOTABLE: Final = 14

NO_WINDOW: Final = (
    "No step was profiled: compute, communication<br>and idle time are not known.<br>"
    "They come with the first profiling window;<br>rankscope run --window-first N sets its first step."
)


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of the bars: key in the palette, name, hatching."""

    key: str
    label: str
    hatch: str


PARTS: Final = (
    Part("compute", "Compute alone", ""),
    Part("overlap", "Compute hiding communication", "/"),
    Part("exposed_communication", "Exposed communication", "x"),
    Part("exposed_memcpy", "Exposed copies", "."),
    Part("idle", "Idle", ""),
)


def part_times(ranks: Sequence[RankResult]) -> NDArray[np.float64]:
    """Return times of ``PARTS`` [ranks, parts] in microseconds. Each row sums to the rank's window; every rank must have one.

    Recorded compute includes compute that ran during communication; that part is split off here as overlap.
    """
    columns = np.array(
        [
            (rank.compute_us, rank.overlap_us, rank.exposed_communication_us, rank.exposed_memcpy_us, rank.idle_us)
            for rank in ranks
        ],
        dtype=np.float64,
    ).reshape(len(ranks), len(PARTS))
    columns[:, 0] -= columns[:, 1]
    return columns


def breakdown_bars(
    ranks: Sequence[RankResult], colors: Palette, *, blamed: int | None = None, picked: int | None = None
) -> go.Figure:
    """Draw stacked bars per rank. The ``blamed`` and ``picked`` ranks are marked by a sign, bold type and a frame.

    A rank without a profiled step has an empty row. With more than ``ALL_UP_TO`` ranks, the mean and the ranks that differ most
    from it are shown.
    """
    profiled = [rank for rank in ranks if rank.window_us is not None]
    if not profiled:
        return note(NO_WINDOW, colors)
    times = part_times(profiled)
    if len(ranks) <= ALL_UP_TO:
        labels = [rank_label(rank.rank, blamed, picked) for rank in ranks]
        row_of = {rank.rank: row for row, rank in enumerate(ranks)}
    else:
        chosen = _notable(profiled, times, (blamed, picked))
        labels = [f"<i>mean of {len(profiled):,}</i>", *(rank_label(profiled[index].rank, blamed, picked) for index in chosen)]
        row_of = {profiled[index].rank: row for row, index in enumerate(chosen, start=1)}
        times = np.vstack([times.mean(axis=0), times[chosen]])
        profiled = [profiled[index] for index in chosen]
    at = np.array([*([0] if len(times) > len(profiled) else []), *(row_of[rank.rank] for rank in profiled)])
    names = [*(["mean"] if len(times) > len(profiled) else []), *(str(rank.rank) for rank in profiled)]
    figure = _stack(times, at, names, colors)
    framed(figure, colors, height=64 + 34 * max(len(labels), 2))
    rows_axis(figure, labels)
    for row in sorted({row_of[rank] for rank in (blamed, picked) if rank in row_of}):
        figure.add_shape(
            type="rect", x0=0, x1=1, xref="x domain", y0=row - 0.46, y1=row + 0.46, line={"color": colors.emphasis, "width": 2}
        )
    return figure


def _stack(times: NDArray[np.float64], at: NDArray[np.int64], names: list[str], colors: Palette) -> go.Figure:
    window = times.sum(axis=1)
    size, unit = time_unit(float(window.max()))
    figure = go.Figure()
    for part, values in zip(PARTS, times.T, strict=True):
        share = np.divide(100 * values, window, out=np.full(len(window), np.nan), where=window > 0)
        figure.add_bar(
            x=values / size,
            y=at,
            orientation="h",
            name=part.label,
            marker=hatched(getattr(colors, part.key), part.hatch, colors),
            customdata=np.column_stack([share, window / size]),
            hovertext=names,
            hovertemplate=f"<b>rank %{{hovertext}}</b><br>{part.label}: %{{x:,.2f}} {unit}"
            f"<br>%{{customdata[0]:.1f}}% of %{{customdata[1]:,.2f}} {unit}<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.28, showlegend=False)
    figure.update_xaxes(title_text=f"{unit} over the profiled steps", rangemode="tozero")
    return figure


def rank_label(rank: int, blamed: int | None, picked: int | None = None, *, word: str = "rank ") -> str:
    """Return the axis label. The blamed rank has a flag, the picked one a pointer, so that neither depends on colour."""
    sign = "⚑ " if rank == blamed else "▸ " if rank == picked else ""
    return f"<b>{sign}{word}{rank}</b>" if sign else f"{word}{rank}"


def _notable(ranks: Sequence[RankResult], times: NDArray[np.float64], marked: tuple[int | None, ...]) -> list[int]:
    """Return indices of the marked ranks, then of those whose parts differ most from the mean; ``NOTABLE`` at most."""
    differs = np.abs(times - times.mean(axis=0)).sum(axis=1)
    first = [index for index, rank in enumerate(ranks) if rank.rank in marked]
    others = [int(index) for index in np.argsort(-differs, kind="stable") if index not in first]
    return [*first, *others][:NOTABLE]
