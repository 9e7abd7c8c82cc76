"""Lanes of the timeline: detailed lanes for the picked rank or for all of a few ranks, and one lane per other rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.analysis.perfetto.step_tracks import phases_in_order
from rankscope.analysis.result.text import size
from rankscope.analysis.trace.intervals import EMPTY
from rankscope.dashboards.data.hosts import UNKNOWN_HOST, host_rows, known_hosts
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.timeline.data import Collective, WindowData
from rankscope.dashboards.timeline.figures import FIRST_PHASE, MOST_LANES, Lanes
from rankscope.dashboards.timeline.parts import NO_VALUE, ActivityKind, Numbers, Parts, RecordedIntervals, join_parts, parts_of
from rankscope.dashboards.timeline.windows import Window
from rankscope.dashboards.words.inert import plotly_text
from rankscope.runs.records import PHASES

DETAIL_UP_TO: Final = 4
"""Up to this many ranks, all are shown in detail."""


def lanes_of(
    run: RunData, window: Window, data: WindowData, *, picked: int | None, span: tuple[int, int], by_host: bool = False
) -> tuple[Lanes, int]:
    """Return the lanes in ``span`` (nanoseconds), and the number of ranks that each lane of the overview represents.

    ``by_host``: a lane represents the ranks of a host.
    """
    first, past = span
    ranks = data.info.ranks
    detailed = ranks if len(ranks) <= DETAIL_UP_TO else [picked] if picked in ranks else []
    labels: list[str] = []
    of_ranks: list[int] = []
    parts: list[Parts] = []
    for rank in detailed:
        for name, group_parts in _detail(run, window, data, rank):
            labels.append(plotly_text(name) or f"rank {rank}")
            of_ranks.append(rank)
            parts.append(_as_lane(group_parts.of(np.array([0]), first, past), len(labels) - 1))
    top = len(labels)
    hosts = known_hosts(run.analysis)
    rows, each = representatives(data.parts, len(ranks), [hosts.get(rank, UNKNOWN_HOST) for rank in ranks] if by_host else None)
    if len(detailed) < len(ranks):
        overview = data.parts.of(rows, first, past)
        parts.append(Parts(overview.lane + len(labels), overview.start, overview.end, overview.kind, overview.about))
        labels += [f"rank {ranks[row]}" for row in rows.tolist()]
        of_ranks += [ranks[row] for row in rows.tolist()]
    texts = [plotly_text(name) for name in (*map(collective_label, data.info.collectives), *data.info.names)]
    return Lanes(labels, join_parts(parts), texts, of_ranks, picked, hosts, by_host, top), each


def representatives(parts: Parts, count: int, hosts: Sequence[str] | None = None) -> tuple[Numbers, int]:
    """Return the lanes to draw and the group size. Of each group of neighbours the one that waited least is drawn.

    ``hosts``: those of the lanes, in which case the ranks of a host are neighbours, and one of each host is drawn.
    """
    groups: list[list[int]] = host_rows(hosts, hosts).members if hosts else [[row] for row in range(count)]
    chunk = max(1, -(-len(groups) // MOST_LANES))
    groups = [[row for group in groups[at : at + chunk] for row in group] for at in range(0, len(groups), chunk)]
    waits = np.isin(
        parts.kind, (ActivityKind.WAITING, ActivityKind.COMMUNICATION)
    )  # the wait of an unmatched collective is in its communication
    waited = np.bincount(parts.lane[waits], weights=(parts.end - parts.start)[waits], minlength=count)
    rows = [min(group, key=lambda row: float(waited[row])) for group in groups]
    return np.array(rows, dtype=np.int64), max(map(len, groups), default=1)


def collective_label(collective: Collective) -> str:
    """Return a collective in one line: ``all_reduce · default_pg · 17, 25 MiB, last: rank 7, 3.20 ms after the first``."""
    words = [collective.label]
    if collective.bytes is not None:
        words.append(size(collective.bytes))
    if collective.last is not None and collective.spread_ns is not None:
        words.append(f"last: rank {collective.last}, {collective.spread_ns / 1e6:,.2f} ms after the first")
    return ", ".join(words)


def _detail(run: RunData, window: Window, data: WindowData, rank: int) -> list[tuple[str, Parts]]:
    """Return name and parts of the lanes of one rank: the whole rank, host phases, each process group, each stream."""
    row = data.info.ranks.index(rank)
    detail = [("", _alone(data.parts, row)), ("host: phases", _phases(run, window, data, rank))]
    calls = data.calls
    groups = np.array([collective.group for collective in data.info.collectives])
    of_row = calls.row == row
    for group in sorted(set(groups[calls.collective[of_row]].tolist())):
        of_group = of_row & (groups[calls.collective] == group)
        spans = np.column_stack((calls.arrival[of_group], calls.end[of_group]))
        recorded = RecordedIntervals(EMPTY, spans, calls.wait[of_group], calls.collective[of_group], EMPTY, EMPTY, is_whole=False)
        detail.append((f"group {group}", parts_of(0, recorded)))
    events = data.events
    for lane, (of_rank, name) in enumerate(data.info.lanes):
        if of_rank == rank:
            of_group = events.lane == lane
            about = events.name[of_group] + len(data.info.collectives)
            detail.append(
                (
                    name,
                    Parts(
                        np.zeros(len(about), np.int64), events.start[of_group], events.end[of_group], events.kind[of_group], about
                    ),
                )
            )
    return [(name, parts) for name, parts in detail if len(parts.lane)]


def _phases(run: RunData, window: Window, data: WindowData, rank: int) -> Parts:
    """Return the phases of a rank's steps, placed one after the other in their usual order: records have only durations."""
    offset = int(data.offset_ns[data.info.ranks.index(rank)])
    rows = [
        (0, begin - offset, end - offset, FIRST_PHASE + PHASES.index(phase), NO_VALUE)
        for step in run.source.window_steps(run.summary, window, rank)
        for phase, begin, end in phases_in_order(step, step.start_unix_ns, step.start_unix_ns + round(step.wall_us * 1000))
    ]
    return Parts(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)


def _alone(parts: Parts, row: int) -> Parts:
    return _as_lane(Parts(*(getattr(parts, name)[parts.lane == row] for name in Parts.__slots__)), 0)


def _as_lane(parts: Parts, lane: int) -> Parts:
    return Parts(np.full(len(parts.lane), lane), parts.start, parts.end, parts.kind, parts.about)
