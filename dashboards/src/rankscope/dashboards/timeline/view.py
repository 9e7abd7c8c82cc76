"""View of a captured window: timeline of all ranks on a common clock, and the collectives that delayed them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from rankscope.analysis.perfetto.export_result import clock_sentence
from rankscope.dashboards.charts.frame import drawn_note
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.hosts import UNKNOWN_HOST, known_hosts, rows_by_host, several_hosts
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import GOING_ON, RunSummary
from rankscope.dashboards.model.drawn import Cell, DrawnFigure, FigureData
from rankscope.dashboards.model.page import (
    AdviceItem,
    Block,
    FigureBlock,
    Group,
    Legend,
    Part,
    Request,
    Section,
    Text,
    choice,
    rank_choice,
    rows_choice,
)
from rankscope.dashboards.model.state import PageState, run_path
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.timeline.data import Collective, WindowData
from rankscope.dashboards.timeline.figures import STYLES, Arrival, Lanes, arrival_bars, cut_into_columns, kind_label, timeline
from rankscope.dashboards.timeline.kernels import kernel_section
from rankscope.dashboards.timeline.lanes import DETAIL_UP_TO, collective_label, lanes_of, representatives
from rankscope.dashboards.timeline.parts import NO_VALUE, Numbers
from rankscope.dashboards.timeline.windows import Window
from rankscope.dashboards.words.wording import count, utc_time
from rankscope.runs.control import MAX_STEPS

STEPS: Final = 3


def export_panel(run: RunSummary, window: Window | None, perfetto_url: str | None) -> Block:
    """Return the panel that opens the shown window in Perfetto, or saves it as a file for it."""
    path = shlex.quote(run.path)
    steps = "" if window is None else f" --steps {window.first}:{window.past}"
    return Section(
        name="perfetto",
        title="Open in Perfetto",
        help="All events of the window on the common clock, with arrows to the ranks that waited, and kept raw traces. "
        f"{'' if perfetto_url is None else f'The browser hands them to {urlsplit(perfetto_url).netloc} in a new tab. '}"
        "Perfetto opens a saved file with Open trace file. It reads traces in the browser and uploads nothing.",
        blocks=[
            Request(
                [
                    *([] if perfetto_url is None else [("Open in Perfetto", "perfetto", perfetto_url)]),
                    ("Save the window", "export", f"{run_path(run.run_id)}/perfetto"),
                ]
            ),
            AdviceItem(f"The same, with the verdict on top: rankscope export {path} --perfetto window.json.gz{steps}"),
        ],
    )


def capture_panel(run: RunSummary, *, may_capture: bool) -> Block:
    """Return the panel that requests a capture of the next steps of a live run; without the button where it is refused."""
    request = Request(
        [("Request a capture", "capture", f"/api{run_path(run.run_id)}/capture")], ("capture-steps", "Steps", STEPS, MAX_STEPS)
    )
    return Section(
        name="capture",
        title="Request a capture",
        help="All ranks profile the same steps, a few seconds ahead. The new window then appears in the list of windows.",
        blocks=[
            *([request] if may_capture else []),
            AdviceItem(f"On the command line: rankscope capture {shlex.quote(run.path)} --steps {STEPS}"),
        ],
    )


_NONE: Final = (
    "No window has been captured yet:<br>rankscope run profiles one from step 20 on; rankscope capture RUN requests one."
)
_NAMED_STEPS: Final = 12
_LISTED: Final = 400
"""Maximum number of collectives in the choice, the costliest first. Any other can be chosen by a click."""


def _window(run: RunData, state: PageState) -> tuple[Window, WindowData] | None:
    window = run.source.windows(run.summary).chosen(state.window)
    return None if window is None else (window, run.source.window(run.summary, window))


def _span(state: PageState, data: WindowData) -> tuple[int, int]:
    """Return the shown span in nanoseconds; the whole window if the address has no span within it."""
    extent = data.info.extent_ns
    if state.span is None:
        return 0, extent
    first, past = state.span[0] * 1000, min(state.span[1] * 1000, extent)
    return (first, past) if first < past else (0, extent)


def _chosen(state: PageState, data: WindowData) -> int | None:
    """Return the index of the collective in the address, else of the one with the longest wait; ``None`` if unknown."""
    collective = data.collective(state.collective)
    if collective is not None:
        return collective
    spreads = [
        (candidate.spread_ns, -at) for at, candidate in enumerate(data.info.collectives) if candidate.spread_ns is not None
    ]
    return -max(spreads)[1] if spreads else None


def _hosts(run: RunData) -> int:
    """Return the number of hosts that can have a lane each; 0 for few ranks, which are all shown in detail."""
    return several_hosts(run.analysis) if len(run.analysis.ranks) > DETAIL_UP_TO else 0


def _by_host(run: RunData, state: PageState) -> bool:
    return _hosts(run) > 0 and rows_by_host(run.analysis, state.rows)


def _of_several(each: int, *, by_host: bool) -> str:
    return "of each host" if by_host else f"of every {each} ranks"


def _picture(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    chosen = _window(run, state)
    if chosen is None:
        return drawn_note(_NONE, colors)
    window, data = chosen
    first, past = _span(state, data)
    by_host = _by_host(run, state)
    lanes, each = lanes_of(run, window, data, picked=state.rank, span=_span(state, data), by_host=by_host)
    frames = None if state.collective is None else _frames(data, lanes, data.collective(state.collective))
    picture = timeline(lanes, first, past, colors, bounds=_bounds(data, window), chosen=frames)
    picture.update_layout(uirevision=f"{window.first} {state.span} {state.rank}")
    waited_text = f"; {_of_several(each, by_host=by_host)} the one that waited least" if each > 1 else ""
    ranks = count(len(data.info.ranks), "rank")
    sentence = f"Activity of {ranks} in {window.steps}, from {first / 1e6:,.2f} to {past / 1e6:,.2f} ms{waited_text}"
    return DrawnFigure(picture, _times(lanes, first, past), sentence)


def _times(lanes: Lanes, first: int, past: int) -> FigureData:
    """Return a table of the time per lane and kind, in microseconds."""
    times = cut_into_columns(lanes.parts, len(lanes.labels), first, past, 1).times[:, 0] / 1000
    kinds = np.flatnonzero(times.any(axis=0)).tolist()
    columns = ("rank", "lane", *(f"{kind_label(kind).lower()} [us]" for kind in kinds))
    rows: list[tuple[Cell, ...]] = [
        (rank, label, *(float(times[at, kind]) for kind in kinds))
        for at, (rank, label) in enumerate(zip(lanes.ranks, lanes.labels, strict=True))
    ]
    return FigureData(columns, rows)


def _bounds(data: WindowData, window: Window) -> list[tuple[str, int]]:
    """Return names and begin times of steps; none if the window has more than ``_NAMED_STEPS``."""
    return [(f"step {step}", begin) for step, begin, _ in data.info.steps] if window.past - window.first <= _NAMED_STEPS else []


def _frames(data: WindowData, lanes: Lanes, number: int | None) -> Numbers | None:
    if number is None:
        return None
    of_collective = data.calls.collective == number
    times = {
        data.info.ranks[row]: (start, end)
        for row, start, end in zip(
            data.calls.row[of_collective].tolist(),
            data.calls.arrival[of_collective].tolist(),
            data.calls.end[of_collective].tolist(),
            strict=True,
        )
    }
    rows = [
        (lane, *times[rank])
        for lane, (rank, label) in enumerate(zip(lanes.ranks, lanes.labels, strict=True))
        if rank in times and label.startswith("rank ")
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _arrivals(run: RunData, state: PageState, colors: Palette) -> DrawnFigure:
    chosen = _window(run, state)
    number = None if chosen is None else _chosen(state, chosen[1])
    if chosen is None or number is None:
        text = _NONE if chosen is None else "No collective of this window could be matched across its ranks."
        return drawn_note(text, colors)
    data = chosen[1]
    collective = data.info.collectives[number]
    of_collective = data.calls.collective == number
    rows = zip(*(getattr(data.calls, name)[of_collective].tolist() for name in ("row", "arrival", "end", "wait")), strict=True)
    arrivals = sorted(
        (
            Arrival(
                rank=data.info.ranks[row],
                arrival_ms=(arrival - collective.first_ns) / 1e6,
                wait_ms=None if wait == NO_VALUE else wait / 1e6,
                end_ms=(end - collective.first_ns) / 1e6,
            )
            for row, arrival, end, wait in rows
        ),
        key=lambda arrival: (arrival.arrival_ms, arrival.rank),
    )
    table = FigureData(
        ("rank", "arrival after the first [ms]", "waiting [ms]", "end after the first arrival [ms]"),
        [(row.rank, row.arrival_ms, row.wait_ms, row.end_ms) for row in arrivals],
    )
    return DrawnFigure(arrival_bars(arrivals, colors, last=collective.last, picked=state.rank), table, _sentence(collective))


def _sentence(collective: Collective) -> str:
    if not collective.matched:
        return f"{collective_label(collective)}: not found on all ranks of its group"
    if collective.spread_ns is None:
        return f"{collective_label(collective)}: in this operation ranks do not all wait for each other"
    last = "" if collective.last is not None else ": the last ranks arrived too close together to name one"
    return f"{collective_label(collective)} ({count(collective.ranks, 'rank')}, step {collective.step}){last}"


def _facts(run: RunData, state: PageState) -> list[Block]:
    """Return facts on the window (matched collectives, clock quality, omissions), and choices of collective and step."""
    chosen = _window(run, state)
    if chosen is None:
        return []
    window, data = chosen
    info = data.info
    by_host, hosts = _by_host(run, state), known_hosts(run.analysis)
    each = representatives(
        data.parts, len(info.ranks), [hosts.get(rank, UNKNOWN_HOST) for rank in info.ranks] if by_host else None
    )[1]
    of_several = _of_several(each, by_host=by_host)
    windows = run.source.windows(run.summary)
    lines = [
        (
            f"Window of {window.steps}, one of {len(windows.windows):,}, from {utc_time(window.start_unix_ns)}: "
            f"{len(info.ranks):,} of {windows.recorded:,} ranks captured, "
            f"{info.matched:,} collectives matched, {info.unmatched:,} not. "
            f"{clock_sentence(info.clock)}"
        ),
        _raw_sentence(data),
        *([f"Shown: {of_several} the one that waited least; any other can be picked."] if each > 1 else []),
        *(f"Left out: {text}." for text in info.left_out),
    ]
    choices = [{"value": collective.key, "label": collective_label(collective)} for collective in _costliest(data)]
    full_range = {"value": f"0-{-(-info.extent_ns // 1000)}", "label": "all of it"}
    spans = [
        full_range,
        *({"value": f"{begin // 1000}-{-(-end // 1000)}", "label": f"step {step}"} for step, begin, end in info.steps),
    ]
    return [
        Group(
            [
                choice("collective", "Collective", choices, state, width=420, nothing="the longest wait"),
                choice("span", "Shown", spans, state, nothing="all of it"),
            ],
            "tools",
        ),
        *(Text(line, "help") for line in lines),
    ]


def _raw_sentence(data: WindowData) -> str:
    rank_count = len(data.info.raw_ranks)
    if rank_count == len(data.info.ranks):
        return "Raw traces of all ranks were kept: all kernels, copies and idle times are shown."
    subject = f"{rank_count} ranks were" if rank_count else "the ranks were not"
    return (
        f"Raw traces of {subject} kept: without them, time outside of collectives is not divided. "
        "Keep them with rankscope capture RUN --keep-trace or rankscope run --keep-traces N."
    )


def _costliest(data: WindowData) -> list[Collective]:
    return sorted(data.info.collectives, key=lambda collective: (-(collective.spread_ns or 0), collective.first_ns))[:_LISTED]


def _legend(run: RunData, state: PageState) -> list[Block]:
    """Return the legend of the activities that the window has."""
    chosen = _window(run, state)
    kinds = [] if chosen is None else np.unique(chosen[1].parts.kind).tolist()
    return [Legend([(STYLES[kind].color, STYLES[kind].label) for kind in kinds])]


def _pick(run: RunData, state: PageState, point: Mapping[str, Any]) -> PageState:
    """Select the collective at the clicked point; if there is none, the rank of the lane."""
    chosen = _window(run, state)
    if chosen is None:
        return state
    window, data = chosen
    lanes, _ = lanes_of(run, window, data, picked=state.rank, span=_span(state, data), by_host=_by_host(run, state))
    lane, at = int(point["y"]), round(float(point["x"]) * 1e6)
    parts = lanes.parts
    hits = np.flatnonzero((parts.lane == lane) & (parts.start < at) & (parts.end >= at))
    number = int(parts.about[hits[0]]) if len(hits) else NO_VALUE
    if 0 <= number < len(data.info.collectives):
        return replace(state, collective=data.info.collectives[number].key)
    return replace(state, rank=lanes.ranks[lane])


def _zoom(state: PageState, across: tuple[float, float] | None) -> PageState:
    """Select the dragged span in microseconds, or all of it for ``None``. ``across`` is in milliseconds, as the axis is."""
    if across is None:
        return replace(state, span=None)
    first = max(0, int(across[0] * 1000))
    return replace(state, span=(first, max(first + 1, -int(-across[1] * 1000 // 1))))


def _blocks(run: RunData, state: PageState) -> list[Block]:
    windows = run.source.windows(run.summary)
    goes_on = run.summary.status in GOING_ON
    capture = [capture_panel(run.summary, may_capture=run.may_capture)] if goes_on else []
    if not windows.windows:
        return [
            Section(
                name="timeline",
                title="No window has been captured yet",
                help="A timeline shows steps that were profiled on all ranks. The recorder profiles three steps from step 20 on "
                "(on a GPU, once its budget covers it), then as often as its budget allows; --window-steps 0 switches that off.",
                blocks=[
                    AdviceItem(
                        f"Profile the next steps of a live run: rankscope capture {shlex.quote(run.summary.path)} --steps 3"
                    )
                ]
                if not goes_on
                else [],
            ),
            *capture,
        ]
    options = [
        {"value": str(window.first), "label": f"{window.steps} · {count(window.ranks, 'rank')}"}
        for window in reversed(windows.windows)
    ]
    shown = windows.chosen(state.window)
    chosen = state if shown is None or state.window is None else replace(state, window=shown.first)
    return [
        Section(
            name="timeline",
            title="What every rank did when",
            help="All ranks on one clock.",
            use="Drag to zoom, down to single events; double-click to see all again. "
            "Click a collective to see it on all ranks, any other part to pick its rank and see its groups and streams.",
            blocks=[
                Part("timeline-legend", lambda: _legend(run, state)),
                FigureBlock(
                    name="timeline-lanes",
                    reads=("window", "span", "rank", "collective", "rows"),
                    label="Lanes of all ranks over the time of the window, by what the time was spent on",
                    draw=partial(_picture, run, state),
                    height=420,
                    pick=partial(_pick, run, state),
                    zoom=partial(_zoom, state),
                ),
                Part("timeline-facts", lambda: _facts(run, state)),
            ],
            tools=[
                choice("window", "Window", options, chosen, width=230, nothing=options[0]["label"]),
                *rows_choice(hosts=_hosts(run), by_host=_by_host(run, state)),
                rank_choice(state),
            ],
        ),
        Section(
            name="arrival",
            title="Who came last",
            help="The chosen collective, else the one with the longest wait, on all its ranks, in order of arrival. No rank can "
            "finish it before the last one arrives.",
            blocks=[
                Legend([("straggler_wait", "Waiting"), ("exposed_communication", "Transfer"), ("unmatched", "Both")]),
                FigureBlock(
                    name="timeline-arrival",
                    reads=("window", "rank", "collective"),
                    label="Bars of every rank in the collective, from its arrival to its end",
                    draw=partial(_arrivals, run, state),
                ),
            ],
        ),
        *([] if shown is None else [kernel_section(run, state, shown)]),
        export_panel(run.summary, shown, run.perfetto_url),
        *capture,
    ]


VIEW: Final = View(
    slug="timeline",
    label="Timeline",
    help=Help(
        shows="A captured window: the activity of each rank, all on one clock, with the collectives linked.",
        formula="Clocks are corrected by the ends of matched collectives, the same moment on all ranks. Waiting: from a rank's "
        "arrival to that of the last (on a GPU: what its kernel took longer than the shortest). Transfer: the rest. "
        "Where a cell covers several activities, it has the colour of the longest.",
        do="Look for the rank that does not wait while the others do, and for what it does before it arrives. Differences "
        "below the clock's residual mean nothing. For threads, stacks and arrows, open the window in Perfetto.",
    ),
    blocks=_blocks,
)
