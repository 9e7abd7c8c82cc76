"""Figures of profiled time: its breakdown per rank, the spread of the overlap, and the collectives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.analysis.causes import IDLE_CAUSES
from rankscope.analysis.result.analysis import Analysis, RankResult
from rankscope.analysis.result.collectives import CollectiveBandwidth
from rankscope.analysis.result.hosts import worst_ranks
from rankscope.analysis.result.text import size as bytes_in_words
from rankscope.dashboards.charts.bar_names import PLAIN, BarNames
from rankscope.dashboards.charts.bars import frame_row, row_bars
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.charts.frame import framed, note, rows_axis
from rankscope.dashboards.charts.palette import BarStyle, Palette
from rankscope.dashboards.data.hosts import UNKNOWN_HOST
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import duration, in_unit, time_unit
from rankscope.dashboards.words.wording import count

ALL_UP_TO: Final = 24
"""With more ranks than this, only the mean of all and the ranks that differ most from it are drawn."""
NOTABLE: Final = 14

NO_WINDOW: Final = (
    "Compute, communication and idle time are recorded in profiled steps; rankscope run --window-first N sets the first one, "
    "rankscope capture RUN profiles the next steps of a live run."
)


PARTS: Final = (
    BarStyle("Compute alone", "compute"),
    BarStyle("Compute hiding communication", "overlap", "/"),
    BarStyle("Exposed communication", "exposed_communication", "x"),
    BarStyle("Exposed copies", "exposed_memcpy", "."),
    BarStyle("Idle", "idle"),
)


_SUMMED: Final = (
    "profiled_steps", "window_us", "compute_us", "overlap_us", "exposed_communication_us", "exposed_memcpy_us", "idle_us",
)  # fmt: skip


def part_times(ranks: Sequence[RankResult]) -> NDArray[np.float64]:
    """Return mean times of ``PARTS`` per profiled step [ranks, parts] in microseconds. Every rank must have a window.

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
    per_step: NDArray[np.float64] = columns / [[max(rank.profiled_steps or 1, 1)] for rank in ranks]
    return per_step


def means_by_host(analysis: Analysis, hosts: Mapping[int, str]) -> list[RankResult]:
    """Return a row per host with the sums over its profiled ranks; its worst rank stands for it."""
    by_host: dict[str, list[RankResult]] = {}
    for rank in analysis.ranks:
        by_host.setdefault(hosts.get(rank.rank, UNKNOWN_HOST), []).append(rank)
    rows: list[RankResult] = []
    worst_of = worst_ranks(analysis, [[row.rank for row in of_host] for of_host in by_host.values()])
    for of_host, number in zip(by_host.values(), worst_of, strict=True):
        profiled = [row for row in of_host if row.window_us is not None]
        sums = {name: sum(getattr(row, name) or 0 for row in profiled) for name in _SUMMED} if profiled else {"window_us": None}
        rows.append(msgspec.structs.replace(next(row for row in of_host if row.rank == number), **sums))
    return rows


def breakdown_bars(
    ranks: Sequence[RankResult], colors: Palette, *, names: BarNames = PLAIN, cause: str | None = None
) -> go.Figure:
    """Draw stacked bars per rank or host. Those that ``names`` marks have a sign, bold type and a frame.

    ``cause``: that of what is blamed. Where it leaves the device idle, their additional idle time has its look.

    A rank without a profiled step has an empty row. With more than ``ALL_UP_TO`` ranks, the mean and the ranks that differ most
    from it are shown.
    """
    profiled = [rank for rank in ranks if rank.window_us is not None]
    if not profiled:
        return note(NO_WINDOW, colors)
    times = part_times(profiled)
    marked = {rank.rank for rank in ranks if names.is_blamed(rank.rank) or names.is_picked(rank.rank)}
    if len(ranks) <= ALL_UP_TO:
        labels = [names.label(rank.rank) for rank in ranks]
        row_of = {rank.rank: row for row, rank in enumerate(ranks)}
    else:
        chosen = _notable(profiled, times, marked)
        labels = [f"<i>mean of {len(profiled):,}</i>", *(names.label(profiled[index].rank) for index in chosen)]
        row_of = {profiled[index].rank: row for row, index in enumerate(chosen, start=1)}
        times = np.vstack([times.mean(axis=0), times[chosen]])
        profiled = [profiled[index] for index in chosen]
    at = np.array([*([0] if len(times) > len(profiled) else []), *(row_of[rank.rank] for rank in profiled)])
    mean = [f"mean of all {names.row_kind}s"] if len(times) > len(profiled) else []
    texts = [*mean, *(names.text(rank.rank) for rank in profiled)]
    of_blamed = np.array([*(False for _ in mean), *(names.is_blamed(rank.rank) for rank in profiled)])
    late = np.zeros(len(times))
    if cause in IDLE_CAUSES and of_blamed.any() and not of_blamed.all():
        late[of_blamed] = np.maximum(times[of_blamed, -1] - np.median(times[~of_blamed, -1]), 0)
    figure = _stack(times, at, texts, colors, late=late, why=CAUSES[cause or "unknown"])
    framed(figure, colors, height=64 + 34 * max(len(labels), 2))
    rows_axis(figure, labels)
    for row in sorted({row_of[rank] for rank in marked if rank in row_of}):
        frame_row(figure, row, colors, half=0.46)
    return figure


