"""Step times on the graph of step records, also without several ranks and causes at once, checked cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.whatif.step_tables import Floats, graph_of, low, plain_chain, scenarios_of, table_of

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.statistics import lower_median
from rankscope.analysis.whatif.cause_parts import Causes
from rankscope.analysis.whatif.step_graph import build_step_graph
from rankscope.analysis.whatif.step_scenarios import MOST_RANKS, Combinations, StepScenarios, combinations, read_combinations
from rankscope.runs.records import PHASES, Phase


def agrees(table: StepTable, rows: list[int]) -> StepScenarios:
    """Return all scenarios, after comparing them with those of the plain chain."""
    result, chain = scenarios_of(table, np.array(rows)), plain_chain(table, rows)
    np.testing.assert_allclose(result.actual, chain.of_rows(set(range(len(rows))))[0])
    np.testing.assert_allclose(result.ideal, chain.of_rows(set())[0])
    np.testing.assert_allclose(result.measured, table.matrix("wall_us")[rows].mean(axis=0))
    ranks = table.ranks[rows].tolist()
    assert sorted(part.key["rank"] for part in result.ranks) == ranks
    for part in result.ranks:
        np.testing.assert_allclose(part.only, chain.of_rows({ranks.index(part.key["rank"])})[0])
    for part in (*result.phases, *result.causes):
        np.testing.assert_allclose((part.only, part.without), chain.of(*part.key.values()), err_msg=str(part.key))
    lost = [part.lost for part in result.causes if part.lost is not None]
    assert all((times >= 0).all() for times in lost)
    np.testing.assert_allclose(sum(lost, np.zeros(len(result.actual))), result.actual - result.ideal, atol=1e-6)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_scenarios_equal_those_of_the_plain_chain(seed: int) -> None:
    # Given several blocks of steps, some meetings within them, and steps that are missing at the edge of a block and elsewhere
    random = np.random.default_rng(seed)
    missing = {256: 256, 257 + seed: 600, 700: 701} if seed % 2 else {}
    steps = np.array([step for step in range(800) if all(not first <= step < last for first, last in missing.items())])
    shape = (7, len(steps))
    phases: list[Phase] = [phase for phase in PHASES if random.random() < 0.7] or ["forward", "backward"]
    met = random.choice(phases, random.integers(1, len(phases) + 1), replace=False)
    table = table_of(
        {phase: random.gamma(2, 1000, shape) for phase in phases},
        {phase: random.gamma(2, 100, shape) for phase in met},
        steps,
        others={
            "gc_us": random.gamma(2, 300, shape) * (random.random(shape) < 0.1),
            "run_queue_us": random.gamma(2, 300, shape),
            "input_elements": random.integers(90, 130, shape).astype(float),
            **({"cpu_us": random.gamma(2, 600, shape)} if seed != 4 else {}),
        },
        tags={
            "checkpoint": np.tile(random.random(len(steps)) < 0.02, (7, 1)),
            "eval": random.random(shape) < 0.02,
        },
    )
    result = agrees(table, [0, 1, 2, 3, 4, 5, 6] if seed % 3 else [0, 2, 3, 6])
    causes = [part.key["cause"] for part in result.causes]
    with_input = ["input"] * ("data" in phases or "h2d" in phases)
    with_cpu = ["compute", "host"] if seed != 4 else ["unknown"]
    assert causes == ["gc", "checkpoint", "evaluation", *with_input, "imbalance", "cpu_contention", *with_cpu]


@st.composite
def tables(draw: st.DrawFn) -> StepTable:
    """Draw own and blocked times of a few ranks in whole microseconds, some phases unknown, some steps missing."""
    ranks = draw(st.integers(2, 5))
    steps = np.array(draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True).map(sorted)))
    phases: list[Phase] = draw(st.lists(st.sampled_from(PHASES), min_size=1, unique=True))
    meeting = draw(st.lists(st.sampled_from(phases), min_size=1, unique=True))
    shape = (ranks, len(steps))

    def numbers(low: int) -> Floats:
        size = ranks * len(steps)
        return np.array(draw(st.lists(st.integers(low, 100), min_size=size, max_size=size)), dtype=float).reshape(shape)

    return table_of(
        {phase: numbers(0) for phase in phases},
        {phase: numbers(1) for phase in meeting},
        steps,
        others={"gc_us": numbers(0)} if draw(st.booleans()) else None,
    )


@given(tables())
def test_less_slowness_never_slows_the_step_and_none_is_ideal(table: StepTable) -> None:
    result = agrees(table, list(range(len(table.ranks))))
    assert (result.actual >= result.ideal).all()
    for part in (*result.phases, *result.causes):
        for times in (part.only, part.without):
            assert (times <= result.actual).all()
            assert (times >= result.ideal).all()


@given(tables())
def test_graph_contains_all_own_time_of_the_records(table: StepTable) -> None:
    graph = graph_of(table)
    own = sum(table.matrix(name).sum() for name in table.values.recorded if name.startswith("own_") and name != "own_us")
    assert sum(graph.of_blocks(lambda block: block.own.sum())) == own


@pytest.mark.parametrize("absurd", [-5.0, 1e300, float("inf"), float("nan")])
def test_absurd_times_count_as_zero(absurd: float) -> None:
    forward, waited = np.array([[10.0, absurd], [30.0, 30.0]]), np.array([[absurd, 31.0], [1.0, 1.0]])
    scenarios = scenarios_of(table_of({"forward": forward}, {"forward": waited}))
    assert scenarios.actual.tolist() == [30.0, 31.0]
    assert scenarios.ideal.tolist() == [10.0, 1.0]


def test_ranks_that_wait_in_too_few_steps_have_no_graph() -> None:
    own: dict[Phase, Floats] = {"forward": np.full((2, 4), 10.0)}
    waited = np.array([[1.0, 0.0, 0.0, 0.0], [0.0] * 4])
    several: list[dict[Phase, Floats]] = [{"forward": waited}, {"forward": np.full((2, 4), np.nan)}, {}]
    for blocked in several:
        assert build_step_graph(table_of(own, blocked), np.arange(2)) is None
    waited[1, 3] = 1.0
    assert graph_of(table_of(own, {"forward": waited})).stretch.tolist() == [[0], [1], [2], [3]]


def test_unknown_phase_is_not_in_the_graph() -> None:
    own: dict[Phase, Floats] = {"data": np.full((2, 4), np.nan), "forward": np.full((2, 4), 10.0)}
    assert graph_of(table_of(own, {"forward": np.ones((2, 4))})).phases == ["forward"]


def test_cause_needs_a_meter_read_on_each_rank_but_not_at_each_step() -> None:
    shape = (3, 700)
    queue, collections = np.ones(shape), np.ones(shape)
    queue[1] = np.nan
    collections[1, 600] = np.nan
    table = table_of(
        {"forward": np.ones(shape)}, {"forward": np.ones(shape)}, others={"run_queue_us": queue, "gc_us": collections}
    )
    assert Causes(graph_of(table)).names == ["gc", "unknown"]


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=6), st.randoms())
def test_lower_median_ignores_order_and_bounds_half_of_the_values(rows: list[list[int]], random: Any) -> None:
    values = np.array(rows, dtype=float)
    shuffled = list(rows)
    random.shuffle(shuffled)
    result = lower_median(values)
    assert result.tolist() == lower_median(np.array(shuffled, dtype=float)).tolist()
    assert result.tolist() == lower_median(values.T, axis=1).tolist()
    assert (2 * (values >= result).sum(axis=0) >= len(values)).all()
    assert (2 * (values <= result).sum(axis=0) >= len(values)).all()


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


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    healed=st.sets(st.integers(0, RANKS - 1), max_size=MOST_RANKS),
    causes=st.sets(st.sampled_from(["input", "gc", "unknown"])),
)
def test_combination_equals_the_replay_of_the_whole_graph(seed: int, healed: set[int], causes: set[str]) -> None:
    """Given ranks and causes, when they are ideal together, then the step is that of the chain changed by hand."""
    table = table_from(seed)
    result = combinations_of(table).without_step_seconds([100 + row for row in healed], causes)

    chain, longest = plain_chain(table, list(range(RANKS))), []
    for stretch in chain.stretches:
        above = np.maximum(stretch.own - low(stretch.own) - sum(stretch.lost.get(cause, 0.0) for cause in causes), 0.0)
        above[list(healed)] = 0.0
        longest.append(low(stretch.own) + above.max())
    assert result == pytest.approx(seconds(chain.times(longest)), rel=1e-5)


def test_combination_of_one_cause_equals_the_answer() -> None:
    """Given one cause, when it is ideal, then the step is as in ``by_cause``."""
    table = table_from(3)
    played, result = scenarios_of(table), combinations_of(table)

    assert result.without_step_seconds([], []) == pytest.approx(seconds(played.actual), rel=1e-5)
    for part in played.causes:
        assert result.without_step_seconds([], [part.key["cause"]]) == pytest.approx(seconds(part.without), rel=1e-5)


def test_two_equally_slow_ranks_save_time_only_together(tmp_path: Path) -> None:
    """Given two slow ranks, when one is healed nothing is gained, when both are healed all is; also after a write and read."""
    forward = np.full((4, 20), 1000.0)
    forward[[1, 3]] = 5000.0
    table = table_of({"forward": forward}, {"forward": np.full((4, 20), 10.0)})
    combinations_of(table).write(tmp_path)
    result = read_combinations(tmp_path)

    assert result is not None
    assert result.without_step_seconds([101], []) == pytest.approx(5010e-6)
    assert result.without_step_seconds([101, 103], []) == pytest.approx(1010e-6)


def test_folder_without_combinations_yields_none(tmp_path: Path) -> None:
    """Given a folder without combinations, when it is read, then there are none."""
    assert read_combinations(tmp_path) is None
