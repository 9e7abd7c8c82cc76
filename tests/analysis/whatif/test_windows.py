"""Profiled step as a graph of own times and collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.collectives.arrivals import Match
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.whatif.graph import step_times
from rankscope.analysis.whatif.window_graph import WindowGraph, build_window_graph
from rankscope.runs.records import CollectiveRecord, StepBreakdown

START = 10**18
Work = np.ndarray
"""[ranks, collectives + 1] nanoseconds of own work before each collective, and after the last."""


def window(rank_start: int, took_ns: int) -> StepBreakdown:
    fields: dict[str, Any] = dict.fromkeys(
        ("compute_us", "communication_us", "overlap_us", "exposed_communication_us", "memcpy_us", "exposed_memcpy_us", "idle_us"),
        0.0,
    )
    return StepBreakdown(step=3, start_unix_ns=rank_start, device_kind="cuda", window_us=took_ns / 1000, events=1, **fields)


def step(work: Work, transfer: list[int], offsets: list[int], *, next_ns: int | None = None) -> WindowGraph:
    """Return a step in which every rank blocks in each collective; clocks are off by ``offsets``.

    ``next_ns``: the first rank begins the next step this long after the beginning of this one.
    """
    now = np.zeros(len(work), dtype=np.int64)
    matches = []
    for number, took in enumerate(transfer):
        arrived = now + work[:, number]
        end = int(arrived.max()) + took
        records = [
            CollectiveRecord(
                step=3,
                group="0",
                index=number,
                op="all_reduce",
                bytes=8,
                enqueue_unix_ns=START + int(at) + offset,
                start_unix_ns=START + int(at) + offset,
                end_unix_ns=START + end + offset,
                stream=7,
            )
            for at, offset in zip(arrived, offsets, strict=True)
        ]
        matches.append(Match(3, "0", "all_reduce", list(range(len(work))), records))
        now[:] = end
    windows = {rank: window(START + offset, int(now[rank] + work[rank, -1])) for rank, offset in enumerate(offsets)}
    following = None if next_ns is None else {0: window(START + offsets[0] + next_ns, 1000)}
    graph = build_window_graph(3, matches, windows, Clocks(dict(enumerate(offsets)), 0.0), following=following)
    assert graph is not None
    return graph


def finish(graph: WindowGraph, *, real: np.ndarray | bool) -> float:
    chosen = np.broadcast_to(real, graph.real.shape)
    return float(step_times(graph.graph, np.where(chosen, graph.real, graph.ideal)[:, None].__getitem__))


@st.composite
def steps(draw: st.DrawFn) -> tuple[Work, list[int], list[int]]:
    ranks, count = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    size = ranks * (count + 1)
    # Whole microseconds, as in windows.
    work = np.array(draw(st.lists(st.integers(1, 900), min_size=size, max_size=size)), dtype=np.int64).reshape(ranks, count + 1)
    transfer = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    offsets = draw(st.lists(st.integers(-(10**6), 10**6), min_size=ranks, max_size=ranks))
    return work * 1000, [offset * 1000 for offset in transfer], [offset * 1000 for offset in offsets]


@given(steps(), st.integers(2, 5), st.randoms())
def test_graph_reproduces_the_step_and_less_slowness_never_slows_it(
    drawn: tuple[Work, list[int], list[int]], factor: int, random: Any
) -> None:
    work, transfer, offsets = drawn
    graph = step(work, transfer, offsets)
    # then the replay reproduces the measured time
    assert finish(graph, real=True) == graph.measured
    # and without any slowness it takes no longer than with the median rank everywhere
    ideal = finish(graph, real=False)
    assert ideal <= graph.measured
    assert ideal <= float(np.sort(work, axis=0)[(len(work) - 1) // 2].sum() + sum(transfer)) * (1 + 1e-12)
    for rank in range(len(work)):
        assert ideal <= finish(graph, real=graph.ranks != rank) <= graph.measured
    # and it scales with its times, and does not depend on the order of the ranks
    scaled = step(work * factor, [item * factor for item in transfer], offsets)
    assert (finish(scaled, real=True), finish(scaled, real=False)) == pytest.approx((graph.measured * factor, ideal * factor))
    order = list(range(len(work)))
    random.shuffle(order)
    permuted = step(work[order], transfer, [offsets[rank] for rank in order])
    assert (finish(permuted, real=True), finish(permuted, real=False)) == pytest.approx((graph.measured, ideal))


def test_equal_ranks_lose_exactly_nothing() -> None:
    graph = step(np.full((4, 3), 7_000), [5_000, 5_000], [0, 3_000, -2_000, 0])
    assert finish(graph, real=True) == finish(graph, real=False) == graph.measured == 31_000


def test_healed_step_ends_with_the_next_latest_rank() -> None:
    # given rank 2 late by 60 and rank 1 by 10 microseconds
    work = np.array([[100, 20], [110, 20], [160, 20], [100, 20]]) * 1000
    graph = step(work, [10_000], [0] * 4)
    assert finish(graph, real=graph.ranks != 2) == 140_000
    assert finish(graph, real=False) == 130_000


def test_work_after_the_next_step_began_is_not_counted_twice() -> None:
    work = np.array([[100, 20], [100, 80]]) * 1000
    assert step(work, [10_000], [0, 0]).measured == 190_000
    assert step(work, [10_000], [0, 0], next_ns=130_000).measured == 130_000


def test_wait_hidden_by_compute_delays_no_rank() -> None:
    # given a rank that computes beside the collective up to its end, and beyond
    graph = [
        build_window_graph(
            3,
            [
                Match(
                    3,
                    "0",
                    "all_reduce",
                    [0, 1],
                    [
                        CollectiveRecord(
                            step=3,
                            group="0",
                            index=0,
                            op="all_reduce",
                            enqueue_unix_ns=START + at,
                            start_unix_ns=START + at,
                            end_unix_ns=START + 60_000,
                            stream=7,
                            compute_spans_us=[(0.0, (60_000 - at) / 1000)] if hidden else [],
                        )
                        for at in (10_000, 50_000)
                    ],
                )
            ],
            {rank: window(START, 100_000) for rank in range(2)},
            Clocks({}, 0.0),
        )
        for hidden in (True, False)
    ]
    beside, exposed = graph
    assert beside is not None
    assert exposed is not None
    # then rank 1's lateness is free where no rank waited, and rank 0's work continued meanwhile
    assert finish(beside, real=beside.ranks != 1) == finish(beside, real=True) == 100_000
    assert finish(exposed, real=exposed.ranks != 1) == 60_000
