"""Change points of a series are found; noise has none."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.inference.change_points import LEAST_SHARE, ChangePoint, change_points, moved_with


def noisy(levels: list[tuple[float, int]], *, seed: int = 0, scatter: float = 0.03) -> np.ndarray:
    """Return a series of steps at each level in turn; scatter is relative to the level, with heavy tails."""
    rng = np.random.default_rng(seed)
    series = np.concatenate([np.full(count, level) for level, count in levels])
    return series * (1 + scatter * rng.standard_t(4, size=len(series)))


def test_lasting_rise_is_found_at_its_step_with_both_levels() -> None:
    # Given a series whose level rises by a third at step 40 of 100
    series = noisy([(30_000.0, 40), (40_000.0, 60)])
    # When it is searched
    (change,) = change_points(series)
    # Then the step and both levels are those
    assert change.at == 40
    assert change.before == pytest.approx(30_000, rel=0.03)
    assert change.after == pytest.approx(40_000, rel=0.03)


def test_reverted_change_is_two_changes() -> None:
    changes = change_points(noisy([(30.0, 50), (45.0, 50), (30.0, 50)]))
    assert [change.at for change in changes] == pytest.approx([50, 100], abs=2)


@pytest.mark.parametrize("steps", [600, 10_000])
def test_change_is_located_within_two_of_many_steps(steps: int) -> None:
    at = steps // 3 + 7
    (change,) = change_points(noisy([(100.0, at), (130.0, steps - at)]))
    assert abs(change.at - at) <= 2


def test_single_slow_steps_are_no_change() -> None:
    series = noisy([(100.0, 200)])
    series[::10] *= 5
    assert change_points(series) == []


def test_autocorrelated_noise_is_rarely_a_change() -> None:
    # Given a hundred runs whose noise decays over several steps
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(100):
        noise = np.zeros(120)
        for step in range(1, len(noise)):
            noise[step] = 0.6 * noise[step - 1] + rng.normal()
        false += bool(change_points(100 + 8 * noise))
    # Then at most a few of them have a change point
    assert false <= 2


@pytest.mark.parametrize("series", [[], [1.0] * 15, [float("nan")] * 50, [5.0] * 300, [0.0] * 100])
def test_short_unknown_or_constant_series_have_no_change(series: list[float]) -> None:
    assert change_points(np.array(series)) == []


def test_unknown_values_are_left_out_and_keep_the_positions() -> None:
    series = noisy([(30.0, 60), (45.0, 60)])
    series[10:20] = np.nan
    (change,) = change_points(series)
    assert change.at == 60


@given(
    levels=st.lists(st.tuples(st.floats(1, 1e6), st.integers(1, 60)), min_size=1, max_size=5),
    seed=st.integers(0, 100),
    factor=st.sampled_from([0.25, 8.0, 1024.0]),
)
def test_changes_are_ascending_significant_contiguous_and_scale_free(
    levels: list[tuple[float, int]], seed: int, factor: float
) -> None:
    series = noisy(levels, seed=seed)
    changes = change_points(series)
    assert [change.at for change in changes] == sorted({change.at for change in changes})
    assert all(0 < change.at < len(series) for change in changes)
    assert all(abs(change.after - change.before) >= LEAST_SHARE * abs(change.before) for change in changes)
    assert all(item.after == other.before for item, other in pairwise(changes))
    assert change_points(series * factor) == [
        ChangePoint(change.at, change.before * factor, change.after * factor) for change in changes
    ]


def test_change_is_attributed_to_ranks_whose_own_time_moved_with_it() -> None:
    # Given own times of four ranks: the second rises by 10, the third falls, the fourth is unknown after the change
    before = np.full((4, 20), 30.0)
    after = np.full((4, 20), 30.0)
    after[1], after[2], after[3] = 40.0, 20.0, np.nan
    # When the step time rises by 12, or falls by 12
    # Then it is the second, or the third
    assert moved_with(before, after, 12.0).tolist() == [1]
    assert moved_with(before, after, -12.0).tolist() == [2]
