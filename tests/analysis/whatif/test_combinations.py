"""Combinations in what-if: the step without several ranks and causes at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.whatif.step_tables import Floats, graph_of, low, plain_chain, scenarios_of, table_of

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.whatif.causes import Causes
from rankscope.analysis.whatif.step_scenarios import MOST_RANKS, Combinations, combinations, read_combinations

RANKS, STEPS = 12, 300


def table_from(seed: int) -> StepTable:
    random = np.random.default_rng(seed)
    shape = (RANKS, STEPS)
    own = {name: random.gamma(2, mean, shape) for name, mean in (("data", 300), ("forward", 1000), ("backward", 2000))}
    # One of the causes has no time in the first block of steps.
    collections = random.gamma(1, 500, shape) * (np.arange(STEPS) > 280)
    return table_of(own, {"backward": random.gamma(2, 100, shape)}, others={"gc_us": collections})  # type: ignore[arg-type]


def combinations_of(table: StepTable) -> Combinations:
    causes = Causes(graph_of(table))
    return combinations(causes, table.ranks.tolist(), causes.names)


def seconds(times: Floats) -> float:
    return float(times.mean()) / 1e6


@given(
    seed=st.integers(0, 10_000),
    healed=st.sets(st.integers(0, RANKS - 1), max_size=MOST_RANKS),
    causes=st.sets(st.sampled_from(["input", "gc", "unknown"])),
)
def test_a_combination_is_what_the_whole_graph_gives(seed: int, healed: set[int], causes: set[str]) -> None:
    """Given ranks and causes, when they are ideal together, then the step is that of the chain changed by hand."""
    table = table_from(seed)
    result = combinations_of(table).without_step_seconds([100 + row for row in healed], causes)

    chain, longest = plain_chain(table, list(range(RANKS))), []
    for stretch in chain.stretches:
        above = np.maximum(stretch.own - low(stretch.own) - sum(stretch.lost.get(cause, 0.0) for cause in causes), 0.0)
        above[list(healed)] = 0.0
        longest.append(low(stretch.own) + above.max())
    assert result == pytest.approx(seconds(chain.times(longest)), rel=1e-5)


def test_a_cause_alone_is_as_in_the_answer() -> None:
    """Given one cause, when it is ideal, then the step is as in ``by_cause``."""
    table = table_from(3)
    played, result = scenarios_of(table), combinations_of(table)

    assert result.without_step_seconds([], []) == pytest.approx(seconds(played.actual), rel=1e-5)
    for part in played.causes:
        assert result.without_step_seconds([], [part.key["cause"]]) == pytest.approx(seconds(part.without), rel=1e-5)


def test_two_equally_slow_ranks_gain_only_together(tmp_path: Path) -> None:
    """Given two slow ranks, when one is healed nothing is gained, when both are healed all is; also after a write and read."""
    forward = np.full((4, 20), 1000.0)
    forward[[1, 3]] = 5000.0
    table = table_of({"forward": forward}, {"forward": np.full((4, 20), 10.0)})
    combinations_of(table).write(tmp_path)
    result = read_combinations(tmp_path)

    assert result is not None
    assert result.without_step_seconds([101], []) == pytest.approx(5010e-6)
    assert result.without_step_seconds([101, 103], []) == pytest.approx(1010e-6)


def test_nothing_written_is_nothing_to_combine(tmp_path: Path) -> None:
    """Given a folder without combinations, when it is read, then there are none."""
    assert read_combinations(tmp_path) is None