def _stack(
    times: NDArray[np.float64],
    at: NDArray[np.int64],
    names: list[str],
    colors: Palette,
    *,
    late: NDArray[np.float64],
    why: BarStyle,
) -> go.Figure:
    """Draw ``times``; of their last part, ``late`` has the look ``why``."""
    window = times.sum(axis=1)
    size, unit = time_unit(float(window.max()))
    figure = go.Figure()
    parts = list(zip(PARTS, times.T, strict=True))
    if late.any():
        idle, all_idle = parts[-1]
        parts[-1:] = [(idle, all_idle - late), (why._replace(label=f"{idle.label}: {why.label}"), late)]
    for part, values in parts:
        share = np.divide(100 * values, window, out=np.full(len(window), np.nan), where=window > 0)
        row_bars(
            figure,
            part,
            values / size,
            colors,
            y=at,
            customdata=np.column_stack([share, window / size]),
            hovertext=names,
            hovertemplate=f"<b>%{{hovertext}}</b><br>{part.label}: %{{x:,.2f}} {unit}"
            f"<br>%{{customdata[0]:.1f}}% of %{{customdata[1]:,.2f}} {unit}<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.28, showlegend=False)
    figure.update_xaxes(title_text=f"{unit} per profiled step", rangemode="tozero")
    return figure


def _notable(ranks: Sequence[RankResult], times: NDArray[np.float64], marked: Collection[int | None]) -> list[int]:
    """Return indices of the marked ranks, then of those whose parts differ most from the mean; ``NOTABLE`` at most."""
    differs = np.abs(times - times.mean(axis=0)).sum(axis=1)
    first = [index for index, rank in enumerate(ranks) if rank.rank in marked]
    others = [int(index) for index in np.argsort(-differs, kind="stable") if index not in first]
    return [*first, *others][:NOTABLE]


SHOWN: Final = 12
"""Maximum number of rows drawn, the costliest first. The table has all of them."""

NO_COLLECTIVE: Final = "No collective is known: none was profiled, or none could be read."
NO_TRANSFER: Final = (
    "Transfer and waiting are not known: this takes records of the same collective<br>"
    "on all ranks of its group. Profile all ranks at the same steps."
)
NO_SIZE: Final = (
    "Bandwidth is not known: the sizes of these collectives are not recorded.<br>"
    "Profiled windows with shapes (record_shapes) and NCCL's own metadata contain them."
)


def cost_us(row: CollectiveBandwidth) -> float:
    """Return a rank's time in these collectives: matched instances times (median transfer + mean wait); 0 if unknown."""
    return 0.0 if row.transfer_us is None else row.matched * (row.transfer_us + (row.wait_us or 0.0))


def by_cost(rows: Sequence[CollectiveBandwidth], group: str | None) -> list[CollectiveBandwidth]:
    """Return the rows of process group ``group`` (``None``: all groups), costliest first; rows of unknown cost come last."""
    return sorted((row for row in rows if group in (None, row.group)), key=cost_us, reverse=True)


def collective_name(row: CollectiveBandwidth) -> str:
    """Return operation, group and size: ``all_reduce · dp (8 ranks) · 4.0 MiB``."""
    ranks = "" if row.group_size is None else f" ({count(row.group_size, 'rank')})"
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
    for style, each in (
        (BarStyle("Transfer", "exposed_communication", "x"), [row.transfer_us or 0.0 for row in shown]),
        (BarStyle("Waiting for later ranks", "straggler_wait", "\\"), [row.wait_us or 0.0 for row in shown]),
    ):
        row_bars(
            figure,
            style,
            [row.matched * us / size for row, us in zip(shown, each, strict=True)],
            colors,
            customdata=[f"{row.matched:,} x {duration(us)}" for row, us in zip(shown, each, strict=True)],
            hovertext=[plotly_text(collective_name(row)) for row in shown],
            hovertemplate=f"<b>%{{hovertext}}</b><br>{style.label}: %{{x:,.2f}} {unit}<br>%{{customdata}}<extra></extra>",
        )
    for at, row in enumerate(shown):
        waiting = "waiting not known" if row.wait_us is None else f"{_share(row):.0f}% waiting"
        _text_after_bar(figure, colors.text, at, cost_us(row) / size, f"{in_unit(cost_us(row), (size, unit))} · {waiting}")
    _rows(figure, shown, colors)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text=f"{unit} per rank, sum over the profiled steps", range=[0, 1.6 * cost_us(shown[0]) / size])
    return figure


