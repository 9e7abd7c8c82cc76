"""Figures of a window: the lanes of all ranks on a common clock, and the arrivals at one collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.base.text import shortened
from rankscope.dashboards.charts.bar_names import LONGEST_LABEL
from rankscope.dashboards.charts.bars import bar_marker, row_bars
from rankscope.dashboards.charts.frame import framed, note, outlined_font, rank_label, rows_axis
from rankscope.dashboards.charts.palette import BarStyle, Palette
from rankscope.dashboards.data.hosts import host_labels
from rankscope.dashboards.timeline.parts import NO_VALUE, ActivityKind, Numbers, Parts
from rankscope.dashboards.words.inert import plotly_text
from rankscope.runs.records import PHASES

COLUMNS: Final = 400
MOST_LANES: Final = 128
"""Maximum number of lanes. With more ranks only some are drawn."""
MOST_BARS: Final = 1500
"""With more parts than this a heat map is drawn, because each bar is an element of the page."""
_MOST_TEXT: Final = 600_000
"""Maximum total length of hover texts. Beyond it a cell's text is one word and the number of the collective."""
_NS_PER_MS: Final = 1e6

FIRST_PHASE: Final = len(ActivityKind)
"""Kinds from this value on are phases of a step, in the order of ``PHASES``."""
NOTHING: Final = FIRST_PHASE + len(PHASES)


STYLES: Final = (
    BarStyle("Compute", "compute"),
    BarStyle("Compute hiding communication", "overlap", "/"),
    BarStyle("Transfer", "exposed_communication", "x"),
    BarStyle("Waiting for later ranks", "straggler_wait", "\\"),
    BarStyle("Communication, including waiting", "unmatched", "|"),
    BarStyle("Copies", "exposed_memcpy", "."),
    BarStyle("Idle", "idle"),
    BarStyle("In a step, outside of collectives", "not_separated", "-"),
)
"""Looks, in the order of ``ActivityKind``."""
_WORDS: Final = ("Compute", "Overlap", "Transfer", "Waiting", "Communication", "Copies", "Idle", "In a step")
"""Short names, in the order of ``ActivityKind``."""
_PHASE_LABELS: Final = {"data": "Data", "h2d": "Copy to the device", "between_steps": "Between steps"}


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes to draw: labels from the top, and the parts of each lane."""

    labels: list[str]
    parts: Parts
    """``kind``: ``ActivityKind``, or a phase from ``FIRST_PHASE`` on. ``about``: index in ``texts``, or ``NO_VALUE`` for none."""
    texts: Sequence[str]
    """Names of parts."""
    ranks: list[int]
    """Rank of each lane."""
    picked: int | None = None
    """Rank whose lane is marked."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Hosts of ranks, as far as known."""
    by_host: bool = False
    """True if a lane stands for its host."""
    detailed: int = 0
    """Number of lanes at the top that show ranks in detail; all of them are labelled."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Lanes cut into columns of time."""

    edges: Numbers
    """[columns + 1], nanoseconds; column ``n`` reaches from edge ``n`` to ``n + 1``."""
    times: NDArray[np.float64]
    """[lanes, columns, kinds], nanoseconds; the sum over columns equals the duration of the parts."""
    prevailing: NDArray[np.uint8]
    """[lanes, columns], the kind with the most time; ``NOTHING`` if the cell is empty."""
    about: Numbers
    """[lanes, columns], ``about`` of a part of that kind."""


def kind_label(kind: int) -> str:
    """Return the display name of a kind or phase."""
    if kind < FIRST_PHASE:
        return STYLES[kind].label
    if kind == NOTHING:
        return "No record"
    name = PHASES[kind - FIRST_PHASE]
    return _PHASE_LABELS.get(name, name.capitalize())


