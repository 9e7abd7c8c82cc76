"""Chance."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.analysis.significance import BLOCKS, LIMIT, attainable_p, block_sums, blocks_needed, p_value, stability


def test_blocks_keep_the_sum() -> None:
    scores = np.arange(60.0).reshape(20, 3)
    assert block_sums(scores).shape == (BLOCKS, 3)
    assert np.allclose(block_sums(scores).sum(axis=0), scores.sum(axis=0))
    assert block_sums(scores[:2]).shape == (2, 3)


def test_always_the_same_rank_is_not_chance() -> None:
    scores = np.zeros((BLOCKS, 2))
    scores[:, 1] = 1
    assert p_value(scores, 1) <= LIMIT


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


def test_stability_falls_where_one_block_carries_the_answer() -> None:
    steady = np.zeros((BLOCKS, 3))
    steady[:, 0] = 1
    once = np.zeros((BLOCKS, 3))
    once[0, 0] = BLOCKS
    assert stability(steady, 0, at_least=BLOCKS / 2) == 1
    assert 0.4 < stability(once, 0, at_least=BLOCKS / 2) < 0.8


@pytest.mark.parametrize(("ranks", "needed"), [(2, 8), (3, 6), (4, 5), (1024, 2)])
def test_blocks_needed_are_the_fewest_that_can_exclude_chance(ranks: int, needed: int) -> None:
    def best(blocks: int) -> float:
        scores = np.zeros((blocks, ranks))
        scores[:, 0] = 1
        return p_value(scores, 0)

    assert blocks_needed(ranks) == needed
    assert best(needed) <= LIMIT < best(needed - 1)
    assert attainable_p(needed, ranks) <= LIMIT < attainable_p(needed - 1, ranks)
