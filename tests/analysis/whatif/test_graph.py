"""Step times on a graph of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.whatif.graph import CycleError, Graph, build_graph, step_times


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], np.ndarray]:
    """Draw nodes, edges from lower to higher numbers, and durations [nodes, replicas, steps] in whole seconds."""
    count = draw(st.integers(1, 8))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    shape = (count, draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    times = draw(st.lists(st.integers(0, 50), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return count, edges, np.array(times, dtype=float).reshape(shape)


def longest_path(count: int, edges: list[tuple[int, int]], durations: np.ndarray) -> float:
    """Compute the longest path by hand, for one step of one replica."""
    ends = [0.0] * count
    for node in range(count):
        ends[node] = max([ends[before] for before, after in edges if after == node], default=0.0) + durations[node]
    return max(ends)


def played(graph: Graph, durations: np.ndarray) -> np.ndarray:
    return step_times(graph, durations.__getitem__)


@given(programs())
def test_step_takes_its_longest_path_on_the_slowest_replica(program: tuple[int, list[tuple[int, int]], np.ndarray]) -> None:
    count, edges, durations = program
    times = played(build_graph(count, edges, [], []), durations)
    by_hand = [
        max(longest_path(count, edges, durations[:, replica, step]) for replica in range(durations.shape[1]))
        for step in range(durations.shape[2])
    ]
    assert times.tolist() == by_hand


@given(programs(), st.integers(1, 9), st.data())
def test_longer_operations_never_shorten_a_step_and_scaling_is_linear(
    program: tuple[int, list[tuple[int, int]], np.ndarray], factor: int, data: st.DataObject
) -> None:
    # given a graph in which some nodes begin together, in all replicas
    count, edges, durations = program
    joined = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=2))
    among = [edge for edge in edges if not set(edge) <= set(joined)]
    try:
        graph = build_graph(count, among, [joined] if joined else [], [True] if joined else [])
    except CycleError:
        return
    times = played(graph, durations)
    # then
    longer = durations.copy()
    longer[data.draw(st.integers(0, count - 1))] += 5
    assert (played(graph, longer) >= times).all()
    assert (played(graph, durations * factor) == times * factor).all()
    assert (times >= played(build_graph(count, among, [], []), durations)).all()


def test_joined_operations_wait_for_the_last() -> None:
    # given nodes 0 and 1, each before one of the members 2 and 3 of a collective
    graph = build_graph(4, [(0, 2), (1, 3)], [[2, 3]], [False])
    durations = np.array([1.0, 5.0, 2.0, 2.0]).reshape(4, 1, 1)
    assert played(graph, durations).tolist() == [7.0]


@pytest.mark.parametrize(("across", "finish"), [(False, 7.0), (True, 9.0)])
def test_collective_across_replicas_waits_for_the_last_replica(across: bool, finish: float) -> None:
    # given replica 1 late before the collective, and replica 0 slow after it
    graph = build_graph(3, [(0, 1), (1, 2)], [[1]], [across])
    durations = np.array([[1.0, 5.0], [1.0, 1.0], [3.0, 1.0]]).reshape(3, 2, 1)
    assert played(graph, durations).tolist() == [finish]


def test_dependency_cycle_is_named() -> None:
    # given 1 -> 2 -> 3 -> 1, entered from 0 and left to 4
    with pytest.raises(CycleError) as caught:
        build_graph(5, [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)], [], [])
    assert sorted(caught.value.nodes) == [1, 2, 3]
    # then its order is that of the edges
    start = caught.value.nodes.index(1)
    assert caught.value.nodes[start:] + caught.value.nodes[:start] == [1, 2, 3]


def test_members_that_wait_for_each_other_are_a_cycle() -> None:
    with pytest.raises(CycleError):
        build_graph(2, [(0, 1)], [[0, 1]], [False])


def test_end_times_are_kept_until_their_last_use() -> None:
    # given 0, for whose end 1 and 3 wait, and a collective of 1 and 2
    graph = build_graph(4, [(0, 1), (1, 3), (0, 3)], [[1, 2]], [False])
    # then each end is released once, with the last event that needs it
    gone = {node: event.nodes for event in graph.events for node in event.done_with}
    assert gone == {0: (3,), 1: (3,), 2: (1, 2), 3: (3,)}
    assert sum(len(event.done_with) for event in graph.events) == 4