def cut_into_columns(parts: Parts, lanes: int, first: int, past: int, columns: int = COLUMNS) -> Cells:
    """Cut ``parts``, which lie in ``[first, past)`` nanoseconds, into at most ``columns`` columns of about equal width."""
    columns = min(columns, past - first)
    edges = first + np.linspace(0, past - first, columns + 1).round().astype(np.int64)
    edges[-1] = past  # rounding may miss it after a clock jump of years
    begin = np.searchsorted(edges, parts.start, side="right") - 1
    until = np.searchsorted(edges, parts.end, side="left")
    counts = np.maximum(until - begin, 0)
    part_of_cell = np.repeat(np.arange(len(parts.lane)), counts)
    column = np.arange(len(part_of_cell)) - np.repeat(np.cumsum(counts) - counts, counts) + begin[part_of_cell]
    inside = np.minimum(parts.end[part_of_cell], edges[column + 1]) - np.maximum(parts.start[part_of_cell], edges[column])
    lane, kind = parts.lane[part_of_cell], parts.kind[part_of_cell]
    cell = lane * columns + column
    flat = np.bincount(cell * NOTHING + kind, weights=inside, minlength=lanes * columns * NOTHING).astype(np.float64)
    times = flat.reshape(lanes, columns, NOTHING)
    prevailing = np.where(times.any(axis=2), times.argmax(axis=2), NOTHING).astype(np.uint8)
    about = np.full(lanes * columns, NO_VALUE)
    shown = prevailing.ravel()[cell] == kind
    about[cell[shown]] = parts.about[part_of_cell][shown]
    return Cells(edges, times, prevailing, about.reshape(lanes, columns))


