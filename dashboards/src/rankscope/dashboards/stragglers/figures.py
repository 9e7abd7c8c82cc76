"""Figures of imposed waits: by origin, by victim, and by cause over ranks and steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.dashboards.charts.bars import Look, row_bars
from rankscope.dashboards.charts.causes import CAUSE_LOOKS
from rankscope.dashboards.charts.frame import framed, legend_above, marked_label, note, rank_label, rows_axis
from rankscope.dashboards.charts.heatmap import TOOLS_PX, coloring
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.stragglers.data import CHARGED, BlamedRank, CauseTimeline, WaitGroup
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import in_unit, time_unit

MOST_BARS: Final = 10
"""Maximum number of ranks shown, the costliest first. The table has all of them."""

ALONE: Final = "The job has one rank: there is no other rank to wait for."
NO_RANK_WAITED: Final = "No rank was found waiting for another one."
NO_EVIDENCE: Final = "Waits are not known: this takes steps with collectives, recorded on at least two ranks, and after warm-up."


Hosts = Mapping[int, str]
"""Hosts of the rows of a figure, by the rank that stands for each."""


def imposed_bars(
    imposed: Sequence[ImposedWait],
    colors: Palette,
    *,
    blamed: Collection[int] = (),
    picked: int | None = None,
    hosts: Hosts | None = None,
) -> go.Figure:
    """Draw bars of the ranks that imposed the most wait, split into wait that cost time and wait hidden by compute.

    ``hosts``: the rows are hosts. ``blamed`` and ``picked`` are then the ranks that stand for hosts.
    """
    if not imposed:
        return note(NO_EVIDENCE, colors)
    top = [row for row in sorted(imposed, key=lambda row: row.imposed_us, reverse=True) if row.imposed_us > 0][:MOST_BARS]
    if not top:
        return note(NO_RANK_WAITED, colors)
    size, unit = time_unit(top[0].imposed_us)
    exposed = np.array([row.imposed_exposed_us for row in top]) / size
    total = np.array([row.imposed_us for row in top]) / size
    names = _names([row.rank for row in top], hosts)
    figure = go.Figure()
    for look, values in (
        (Look("Cost time", "exposed_communication", "x"), exposed),
        (Look("Hidden by compute", "overlap", "/"), total - exposed),
    ):
        hover = f"<b>{_what(hosts)} %{{hovertext}}</b><br>{look.label}: %{{x:,.2f}} of %{{customdata:,.2f}} {unit}<extra></extra>"
        row_bars(figure, look, values, colors, hovertext=names, customdata=total, hovertemplate=hover)
    framed(figure, colors, height=64 + 36 * max(len(top), 2))
    figure.update_layout(barmode="stack", bargap=0.28, showlegend=False)
    shares = ["" if row.share is None else f" · {100 * row.share:.0f}%" for row in top]
    texts = [f"{in_unit(row.imposed_us, (size, unit))}{share}" for row, share in zip(top, shares, strict=True)]
    rows_axis(figure, _labels([row.rank for row in top], texts, blamed, picked, hosts))
    figure.update_xaxes(title_text=f"{unit} imposed on the other ranks", rangemode="tozero")
    return figure


def _what(hosts: Hosts | None) -> str:
    return "rank" if hosts is None else "host"


def _names(ranks: Sequence[int], hosts: Hosts | None) -> list[str]:
    """Return what the bars are of, for their hover text."""
    return [str(rank) if hosts is None else plotly_text(hosts[rank]) for rank in ranks]


def _labels(
    ranks: Sequence[int], values: Sequence[str], blamed: Collection[int], picked: int | None, hosts: Hosts | None
) -> list[str]:
    """Return the labels of bars, with the value below the rank or host: a narrow screen has no room beside the bars."""
    labels = [
        rank_label(rank, blamed, picked)
        if hosts is None
        else marked_label(plotly_text(hosts[rank], _NAME), blamed=rank in blamed, picked=rank == picked)
        for rank in ranks
    ]
    return [f"{label}<br>{value}" for label, value in zip(labels, values, strict=True)]


NO_WAIT_IN_GROUP: Final = "No rank of this group was found waiting for another one."
_TICKS: Final = 24
_NAME: Final = 28
"""Maximum length of a host's name at the axis. The hover text has all of it."""


def wait_cells(group: WaitGroup) -> NDArray[np.float32]:
    """Return waits [origins, victims] in microseconds, the layout of the terminal's table.

    For ranks the diagonal is NaN: a rank does not wait for itself.
    """
    cells = np.zeros((len(group.names), len(group.names)), np.float32)
    cells[group.origins, group.victims] = group.waited_us
    if not group.by_host:
        np.fill_diagonal(cells, np.nan)
    return cells