def bandwidth_bars(rows: Sequence[CollectiveBandwidth], colors: Palette) -> go.Figure:
    """Draw measured bus bandwidth with its 10th and 90th percentile, and a mark at the expected rate. ``rows`` are in order."""
    if not rows:
        return note(NO_COLLECTIVE, colors)
    shown = [row for row in rows if _measured(row) is not None][:SHOWN]
    if not shown:
        return note(NO_SIZE if any(row.transfer_us is not None for row in rows) else NO_TRANSFER, colors)
    figure = go.Figure()
    measured = [_measured(row) or 0.0 for row in shown]
    row_bars(
        figure,
        BarStyle("Measured", "compute"),
        measured,
        colors,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [0 if row.bus_gb_s is None else (row.bus_p90_gb_s or row.bus_gb_s) - row.bus_gb_s for row in shown],
            "arrayminus": [0 if row.bus_gb_s is None else row.bus_gb_s - (row.bus_p10_gb_s or row.bus_gb_s) for row in shown],
            "color": colors.muted,
            "thickness": 1,
            "width": 4,
        },
        hovertext=[plotly_text(collective_name(row)) for row in shown],
        customdata=[bandwidth_text(row) for row in shown],
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
        _text_after_bar(figure, colors.text if row.expected_gb_s is not None else colors.muted, at, end, bandwidth_text(row))
    _rows(figure, shown, colors)
    figure.update_xaxes(title_text="bus bandwidth, GB/s<br>mark: expected bandwidth of the link", range=[0, 1.9 * longest or 1])
    return figure


def bandwidth_text(row: CollectiveBandwidth) -> str:
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
    total_us = (row.transfer_us or 0.0) + (row.wait_us or 0.0)
    return 100 * (row.wait_us or 0.0) / total_us if total_us else 0.0


def _rows(figure: go.Figure, rows: Sequence[CollectiveBandwidth], colors: Palette) -> None:
    """Lay out one line per row. The name is above the bar: a narrow screen has no room beside it."""
    framed(figure, colors, height=70 + 48 * max(len(rows), 2))
    for at, row in enumerate(rows):
        figure.add_annotation(
            text=plotly_text(collective_name(row)), x=0, xref="paper", y=at - 0.46, showarrow=False,
            xanchor="left", yanchor="middle", font={"size": 12, "color": colors.muted},
        )  # fmt: skip
    figure.update_layout(bargap=0.52, showlegend=False)
    figure.update_yaxes(visible=False, range=[len(rows) - 0.6, -0.7], fixedrange=True)


def _text_after_bar(figure: go.Figure, color: str, row: int, at: float, text: str) -> None:
    figure.add_annotation(text=text, x=at, y=row, showarrow=False, xanchor="left", xshift=8, font={"size": 12, "color": color})
