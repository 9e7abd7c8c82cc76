"""Significance: results that chance alone would produce, also of two replicas and a few steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes
from rankscope.analysis.inference.judging.few_replicas import slow_replica
from rankscope.analysis.inference.judging.rank_judge import judge_ranks
from rankscope.analysis.inference.judging.significance import (
    BLOCKS,
    LIMIT,
    attainable_p,
    block_sums,
    blocks_needed,
    gap_p_value,
    p_value,
    widest_gap,
)


def test_blocks_preserve_the_sum_of_scores() -> None:
    scores = np.arange(60.0).reshape(20, 3)
    assert block_sums(scores).shape == (BLOCKS, 3)
    assert np.allclose(block_sums(scores).sum(axis=0), scores.sum(axis=0))
    assert block_sums(scores[:2]).shape == (2, 3)


def test_rank_ahead_in_every_block_is_not_chance() -> None:
    scores = np.zeros((BLOCKS, 2))
    scores[:, 1] = 1
    assert p_value(scores, 1) <= LIMIT


def test_p_value_is_never_zero() -> None:
    scores = np.zeros((32, 8))
    scores[:, 5] = 1
    assert 0 < p_value(scores, 5) < 0.001


def test_single_block_may_be_chance() -> None:
    scores = np.zeros((BLOCKS, 4))
    scores[3, 2] = 1000
    assert p_value(scores, 2) == 1


def test_two_of_four_ranks_ahead_in_all_blocks_are_no_chance() -> None:
    scores = np.zeros((BLOCKS, 4))
    scores[:, :2] = 1
    assert gap_p_value(scores, BLOCKS) <= LIMIT / 2
    assert p_value(scores, 0) > LIMIT


def test_equal_ranks_are_rarely_far_ahead_of_the_others() -> None:
    rng = np.random.default_rng(7)
    alone = together = 0
    for _ in range(60):
        scores = rng.exponential(size=(BLOCKS, 6))
        alone += p_value(scores, int(scores.sum(axis=0).argmax())) <= LIMIT
        together += gap_p_value(scores, widest_gap(scores.sum(axis=0), 3)[1]) <= LIMIT
    assert max(alone, together) <= 4  # one in a hundred is expected


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=12), st.data())
def test_widest_gap_separates_the_leading_ranks_from_the_others(totals: list[int], data: st.DataObject) -> None:
    most = data.draw(st.integers(1, len(totals) - 1))
    count, gap = widest_gap(np.array(totals, dtype=float), most)
    ordered = sorted(totals, reverse=True)
    assert 1 <= count <= most
    assert gap == ordered[count - 1] - ordered[count]
    assert all(ordered[k - 1] - ordered[k] <= gap for k in range(1, most + 1))


@settings(max_examples=8)
@given(st.integers(0, 50), st.floats(-1e6, 1e6))
def test_common_shift_of_all_ranks_in_a_block_keeps_the_p_value(seed: int, common: float) -> None:
    scores = np.random.default_rng(seed).integers(0, 9, size=(3, 4)).astype(float)
    moved = scores + np.array([[common], [0.0], [-common]])
    assert gap_p_value(moved, 2.0) == gap_p_value(scores, 2.0)
    assert p_value(moved, 1) == p_value(scores, 1)


@pytest.mark.parametrize(("ranks", "needed"), [(2, 8), (3, 6), (4, 5), (1024, 2)])
def test_blocks_needed_is_the_smallest_significant_number(ranks: int, needed: int) -> None:
    def best(blocks: int) -> float:
        scores = np.zeros((blocks, ranks))
        scores[:, 0] = 1
        return p_value(scores, 0)

    assert blocks_needed(ranks) == needed
    assert best(needed) <= LIMIT < best(needed - 1)
    assert attainable_p(needed, ranks) <= LIMIT < attainable_p(needed - 1, ranks)


STAGES = 4
STEP_US = 150.0


def stages(steps: int, *, seed: int, apart_us: float = 0.3, lasting: float = 0.8, noise_us: float = 1.0) -> list[DeviceOwnTimes]:
    """Return the own times of two replicas of each stage, whose noise lasts, and whose means are ``apart_us`` apart."""
    rng = np.random.default_rng(seed)
    collected = []
    for stage in range(STAGES):
        own = np.empty((2, steps))
        state = rng.normal(0, noise_us, 2)
        for step in range(steps):
            own[:, step] = 100 + 20 * stage + state
            state = lasting * state + np.sqrt(1 - lasting**2) * rng.normal(0, noise_us, 2)
        own[0] += apart_us
        collected.append(DeviceOwnTimes([stage, STAGES + stage], list(range(steps)), own, STEP_US))
    return collected


@pytest.mark.parametrize("steps", [6, 10, 16])
@pytest.mark.parametrize("seed", range(4))
def test_steady_excess_is_a_slow_rank(steps: int, seed: int) -> None:
    first, *others = stages(steps, seed=seed)
    first.own[1] += 30.0
    slow = slow_replica(first, STAGES, others)
    assert slow is not None
    assert (slow.ranks, slow.pattern) == ([STAGES], "fixed")
    assert slow.gain_us == pytest.approx(30, abs=4)


def test_ten_steps_of_two_ranks_need_the_other_stages_as_reference() -> None:
    """Else these rules would not be needed."""
    first, *others = stages(10, seed=1, lasting=0.95)
    first.own[1] += 30.0
    assert judge_ranks(first).slow is None
    assert slow_replica(first, STAGES, others) is not None
    assert slow_replica(first, STAGES, []) is None


def test_replica_within_the_spread_of_other_stages_is_no_outlier() -> None:
    first, *others = stages(10, seed=0, apart_us=20.0)
    first.own[1] += 40.0
    assert slow_replica(first, STAGES, others) is None


def test_negligible_cost_is_not_named() -> None:
    first, *others = stages(10, seed=0)
    first.own[1] += 0.04 * STEP_US
    assert slow_replica(first, STAGES, others) is None


def test_intermittent_pauses_may_be_chance() -> None:
    first, *others = stages(10, seed=0)
    first.own[1, ::3] += 90.0
    assert slow_replica(first, STAGES, others) is None


def test_autocorrelated_noise_rarely_names_a_rank() -> None:
    named = 0
    for seed in range(200):
        first, *others = stages(10, seed=seed, apart_us=0.0, noise_us=8.0)
        worst = int(first.own.mean(axis=1).argmax())
        named += slow_replica(first, first.ranks[worst], others) is not None
    assert named <= 2