def timeline(
    lanes: Lanes,
    first: int,
    past: int,
    colors: Palette,
    *,
    bounds: Sequence[tuple[str, int]] = (),
    chosen: NDArray[np.int64] | None = None,
) -> go.Figure:
    """Draw the lanes from ``first`` to ``past`` (nanoseconds since the window began), which contain all of ``lanes.parts``.

    ``bounds``: names and begin times of steps. ``chosen``: [n, 3] lane, begin and end of each framed part.
    """
    if not len(lanes.parts.lane):
        return note("Nothing was recorded in this part of the window.<br>Double-click to see all of it.", colors)
    figure = go.Figure()
    # Keeps the axis at full width, even if no part reaches its ends.
    figure.add_scatter(
        x=[first / _NS_PER_MS, past / _NS_PER_MS], y=[0, 0], mode="lines", line={"width": 0}, hoverinfo="skip", showlegend=False
    )
    if len(lanes.parts.lane) <= MOST_BARS:
        _add_bars(figure, lanes, colors)
    else:
        _add_cells(figure, lanes, first, past, colors)
    if chosen is not None and len(chosen):
        _add_frames(figure, chosen, first, past, colors)
    count = len(lanes.labels)
    framed(figure, colors, height=min(760, max(180, 70 + (30 if count <= 24 else 12) * count)))
    figure.update_layout(
        barmode="overlay",
        uniformtext={"minsize": 9, "mode": "hide"},
        showlegend=False,
        hovermode="closest",
        plot_bgcolor=colors.surface,
    )
    every = max(1, -(-count // 32))
    # Lanes right below the detailed ones have no label: it would overlap theirs.
    ticks = [*range(lanes.detailed), *range(lanes.detailed + (every if lanes.detailed and every > 1 else 0), count, every)]
    if (at := _picked_lane(lanes)) is not None and at not in ticks:
        ticks = sorted([at, *(tick for tick in ticks if tick < lanes.detailed or abs(tick - at) >= every)])
    short_hosts = host_labels(lanes.hosts.values())
    figure.update_yaxes(
        tickmode="array",
        tickvals=ticks,
        ticktext=[_lane_label(lanes, at, short_hosts) for at in ticks],
        range=[count - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        fixedrange=True,  # dragging chooses time
    )
    figure.update_xaxes(title_text="ms since the window began", showgrid=False, zeroline=False)
    for name, at in bounds:
        if first <= at < past:
            figure.add_vline(x=at / _NS_PER_MS, line={"color": colors.muted, "width": 1, "dash": "dot"})
            figure.add_annotation(
                x=at / _NS_PER_MS, y=1, yref="paper", yanchor="bottom", xanchor="left", text=name, showarrow=False,
                font={"size": 11, "color": colors.muted},
            )  # fmt: skip
    figure.update_layout(margin={"l": 8, "r": 8, "t": 24, "b": 8})
    return figure


def _picked_lane(lanes: Lanes) -> int | None:
    """Return the lane of the picked rank as a whole; ``None`` if it is not drawn."""
    picked_lanes = [at for at, rank in enumerate(lanes.ranks) if rank == lanes.picked and lanes.labels[at] == f"rank {rank}"]
    return picked_lanes[-1] if picked_lanes else None


def _lane_text(lanes: Lanes, at: int) -> str:
    """Return the hover text of a lane: its label, and the host of its rank."""
    rank = lanes.ranks[at]
    return f"{lanes.labels[at]} on {plotly_text(lanes.hosts[rank])}" if rank in lanes.hosts else lanes.labels[at]


def _lane_label(lanes: Lanes, at: int, short_hosts: Mapping[str, str]) -> str:
    label, rank = lanes.labels[at], lanes.ranks[at]
    if label != f"rank {rank}":
        return label
    text = rank_label(rank, (), lanes.picked)
    is_host = lanes.by_host and at >= lanes.detailed and rank in lanes.hosts
    if not is_host:
        return text
    return f"{plotly_text(short_hosts.get(lanes.hosts[rank], lanes.hosts[rank]), LONGEST_LABEL)} · {text}"


def _add_bars(figure: go.Figure, lanes: Lanes, colors: Palette) -> None:
    parts = lanes.parts
    for kind in np.unique(parts.kind).tolist():
        of_kind = parts.kind == kind
        label = kind_label(kind)
        names = [lanes.texts[at] if at != NO_VALUE else label for at in parts.about[of_kind].tolist()]
        wide = (parts.end - parts.start)[of_kind]
        figure.add_bar(
            x=wide / _NS_PER_MS,
            base=parts.start[of_kind] / _NS_PER_MS,
            y=parts.lane[of_kind],
            orientation="h",
            width=0.86,
            name=label,
            marker=_marker(kind, colors),
            text=[shortened(name, 28) for name in names],
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
            insidetextfont={"size": 11, **outlined_font(colors)},
            hovertext=[
                f"<b>{_lane_text(lanes, lane)}</b><br>{label}: {length / _NS_PER_MS:,.3f} ms<br>{name}"
                for lane, length, name in zip(parts.lane[of_kind].tolist(), wide.tolist(), names, strict=True)
            ],
            hoverinfo="text",
        )


def _marker(kind: int, colors: Palette) -> dict[str, Any]:
    if kind >= FIRST_PHASE:
        return {"color": phase_color(kind, colors), "line": {"width": 0.5, "color": colors.surface}}
    style = STYLES[kind]
    return {**bar_marker(style, colors), "line": {"width": 0.5, "color": colors.surface}}


def phase_color(kind: int, colors: Palette) -> str:
    """Return the colour of a phase. Neighbouring phases alternate between two colours; bars have the phase's name."""
    return colors.grid if (kind - FIRST_PHASE) % 2 else colors.missing


def _add_cells(figure: go.Figure, lanes: Lanes, first: int, past: int, colors: Palette) -> None:
    cells = cut_into_columns(lanes.parts, len(lanes.labels), first, past)
    shades = [
        *(getattr(colors, style.color) for style in STYLES),
        *(phase_color(FIRST_PHASE + at, colors) for at in range(len(PHASES))),
        colors.surface,
    ]
    figure.add_heatmap(
        z=cells.prevailing,
        x=(cells.edges[:-1] + cells.edges[1:]) / 2 / _NS_PER_MS,
        y=np.arange(len(lanes.labels)),
        zmin=-0.5,
        zmax=NOTHING + 0.5,
        colorscale=[[(at + side) / len(shades), shade] for at, shade in enumerate(shades) for side in (0, 1)],
        showscale=False,
        text=_hover_texts(cells, lanes),
        hovertemplate="<b>%{text}</b><br>at %{x:,.2f} ms<extra></extra>",
    )


def _hover_texts(cells: Cells, lanes: Lanes) -> NDArray[np.object_]:
    """Return lane, kind and name for each cell; shortened, and without the lane, if the total would exceed ``_MOST_TEXT``.

    An array, not lists: Plotly looks at each item of lists.
    """
    kinds = [kind_label(kind) for kind in range(NOTHING + 1)]
    names = [f"<br>{name}" for name in lanes.texts]
    lengths = np.array([len(name) for name in names] or [0])
    if lengths[cells.about[cells.about != NO_VALUE]].sum() + cells.about.size * 40 > _MOST_TEXT:
        kinds = [_WORDS[kind] if kind < FIRST_PHASE else label for kind, label in enumerate(kinds)]
        names = [f" #{at}" for at in range(len(names))]
    names.append("")  # of ``NO_VALUE``, the last
    texts: NDArray[np.object_] = np.array(kinds, object)[cells.prevailing] + np.array(names, object)[cells.about]
    of_lanes = np.array([f"{_lane_text(lanes, at)}<br>" for at in range(len(lanes.labels))], object)
    if sum(map(len, of_lanes.tolist())) * cells.about.shape[1] <= _MOST_TEXT:
        texts = of_lanes[:, np.newaxis] + texts
    return texts


def _add_frames(figure: go.Figure, chosen: NDArray[np.int64], first: int, past: int, colors: Palette) -> None:
    """Draw all frames as one trace: one shape per frame could be thousands."""
    x: list[float | None] = []
    y: list[float | None] = []
    for lane, start, end in chosen.tolist():
        start_ms, right = max(start, first) / _NS_PER_MS, min(end, past) / _NS_PER_MS
        if start_ms < right:
            x += [start_ms, right, right, start_ms, start_ms, None]
            y += [lane - 0.46, lane - 0.46, lane + 0.46, lane + 0.46, lane - 0.46, None]
    figure.add_scatter(x=x, y=y, mode="lines", line={"color": colors.emphasis, "width": 1.5}, hoverinfo="skip", showlegend=False)


SHOWN: Final = 48
"""Maximum number of ranks drawn: the ``_FIRST`` earliest and the rest from the latest. The table has all."""
_FIRST: Final = 12


@dataclass(frozen=True, slots=True)
class Arrival:
    """One rank in a collective. Times are in milliseconds since the first rank's arrival."""

    rank: int
    arrival_ms: float
    wait_ms: float | None
    """``None`` if unknown."""
    end_ms: float


def arrival_bars(arrivals: Sequence[Arrival], colors: Palette, *, last: int | None, picked: int | None = None) -> go.Figure:
    """Draw a bar per rank from its arrival to its end, the earliest at the top. Rank ``last`` has a flag."""
    shown = list(arrivals) if len(arrivals) <= SHOWN else [*arrivals[:_FIRST], *arrivals[_FIRST - SHOWN :]]
    begin = np.array([arrival.arrival_ms for arrival in shown])
    lengths_ms = np.array([arrival.end_ms for arrival in shown]) - begin
    wait = np.array(
        [0.0 if arrival.wait_ms is None else min(arrival.wait_ms, long) for arrival, long in zip(shown, lengths_ms, strict=True)]
    )
    all_known = all(arrival.wait_ms is not None for arrival in shown)
    figure = go.Figure()
    kinds = (
        (BarStyle("Waiting", "straggler_wait", "\\"), begin, wait),
        (
            BarStyle("Transfer", "exposed_communication", "x") if all_known else BarStyle("In the collective", "unmatched", "|"),
            begin + wait,
            lengths_ms - wait,
        ),
    )
    for style, base, length in kinds:
        row_bars(
            figure,
            style,
            length,
            colors,
            base=base,
            width=0.8,
            hovertext=[f"rank {arrival.rank}" for arrival in shown],
            customdata=begin,
            hovertemplate="<b>%{hovertext}</b><br>arrived %{customdata:,.3f} ms after the first<br>"
            + style.label
            + ": %{x:,.3f} ms<extra></extra>",
        )
    framed(figure, colors, height=80 + (26 if len(shown) <= 16 else 13) * max(2, len(shown)))
    labels = [rank_label(arrival.rank, () if last is None else (last,), picked) for arrival in shown]
    if len(shown) < len(arrivals):
        figure.add_hline(y=_FIRST - 0.5, line={"color": colors.muted, "width": 1, "dash": "dot"})
        figure.add_annotation(
            x=1, xref="paper", xanchor="right", y=_FIRST - 0.5, text=f"{len(arrivals) - SHOWN:,} more ranks between",
            showarrow=False, bgcolor=colors.surface, font={"size": 11, "color": colors.muted},
        )  # fmt: skip
    figure.update_layout(barmode="overlay", showlegend=False)
    rows_axis(figure, labels, fixedrange=True)
    figure.update_xaxes(title_text="ms since the first rank arrived", rangemode="tozero")
    return figure
