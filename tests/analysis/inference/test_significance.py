"""Significance: results that chance alone would produce."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_blocks_keep_the_sum() -> None:
    scores = np.arange(60.0).reshape(20, 3)
    assert block_sums(scores).shape == (BLOCKS, 3)
    assert np.allclose(block_sums(scores).sum(axis=0), scores.sum(axis=0))
    assert block_sums(scores[:2]).shape == (2, 3)


def test_always_the_same_rank_is_not_chance() -> None:
    scores = np.zeros((BLOCKS, 2))
    scores[:, 1] = 1
    assert p_value(scores, 1) <= LIMIT


def test_as_many_draws_as_there_are_never_say_that_chance_is_impossible() -> None:
    scores = np.zeros((32, 8))
    scores[:, 5] = 1
    assert 0 < p_value(scores, 5) < 0.001


def test_one_block_alone_may_always_be_chance() -> None:
    scores = np.zeros((BLOCKS, 4))
    scores[3, 2] = 1000
    assert p_value(scores, 2) == 1


def test_equal_ranks_are_rarely_significant() -> None:
    rng = np.random.default_rng(7)
    rejected = 0
    for _ in range(60):
        scores = rng.exponential(size=(BLOCKS, 4))
        rejected += p_value(scores, int(scores.sum(axis=0).argmax())) <= LIMIT
    assert rejected <= 4  # one in a hundred is expected


def test_two_of_four_ahead_in_all_blocks_are_not_chance_though_each_alone_may_be() -> None:
    scores = np.zeros((BLOCKS, 4))
    scores[:, :2] = 1
    assert gap_p_value(scores, BLOCKS) <= LIMIT / 2
    assert p_value(scores, 0) > LIMIT


def test_equal_ranks_are_rarely_far_ahead_of_the_others() -> None:
    rng = np.random.default_rng(7)
    rejected = 0
    for _ in range(60):
        scores = rng.exponential(size=(BLOCKS, 6))
        rejected += gap_p_value(scores, widest_gap(scores.sum(axis=0), 3)[1]) <= LIMIT
    assert rejected <= 4  # one in a hundred is expected


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=12), st.data())
def test_nobody_between_those_ahead_and_the_others(totals: list[int], data: st.DataObject) -> None:
    most = data.draw(st.integers(1, len(totals) - 1))
    count, gap = widest_gap(np.array(totals, dtype=float), most)
    ordered = sorted(totals, reverse=True)
    assert 1 <= count <= most
    assert gap == ordered[count - 1] - ordered[count]
    assert all(ordered[k - 1] - ordered[k] <= gap for k in range(1, most + 1))


@settings(max_examples=8)
@given(st.integers(0, 50), st.floats(-1e6, 1e6))
def test_what_all_ranks_have_in_common_in_a_block_changes_no_p_value(seed: int, common: float) -> None:
    scores = np.random.default_rng(seed).integers(0, 9, size=(3, 4)).astype(float)
    moved = scores + np.array([[common], [0.0], [-common]])
    assert gap_p_value(moved, 2.0) == gap_p_value(scores, 2.0)
    assert p_value(moved, 1) == p_value(scores, 1)


@pytest.mark.parametrize(("ranks", "needed"), [(2, 8), (3, 6), (4, 5), (1024, 2)])
def test_blocks_needed_are_the_fewest_that_can_exclude_chance(ranks: int, needed: int) -> None:
    def best(blocks: int) -> float:
        scores = np.zeros((blocks, ranks))
        scores[:, 0] = 1
        return p_value(scores, 0)

    assert blocks_needed(ranks) == needed
    assert best(needed) <= LIMIT < best(needed - 1)
    assert attainable_p(needed, ranks) <= LIMIT < attainable_p(needed - 1, ranks)
