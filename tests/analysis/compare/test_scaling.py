"""Scaling efficiency and the losses that explain it, on runs with known ground truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.compare.simulated_steps import MadeUp

from rankscope.analysis.compare.comparable_steps import comparable_steps
from rankscope.analysis.compare.compare_result import Scaling
from rankscope.analysis.compare.compare_runs import compare
from rankscope.analysis.compare.scaling import scaling
from rankscope.analysis.result.analysis import Cost

Synthetic = Callable[..., Any]
CALM: dict[str, Any] = {"noise": 0.0, "common": 0.005, "phi": 0.3}


def scale(runs: Sequence[MadeUp], gpu_hour: Cost | None = None) -> Scaling:
    return scaling(
        [comparable_steps(run.recording(), chr(ord("A") + number)) for number, run in enumerate(runs)], gpu_hour=gpu_hour
    )


def test_efficiency_is_throughput_over_linear_with_explained_losses() -> None:
    # given 2, 4 and 8 ranks of the same 100 ms of own work, and more communication the more they are
    runs = [MadeUp(ranks=ranks, seed=ranks, transfer_us=us, **CALM) for ranks, us in ((4, 10_000), (2, 5_000), (8, 45_000))]
    scaling = scale(runs)
    # then the smallest is the reference, wherever it is in the list
    assert (scaling.reference, scaling.work) == ("B", "samples")
    assert [(row.label, row.world_size, row.linear) for row in scaling.rows] == [("B", 2, 1), ("A", 4, 2), ("C", 8, 4)]
    first, middle, last = scaling.rows
    assert (first.efficiency, first.efficiency_low, first.losses) == (1, None, [])
    assert middle.efficiency == pytest.approx(105 / 110, rel=0.01)
    assert last.efficiency == pytest.approx(105 / 145, rel=0.01)
    assert last.speedup == pytest.approx(4 * 105 / 145, rel=0.01)
    assert last.efficiency_low is not None
    assert last.efficiency_high is not None
    assert last.efficiency_low < 105 / 145 < last.efficiency_high
    assert (last.losses[0].name, last.losses[0].label) == ("communication_us", "exposed communication")
    assert last.losses[0].share == pytest.approx(40 / 145, rel=0.02)
    assert scaling.summary.startswith("On 8 ranks 72")
    assert "Lost to: exposed communication" in scaling.summary


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.floats(0, 30_000), st.floats(-5_000, 30_000))
def test_losses_add_up_to_the_missing_efficiency(seed: int, transfer_us: float, forward_us: float) -> None:
    slower = {**MadeUp().phases, "forward": MadeUp().phases["forward"] + forward_us}
    scaling = scale([MadeUp(ranks=2, seed=seed), MadeUp(ranks=6, seed=seed + 1, transfer_us=transfer_us, phases=slower)])
    last = scaling.rows[-1]
    assert last.efficiency is not None
    assert sum(loss.share for loss in last.losses) == pytest.approx(1 - last.efficiency)


def test_straggler_appears_as_waiting() -> None:
    scaling = scale([MadeUp(ranks=2, seed=1, **CALM), MadeUp(ranks=4, seed=2, late={3: ("data", 40_000)}, **CALM)])
    assert scaling.rows[-1].losses[0].name == "waiting_us"


def test_smaller_steps_of_more_ranks_are_judged_by_their_work() -> None:
    # given the same batch of the job, cut into twice as many parts, each half the work: strong scaling
    half = {phase: us / 2 for phase, us in MadeUp().phases.items()}
    scaling = scale(
        [MadeUp(ranks=2, seed=1, samples=16, **CALM), MadeUp(ranks=4, seed=2, samples=8, phases=half, transfer_us=4_000, **CALM)]
    )
    assert scaling.rows[-1].speedup == pytest.approx(104 / 54, rel=0.01)
    assert scaling.rows[-1].efficiency == pytest.approx(104 / 108, rel=0.01)


def test_runs_without_a_measure_of_work_have_no_efficiency() -> None:
    scaling = scale([MadeUp(ranks=2, samples=np.nan), MadeUp(ranks=4)])
    assert (scaling.work, [row.efficiency for row in scaling.rows]) == (None, [None, None])
    assert "not every run recorded samples" in scaling.summary


def test_work_is_measured_in_a_unit_recorded_by_every_run() -> None:
    assert scale([MadeUp(ranks=2, tokens=512), MadeUp(ranks=4, tokens=512)]).work == "tokens"
    assert scale([MadeUp(ranks=2, tokens=512), MadeUp(ranks=4)]).work == "samples"


def test_few_steps_have_an_efficiency_and_no_interval() -> None:
    scaling = scale([MadeUp(ranks=2), MadeUp(ranks=4, steps=12)])
    last = scaling.rows[-1]
    assert last.efficiency is not None
    assert (last.efficiency_low, last.efficiency_high) == (None, None)
    assert "too few steps" in scaling.summary


def test_cost_is_rank_hours_times_the_price_per_work() -> None:
    # given 2 ranks that do 16 samples in 104 ms, at 3.6 per rank-hour: 0.001 a second
    runs = [MadeUp(ranks=2, seed=1, price=3.6, **CALM), MadeUp(ranks=4, seed=2, **CALM)]
    recorded = scale(runs)
    cost = recorded.rows[0].cost_per_million
    assert cost is not None
    assert cost.amount == pytest.approx(1e6 / 16 * 0.104 * 2 * 0.001, rel=0.01)
    assert recorded.rows[1].cost_per_million is None
    cost_per_million = scale(runs, Cost(amount=7.2, currency="CHF")).rows[0].cost_per_million
    assert cost_per_million is not None
    assert cost_per_million.amount == pytest.approx(2 * cost.amount)
    assert cost_per_million.currency == "CHF"


def test_equal_efficiency_lies_inside_its_interval() -> None:
    # given pairs that scale perfectly: 1 in 20 intervals may miss it
    missed = judged = 0
    for seed in range(0, 50, 2):
        runs = [MadeUp(ranks=ranks, seed=seed + ranks // 4, noise=0.0, common=0.03) for ranks in (2, 4)]
        last = scale(runs).rows[-1]
        if last.efficiency_low is not None and last.efficiency_high is not None:
            judged += 1
            missed += not last.efficiency_low <= 1 <= last.efficiency_high
    assert judged >= 20
    assert missed <= 3


def test_runs_of_several_world_sizes_are_compared_by_scaling(synthetic: Synthetic) -> None:
    runs = [synthetic(f"r{ranks}", seed=ranks, ranks=ranks, steps=80).write() for ranks in (2, 4)]
    comparison = compare(runs, gpu_hour=Cost(amount=2.0, currency="USD"))
    assert (comparison.mode, comparison.comparisons) == ("scaling", [])
    assert comparison.scaling is not None
    assert [row.world_size for row in comparison.scaling.rows] == [2, 4]
    assert comparison.sides[0].cost_per_million_samples == comparison.scaling.rows[0].cost_per_million
