"""Figures of imposed waits: by origin, by victim, and by cause over ranks and steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.dashboards.charts.bar_names import LONGEST_LABEL, PLAIN, BarNames
from rankscope.dashboards.charts.bars import bar_marker, row_bars
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.charts.frame import framed, legend_above, note, rows_axis
from rankscope.dashboards.charts.heatmap import MapRows, heat_map
from rankscope.dashboards.charts.palette import BarStyle, Palette
from rankscope.dashboards.data.hosts import host_labels
from rankscope.dashboards.delays.data import CHARGED, CauseTimeline, RankDelay, WaitGroup
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import in_unit, time_unit

MOST_BARS: Final = 10
"""Maximum number of ranks shown, the costliest first. The table has all of them."""

ALONE: Final = "The job has one rank: there is no other rank to wait for."
NO_RANK_WAITED: Final = "No rank was found waiting for another one."
NO_EVIDENCE: Final = "Waits are not known: this takes steps with collectives, recorded on at least two ranks, and after warm-up."


def imposed_bars(imposed: Sequence[ImposedWait], colors: Palette, *, names: BarNames = PLAIN) -> go.Figure:
    """Draw bars of the ranks that imposed the most wait, split into wait that cost time and wait hidden by compute."""
    if not imposed:
        return note(NO_EVIDENCE, colors)
    top = [row for row in sorted(imposed, key=lambda row: row.imposed_us, reverse=True) if row.imposed_us > 0][:MOST_BARS]
    if not top:
        return note(NO_RANK_WAITED, colors)
    size, unit = time_unit(top[0].imposed_us)
    exposed = np.array([row.imposed_exposed_us for row in top]) / size
    total = np.array([row.imposed_us for row in top]) / size
    texts = [names.text(row.rank) for row in top]
    figure = go.Figure()
    for style, values in (
        (BarStyle("Cost time", "exposed_communication", "x"), exposed),
        (BarStyle("Hidden by compute", "overlap", "/"), total - exposed),
    ):
        hover = f"<b>%{{hovertext}}</b><br>{style.label}: %{{x:,.2f}} of %{{customdata:,.2f}} {unit}<extra></extra>"
        row_bars(figure, style, values, colors, hovertext=texts, customdata=total, hovertemplate=hover)
    framed(figure, colors, height=64 + 36 * max(len(top), 2))
    figure.update_layout(barmode="stack", bargap=0.28, showlegend=False)
    shares = ["" if row.share is None else f" · {100 * row.share:.0f}%" for row in top]
    # Values are below the names: a narrow screen has no room beside the bars.
    labels = [
        f"{names.label(row.rank)}<br>{in_unit(row.imposed_us, (size, unit))}{share}"
        for row, share in zip(top, shares, strict=True)
    ]
    rows_axis(figure, labels)
    figure.update_xaxes(title_text=f"{unit} imposed on the other ranks", rangemode="tozero")
    return figure


NO_WAIT_IN_GROUP: Final = "No rank of this group was found waiting for another one."
_TICKS: Final = 24
_GAPS_UP_TO: Final = 64


def wait_cells(group: WaitGroup) -> NDArray[np.float32]:
    """Return waits [origins, victims] in microseconds, the layout of the terminal's table.

    For ranks the diagonal is NaN: a rank does not wait for itself.
    """
    cells = np.zeros((len(group.names), len(group.names)), np.float32)
    cells[group.origins, group.victims] = group.waited_us
    if not group.by_host:
        np.fill_diagonal(cells, np.nan)
    return cells


def wait_rows(group: WaitGroup, worst: Sequence[int], hosts: Mapping[int, str]) -> MapRows:
    """Return the rows of ``wait_matrix``. ``worst``: rank that stands for each name; ``hosts``: those of ranks."""
    names = _wait_names(group, hosts)
    if group.by_host:
        names = [f"{name}, worst rank {rank}" for name, rank in zip(names, worst, strict=True)]
    return MapRows(f"because of {_unit(group)}", range(len(names)), names=names, labels=_axis_names(group))


def _axis_names(group: WaitGroup) -> list[str]:
    labels = host_labels(group.names) if group.by_host else {}
    return [labels.get(name, name) for name in group.names]


def _wait_names(group: WaitGroup, hosts: Mapping[int, str]) -> list[str]:
    names = [f"{_unit(group)} {name}" for name in group.names]
    if group.by_host:
        return names
    return [
        f"{name} on {hosts[rank]}" if (rank := int(number)) in hosts else name
        for name, number in zip(names, group.names, strict=True)
    ]


def _unit(group: WaitGroup) -> str:
    return "host" if group.by_host else "rank"


def wait_matrix(
    group: WaitGroup,
    worst: Sequence[int],
    colors: Palette,
    *,
    hosts: Mapping[int, str] | None = None,
    blamed: Collection[int] = (),
    picked: int | None = None,
) -> go.Figure:
    """Draw a heat map of ``wait_cells``.

    ``worst``: rank that stands for each name; ``hosts``: those of ranks; ``blamed`` and ``picked`` are positions in the names.
    """
    cells, hosts = wait_cells(group), hosts or {}
    if not np.nansum(cells):
        return note(NO_WAIT_IN_GROUP, colors)
    count = len(group.names)
    figure = heat_map(
        cells,
        [plotly_text(name) for name in _wait_names(group, hosts)],
        wait_rows(group, worst, hosts),
        colors,
        label="wait",
        unit="us",
        column="%{x} waited for it",
        blamed=blamed,
        picked=picked,
    )
    gap = 1 if count <= _GAPS_UP_TO else 0
    figure.update_traces(zmin=0, zmax=float(np.nanmax(figure.data[0].z)), hoverongaps=False, xgap=gap, ygap=gap)
    shown, axis_names = range(0, count, max(1, -(-count // _TICKS))), _axis_names(group)
    figure.update_xaxes(
        title_text=f"{_unit(group)} that waited",
        type="category",
        tickmode="array",
        tickvals=list(shown),
        ticktext=[plotly_text(axis_names[at], LONGEST_LABEL) for at in shown],
    )
    return figure


MOST_CAUSE_BARS: Final = 12
"""Maximum number of ranks shown, the costliest first. The table has all of them."""

NO_STEPS: Final = (
    "What made ranks late is not known:<br>this takes at least five recorded steps of two ranks,<br>"
    "with own time separate from waiting."
)
NO_CAUSES: Final = "No rank made another one wait."

_LEGEND: Final[dict[str, Any]] = {"font": {"size": 12}, "traceorder": "normal"}


def cause_bars(ranks: Sequence[RankDelay], colors: Palette, *, names: BarNames = PLAIN) -> go.Figure:
    """Draw horizontal stacked bars per cause for the ranks or hosts that imposed the most wait."""
    known_ranks = [rank for rank in ranks if rank.steps_us is not None]
    if not known_ranks:
        return note(NO_STEPS if not ranks or ranks[0].steps_us is None else NO_CAUSES, colors)
    top = sorted((rank for rank in known_ranks if rank.steps_us), key=lambda rank: -(rank.steps_us or 0.0))[:MOST_CAUSE_BARS]
    if not top:
        return note(NO_CAUSES, colors)
    longest = top[0].steps_us or 0.0
    size, unit = time_unit(longest)
    figure = go.Figure()
    for key, values in _visible({key: [rank.causes_us.get(key, 0.0) for rank in top] for key in CHARGED}).items():
        cause = CAUSES[key]
        row_bars(
            figure,
            cause,
            values / size,
            colors,
            hovertext=[names.text(rank.rank) for rank in top],
            hovertemplate=f"<b>%{{hovertext}}</b><br>{cause.label}: %{{x:,.2f}} {unit}<extra></extra>",
        )
    framed(figure, colors, height=110 + 36 * max(len(top), 2))
    figure.update_layout(barmode="stack", bargap=0.28)
    legend_above(figure, **_LEGEND)
    rows_axis(figure, [f"{names.label(rank.rank)}<br>{in_unit(rank.steps_us or 0.0, (size, unit))}" for rank in top])
    figure.update_xaxes(title_text=f"{unit} that the other ranks waited", rangemode="tozero")
    return figure


def _visible(causes: Mapping[str, Sequence[float]]) -> dict[str, NDArray[np.float64]]:
    """Return the values by cause, in stacking order. Causes that no bar shows, below 1% of the highest, count as unknown."""
    by_cause = {key: np.array(causes[key], np.float64) for key in CHARGED if key in causes}
    total = sum(by_cause.values(), start=np.zeros(1))
    shown = {key: values for key, values in by_cause.items() if key != "unknown" and values.max() >= 0.01 * total.max()}
    unshown = total - sum(shown.values(), start=np.zeros(1))
    return {**shown, **({"unknown": unshown} if unshown.max() >= 1e-6 * total.max() else {})}


def cause_timeline(timeline: CauseTimeline, colors: Palette) -> go.Figure:
    """Draw stacked bars of imposed wait per step, by cause. Hover text names the rank that imposed the most."""
    if not timeline.causes_us:
        return note(NO_CAUSES, colors)
    first, last, steps = (np.array(values) for values in (timeline.first, timeline.last, timeline.steps))
    per_step = {cause: values / steps for cause, values in _visible(timeline.causes_us).items()}
    size, unit = time_unit(float(sum(per_step.values(), start=np.zeros(len(steps))).max()))
    hover = [
        f"{span_of(begin, end)}<br>most of it: rank {rank}{'' if share is None else f' ({100 * share:.0f}%)'}"
        for begin, end, rank, share in zip(timeline.first, timeline.last, timeline.worst, timeline.worst_share, strict=True)
    ]
    figure = go.Figure()
    for key, values in per_step.items():
        cause = CAUSES[key]
        figure.add_bar(
            x=(first + last) / 2,
            y=(values / size).astype(np.float32),
            width=last - first + 1,
            name=cause.label,
            marker=bar_marker(cause, colors),
            hovertext=hover,
            hovertemplate=f"%{{hovertext}}<br>{cause.label}: %{{y:,.2f}} {unit} per step<extra></extra>",
        )
    framed(figure, colors, height=300)
    figure.update_layout(barmode="stack", bargap=0)
    legend_above(figure, **_LEGEND)
    figure.update_xaxes(title_text="step", showgrid=False, range=[timeline.first[0] - 0.5, timeline.last[-1] + 0.5])
    figure.update_yaxes(title_text=f"{unit} waited per step, all ranks", rangemode="tozero")
    return figure


def span_of(first: int, last: int) -> str:
    """Return ``step 7`` or ``steps 10 to 19``."""
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
