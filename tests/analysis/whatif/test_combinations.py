"""What-if without several ranks and causes at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.whatif.combinations import MOST_RANKS, combinations, read_combinations
from rankscope.analysis.whatif.step_graph import StepGraph, actual_times, build_step_graph, ideal_times, of_amounts, of_rank

RANKS, STEPS = 12, 30


def graph_of(seed: int) -> StepGraph:
    random = np.random.default_rng(seed)
    own = {"forward": random.gamma(2, 1000, (RANKS, STEPS)), "backward": random.gamma(2, 2000, (RANKS, STEPS))}
    blocked = {"backward": random.gamma(2, 100, (RANKS, STEPS))}
    graph = build_step_graph(own, blocked, np.arange(STEPS))  # type: ignore[arg-type]
    assert graph is not None
    return graph


def seconds(times: np.ndarray) -> float:
    return float(times.mean()) / 1e6


@given(
    seed=st.integers(0, 10_000),
    healed=st.sets(st.integers(0, RANKS - 1), max_size=MOST_RANKS),
    causes=st.sets(st.sampled_from(["input", "gc"])),
)
def test_a_combination_is_what_the_whole_graph_gives(seed: int, healed: set[int], causes: set[str]) -> None:
    """Given ranks and causes, when they are thought away together, then the step is that of the graph changed by hand."""
    graph = graph_of(seed)
    random = np.random.default_rng(seed + 1)
    amounts = {cause: random.gamma(1, 500, graph.own.shape) for cause in ("input", "gc")}
    ranks = [100 + row for row in range(RANKS)]

    found = combinations(graph, ranks, amounts).without_step_seconds([100 + row for row in healed], causes)

    above = np.maximum(graph.own - graph.typical - sum(amounts[cause] for cause in causes), 0.0)
    above[list(healed)] = 0.0
    assert found == pytest.approx(seconds(graph.times(graph.typical + above.max(axis=0))), rel=1e-5)


def test_one_rank_or_cause_alone_is_as_in_the_answer() -> None:
    """Given one part, when it is thought away, then it is what ``by_rank`` and ``by_cause`` are played with."""
    graph = graph_of(3)
    amounts = np.random.default_rng(4).gamma(1, 500, graph.own.shape)
    found = combinations(graph, range(RANKS), {"input": amounts})

    assert found.without_step_seconds([], []) == pytest.approx(seconds(actual_times(graph)), rel=1e-5)
    assert found.without_step_seconds([5], []) == pytest.approx(seconds(of_rank(graph, 5)[1]), rel=1e-5)
    assert found.without_step_seconds([], ["input"]) == pytest.approx(seconds(of_amounts(graph, amounts)[1]), rel=1e-5)


def test_two_equally_slow_ranks_gain_only_together(tmp_path: Path) -> None:
    """Given two slow ranks, when one is healed nothing is gained, when both are all is; also after being written and read."""
    own = {"forward": np.full((4, 20), 1000.0)}
    own["forward"][[1, 3]] = 5000.0
    graph = build_step_graph(own, {"forward": np.full((4, 20), 10.0)}, np.arange(20))  # type: ignore[arg-type]
    assert graph is not None
    combinations(graph, range(4), {}).write(tmp_path)
    found = read_combinations(tmp_path)

    assert found is not None
    assert found.without_step_seconds([1], []) == pytest.approx(seconds(actual_times(graph)))
    assert found.without_step_seconds([1, 3], []) == pytest.approx(seconds(ideal_times(graph)))


def test_nothing_written_is_nothing_to_combine(tmp_path: Path) -> None:
    """Given a folder without any, when it is read, then there are none."""
    assert read_combinations(tmp_path) is None
