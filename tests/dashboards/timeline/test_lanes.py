"""Split of a rank's time into parts and of parts into cells: without loss or double counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.blocks import notes

from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.matching import Matching
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.trace.intervals import EMPTY, Spans, join, measure, union
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.timeline.build_window import arrange_window
from rankscope.dashboards.timeline.figures import (
    FIRST_PHASE,
    MOST_BARS,
    MOST_LANES,
    NOTHING,
    SHOWN,
    STYLES,
    Arrival,
    Lanes,
    arrival_bars,
    cut_into_columns,
    kind_label,
    timeline,
)
from rankscope.dashboards.timeline.lanes import representatives
from rankscope.dashboards.timeline.parts import NO_VALUE, ActivityKind, Parts, RecordedIntervals, parts_of
from rankscope.dashboards.timeline.raw_events import RawEvents
from rankscope.runs.records import CollectiveRecord

END = 10_000


def spans(*pairs: tuple[int, int]) -> Spans:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def recorded(
    steps: Spans = EMPTY, calls: Spans = EMPTY, waits: list[int] | None = None, *, compute: Spans = EMPTY, is_whole: bool = False
) -> RecordedIntervals:
    waited = np.array([NO_VALUE] * len(calls) if waits is None else waits, dtype=np.int64)
    return RecordedIntervals(steps, calls, waited, np.arange(len(calls)), compute, EMPTY, is_whole=is_whole)


def rows(parts: Parts) -> list[tuple[int, int, int, int]]:
    return list(zip(parts.start.tolist(), parts.end.tolist(), parts.kind.tolist(), parts.about.tolist(), strict=True))


@st.composite
def some_spans(draw: st.DrawFn) -> Spans:
    pairs = draw(st.lists(st.tuples(st.integers(0, END - 1), st.integers(1, 3_000)), max_size=12))
    return spans(*((begin, min(END, begin + length)) for begin, length in pairs))


@st.composite
def some_parts(draw: st.DrawFn) -> Parts:
    """Draw parts of up to three lanes, disjoint within each lane."""
    collected: list[tuple[int, int, int, int, int]] = []
    for lane in range(draw(st.integers(1, 3))):
        edges = sorted(draw(st.sets(st.integers(0, END), max_size=30)))
        for begin, end in zip(edges[::2], edges[1::2], strict=False):
            collected.append((lane, begin, end, draw(st.integers(0, NOTHING - 1)), draw(st.integers(-1, 5))))
    return Parts(*np.array(collected, dtype=np.int64).reshape(-1, 5).T)


@given(parts=some_parts(), columns=st.integers(1, 700), first=st.integers(0, END - 1), length=st.integers(1, END))
def test_binning_into_columns_keeps_the_time_of_every_activity_kind(parts: Parts, columns: int, first: int, length: int) -> None:
    past = min(END, first + length)
    shown = parts.of(np.arange(3), first, past)

    cells = cut_into_columns(shown, 3, first, past, columns)

    expected = np.zeros((3, NOTHING))
    np.add.at(expected, (shown.lane, shown.kind), shown.end - shown.start)
    assert (cells.times.sum(axis=1) == expected).all()
    assert (cells.times.sum(axis=2) <= np.diff(cells.edges)).all()
    assert ((cells.prevailing == NOTHING) == (cells.times.sum(axis=2) == 0)).all()


@given(
    steps=some_spans(), calls=some_spans(), compute=some_spans(), waits=st.lists(st.integers(-1, 4_000), min_size=12, max_size=12)
)
def test_lane_parts_cover_each_moment_exactly_once(steps: Spans, calls: Spans, compute: Spans, waits: list[int]) -> None:
    merged, computing = union(steps[:, 0], steps[:, 1]), union(compute[:, 0], compute[:, 1])

    parts = parts_of(0, recorded(merged, calls, waits[: len(calls)], compute=computing))

    lengths = parts.end - parts.start
    assert (lengths > 0).all()
    assert (parts.start[1:] >= parts.end[:-1]).all()
    assert int(lengths.sum()) == measure(join(merged, calls, computing))


def test_rank_waits_for_the_last_arrival_and_then_transfers() -> None:
    parts = parts_of(0, recorded(spans((0, 100)), spans((20, 60)), [25], compute=spans((50, 55))))

    assert rows(parts) == [
        (0, 20, ActivityKind.NOT_SEPARATED, NO_VALUE),
        (20, 45, ActivityKind.WAITING, 0),
        (45, 50, ActivityKind.TRANSFER, 0),
        (50, 55, ActivityKind.OVERLAP, 0),
        (55, 60, ActivityKind.TRANSFER, 0),
        (60, 100, ActivityKind.NOT_SEPARATED, NO_VALUE),
    ]


def test_unmatched_collective_shows_no_waiting_part() -> None:
    parts = parts_of(0, recorded(EMPTY, spans((20, 60))))

    assert rows(parts) == [(20, 60, ActivityKind.COMMUNICATION, 0)]


def test_idle_is_shown_only_where_the_raw_trace_is_whole() -> None:
    parts = parts_of(0, recorded(spans((0, 10)), compute=spans((2, 5)), is_whole=True))

    assert rows(parts) == [
        (0, 2, ActivityKind.IDLE, NO_VALUE),
        (2, 5, ActivityKind.COMPUTE, NO_VALUE),
        (5, 10, ActivityKind.IDLE, NO_VALUE),
    ]


def test_column_cell_shows_its_longest_activity() -> None:
    parts = Parts(*np.array([[0, 0, 6, ActivityKind.WAITING, 3], [0, 6, 10, ActivityKind.TRANSFER, 3]], dtype=np.int64).T)

    cells = cut_into_columns(parts, 2, 0, 20, 2)

    assert cells.edges.tolist() == [0, 10, 20]
    assert cells.prevailing.tolist() == [[ActivityKind.WAITING, NOTHING], [NOTHING, NOTHING]]
    assert cells.about.tolist() == [[3, NO_VALUE], [NO_VALUE, NO_VALUE]]


def lanes(count: int) -> Lanes:
    """Return one lane with ``count`` parts of a microsecond each."""
    at = np.arange(count, dtype=np.int64) * 1000
    parts = Parts(np.zeros(count, np.int64), at, at + 1000, at // 1000 % len(ActivityKind), np.zeros(count, np.int64))
    return Lanes(["rank 0"], parts, ["all_reduce · pg · 7"], [0])


def test_few_parts_are_drawn_as_labelled_bars() -> None:
    figure = timeline(lanes(4), 0, 4_000, palette(None))

    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == [style.label for style in STYLES[:4]]
    assert all("all_reduce · pg · 7" in bar.hovertext[0] for bar in bars)
    assert sum(float(bar.x[0]) for bar in bars) == pytest.approx(0.004)


def test_many_parts_are_drawn_as_one_heatmap() -> None:
    count = MOST_BARS + 1

    figure = timeline(lanes(count), 0, count * 1000, palette("dark"))

    assert [trace.type for trace in figure.data] == ["scatter", "heatmap"]
    assert not figure.layout.shapes
    assert "all_reduce" in figure.data[1].text[0][0]


def test_cell_without_a_collective_shows_only_its_kind() -> None:
    count = MOST_BARS + 1
    some = lanes(count)
    some.parts.about[some.parts.kind != ActivityKind.OVERLAP] = NO_VALUE

    (row,) = timeline(some, 0, count * 1000, palette("dark")).data[1].text

    kinds = {STYLES[kind].label for kind in ActivityKind} | {f"{STYLES[ActivityKind.OVERLAP].label}<br>all_reduce · pg · 7"}
    assert {text.removeprefix("rank 0<br>") for text in row} <= kinds
    assert len(set(row)) > 1


def test_compute_overlap_is_at_the_recorded_times_of_collectives() -> None:
    # given two collectives whose compute is told from when they were enqueued
    def collective(index: int, enqueued: int, *spans_us: tuple[float, float]) -> CollectiveRecord:
        return CollectiveRecord(
            step=7,
            group="pg",
            index=index,
            op="all_reduce",
            enqueue_unix_ns=enqueued,
            start_unix_ns=enqueued + 1_000,
            end_unix_ns=enqueued + 9_000,
            stream=20,
            compute_spans_us=list(spans_us),
        )

    records = [collective(0, 5_000, (2.0, 3.0), (4.0, 5.5)), collective(1, 20_000), collective(2, 30_000, (7.0, 8.0))]
    window = arrange_window(
        {0: Reduction(breakdowns=[], collectives=records)}, Clocks(), Matching(), RawEvents(), range(7, 8), clock_names={}
    )
    # then time counts from the first arrival, at 6 µs
    overlap = window.parts.kind == ActivityKind.OVERLAP
    assert window.parts.start[overlap].tolist() == [1_000, 3_000, 31_000]
    assert window.parts.end[overlap].tolist() == [2_000, 4_500, 32_000]


def test_empty_part_of_the_window_has_a_note() -> None:
    figure = timeline(Lanes(["rank 0"], lanes(0).parts, [], [0]), 0, 1000, palette(None))

    assert "Nothing was recorded" in notes(figure)[0]


def test_lane_of_the_selected_rank_is_marked_among_many() -> None:
    count = 128
    at = np.arange(count)
    parts = Parts(
        at, np.zeros(count, np.int64), np.full(count, 900), np.full(count, int(ActivityKind.WAITING)), np.full(count, NO_VALUE)
    )
    figure = timeline(Lanes([f"rank {rank}" for rank in at], parts, [], at.tolist(), picked=77), 0, 1000, palette(None))
    assert [label for label in figure.layout.yaxis.ticktext if "▸" in label] == ["<b>▸ rank 77</b>"]


def test_phases_have_labels() -> None:
    assert [kind_label(kind) for kind in range(FIRST_PHASE, NOTHING)] == [
        "Data", "Copy to the device", "Forward", "Backward", "Optimizer", "Between steps",
    ]  # fmt: skip


def test_first_and_last_arrivals_of_1024_ranks_are_drawn() -> None:
    arrivals = [Arrival(rank, float(rank), 1023.0 - rank, 1030.0) for rank in range(1024)]

    figure = arrival_bars(arrivals, palette(None), last=1023)

    labels = figure.layout.yaxis.ticktext
    assert len(labels) == SHOWN
    assert labels[0] == "rank 0"
    assert labels[-1] == "<b>⚑ rank 1023</b>"
    assert "976 more ranks" in notes(figure)[0]


def test_unknown_wait_is_not_drawn_as_waiting() -> None:
    figure = arrival_bars([Arrival(0, 0.0, None, 2.0), Arrival(1, 1.0, None, 2.0)], palette(None), last=None)

    waiting, inside = figure.data
    assert list(waiting.x) == [0, 0]
    assert inside.name == "In the collective"
    assert list(inside.x) == [2, 1]


def test_least_waiting_rank_represents_its_neighbours() -> None:
    ranks = 2 * MOST_LANES
    waits = np.full(ranks, 90)
    waits[[1, 2, 5]] = 10
    rows_ = [(rank, 0, wait, int(ActivityKind.WAITING), 0) for rank, wait in enumerate(waits.tolist())]
    parts = Parts(*np.array(rows_, dtype=np.int64).T)

    shown, each = representatives(parts, ranks)

    assert each == 2
    assert shown[:4].tolist() == [1, 2, 5, 6]
    assert len(shown) == MOST_LANES


def test_host_lane_shows_its_least_waiting_rank() -> None:
    for kind in (ActivityKind.WAITING, ActivityKind.COMMUNICATION):  # collectives that were matched, and members that were not
        waits = np.array([[rank, 0, wait, int(kind), 0] for rank, wait in enumerate([90, 10, 80, 20, 5, 70])], dtype=np.int64)
        rows_, each = representatives(Parts(*waits.T), 6, ["a", "a", "b", "b", "a", "<i>"])
        assert (rows_.tolist(), each) == ([4, 3, 5], 3)

    parts = Parts(
        *np.array(
            [[0, 0, 500, int(ActivityKind.COMPUTE), NO_VALUE], [1, 0, 500, int(ActivityKind.COMPUTE), NO_VALUE]], dtype=np.int64
        ).T
    )
    shown = Lanes(["rank 4", "rank 5"], parts, [], [4, 5], picked=5, hosts={4: "a", 5: "<i>"}, by_host=True)
    figure = timeline(shown, 0, 1000, palette(None))
    assert list(figure.layout.yaxis.ticktext) == ["a · rank 4", "&lt;i&gt; · <b>▸ rank 5</b>"]
    assert figure.data[1].hovertext[1].startswith("<b>rank 5 on &lt;i&gt;</b>")