def wait_matrix(group: WaitGroup, worst: Sequence[int], colors: Palette, *, marked: Collection[str] = ()) -> go.Figure:
    """Draw a heat map of ``wait_cells``. Rows of the ``marked`` names, of ranks or hosts, are framed.

    ``worst``: rank that a click on the row of each name picks.
    """
    cells = wait_cells(group)
    if not np.nansum(cells):
        return note(NO_WAIT_IN_GROUP, colors)
    size, unit = time_unit(float(np.nanmax(cells)))
    count, what = len(group.names), "host" if group.by_host else "rank"
    names = [plotly_text(name) for name in group.names]
    picks = [f", worst rank {rank}" if group.by_host else "" for rank in worst]
    figure = go.Figure(
        go.Heatmap(
            z=cells / np.float32(size),
            zmin=0,
            **coloring(unit, colors),
            hoverongaps=False,
            xgap=1 if count <= 64 else 0,
            ygap=1 if count <= 64 else 0,
            # The template refers to axis names, which are sent once, not once per cell.
            hovertemplate=f"<b>%{{x}}</b> waited %{{z:,.2f}} {unit}<br>for <b>%{{y}}</b><extra></extra>",
            x=[f"{what} {name}" for name in names],
            y=[f"{what} {name}{picked}" for name, picked in zip(names, picks, strict=True)],
        )
    )
    framed(figure, colors, height=min(620, max(240, 130 + 24 * count)))
    every = max(1, -(-count // _TICKS))
    shown = range(0, count, every)
    ticks = {
        "type": "category",
        "tickmode": "array",
        "tickvals": list(shown),
        "ticktext": [plotly_text(group.names[at], _NAME + 1) for at in shown],
        "showgrid": False,
        "zeroline": False,
    }
    figure.update_xaxes(title_text=f"{what} that waited", **ticks)
    figure.update_yaxes(title_text=f"because of {what}", autorange="reversed", **ticks)
    figure.update_layout(plot_bgcolor=colors.missing, margin_t=TOOLS_PX)
    for at, name in enumerate(group.names):
        if name in marked:
            figure.add_shape(
                type="rect", x0=-0.5, x1=count - 0.5, y0=at - 0.5, y1=at + 0.5, line={"color": colors.emphasis, "width": 2}
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


def cause_bars(
    ranks: Sequence[BlamedRank],
    colors: Palette,
    *,
    blamed: Collection[int] = (),
    picked: int | None = None,
    hosts: Hosts | None = None,
) -> go.Figure:
    """Draw horizontal stacked bars per cause for the ranks (or ``hosts``, as in ``imposed_bars``) that imposed the most wait."""
    known = [rank for rank in ranks if rank.steps_us is not None]
    if not known:
        return note(NO_STEPS if not ranks or ranks[0].steps_us is None else NO_CAUSES, colors)
    top = sorted((rank for rank in known if rank.steps_us), key=lambda rank: -(rank.steps_us or 0.0))[:MOST_CAUSE_BARS]
    if not top:
        return note(NO_CAUSES, colors)
    longest = top[0].steps_us or 0.0
    size, unit = time_unit(longest)
    figure = go.Figure()
    for key, values in _visible({key: [rank.causes_us.get(key, 0.0) for rank in top] for key in CHARGED}).items():
        cause = CAUSE_LOOKS[key]
        row_bars(
            figure,
            cause,
            values / size,
            colors,
            hovertext=_names([rank.rank for rank in top], hosts),
            hovertemplate=f"<b>{_what(hosts)} %{{hovertext}}</b><br>{cause.label}: %{{x:,.2f}} {unit}<extra></extra>",
        )
    framed(figure, colors, height=110 + 36 * max(len(top), 2))
    figure.update_layout(barmode="stack", bargap=0.28)
    legend_above(figure, **_LEGEND)
    texts = [in_unit(rank.steps_us or 0.0, (size, unit)) for rank in top]
    rows_axis(figure, _labels([rank.rank for rank in top], texts, blamed, picked, hosts))
    figure.update_xaxes(title_text=f"{unit} that the other ranks waited", rangemode="tozero")
    return figure


def _visible(causes: Mapping[str, Sequence[float]]) -> dict[str, NDArray[np.float64]]:
    """Return the values by cause, in stacking order. Causes that no bar shows, below 1% of the highest, count as unknown."""
    known = {key: np.array(causes[key], np.float64) for key in CHARGED if key in causes}
    whole = sum(known.values(), start=np.zeros(1))
    shown = {key: values for key, values in known.items() if key != "unknown" and values.max() >= 0.01 * whole.max()}
    rest = whole - sum(shown.values(), start=np.zeros(1))
    return {**shown, **({"unknown": rest} if rest.max() >= 1e-6 * whole.max() else {})}


def cause_timeline(timeline: CauseTimeline | None, colors: Palette) -> go.Figure:
    """Draw stacked bars of imposed wait per step, by cause. Hover text names the rank that imposed the most."""
    if timeline is None:
        return note(NO_STEPS, colors)
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
        cause = CAUSE_LOOKS[key]
        figure.add_bar(
            x=(first + last) / 2,
            y=(values / size).astype(np.float32),
            width=last - first + 1,
            name=cause.label,
            marker=cause.marker(colors),
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
