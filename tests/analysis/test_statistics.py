"""Statistics of series: Student's t, and means of steps whose noise lasts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.analysis.compare.simulated_steps import lasting_noise

from rankscope.analysis.statistics import (
    Estimate,
    autocorrelation_time,
    excess_of_rank,
    lower_medians,
    mean_of,
    medians,
    t_quantile,
    t_tail,
)


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    [
        (0.025, 1, 12.7062),
        (0.025, 2, 4.30265),
        (0.05, 4, 2.13185),
        (0.001, 6, 5.20763),
        (0.025, 7, 2.36462),
        (0.0005, 8, 5.04131),
        (0.005, 9, 3.24984),
        (0.05, 30, 1.69726),
        (0.025, 1e7, 1.95996),
    ],
)
def test_student_t_quantiles_equal_the_tables(tail: float, freedom: float, expected: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(expected, rel=1e-5)
    assert t_tail(expected, freedom) == pytest.approx(tail, rel=1e-4)


@pytest.mark.parametrize("tail", [0.4, 0.05, 1e-3, 1e-6, 1e-9])
def test_student_t_equals_its_closed_form_for_few_degrees_of_freedom(tail: float) -> None:
    of_one = 1 / math.tan(math.pi * tail)
    of_two = (1 - 2 * tail) / math.sqrt(2 * tail * (1 - tail))
    assert t_quantile(tail, 1) == pytest.approx(of_one, rel=1e-9)
    assert t_quantile(tail, 2) == pytest.approx(of_two, rel=1e-9)
    assert t_tail(of_one, 1) == pytest.approx(tail, rel=1e-9)
    assert t_tail(of_two, 2) == pytest.approx(tail, rel=1e-9)


def test_medians_ignore_unknown_values() -> None:
    rows = np.array([[3, np.nan, 1, 2], [4, 1, 2, 3], [np.nan] * 4, [np.nan, 7, np.nan, np.nan]])
    assert medians(rows.copy()).tolist() == pytest.approx([2, 2.5, np.nan, 7], nan_ok=True)
    assert lower_medians(rows.copy()).tolist() == pytest.approx([2, 2, np.nan, 7], nan_ok=True)


def test_excess_of_a_rank_is_over_the_known_values_of_its_peers() -> None:
    values = {0: 1.0, 1: 2.0, 2: 9.0, 3: None}
    assert excess_of_rank(values, 2) == 7.5
    assert excess_of_rank(values, 2, [0, 2, 3, 8]) == 8.0
    assert excess_of_rank(values, 3) is None
    assert excess_of_rank(values, 8) is None
    assert excess_of_rank({5: 1.0}, 5) is None


def noise(seed: int, steps: int, *, lasts: int) -> NDArray[np.float64]:
    return lasting_noise(np.random.default_rng(seed), (steps,), (lasts - 1) / (lasts + 1))


@pytest.mark.parametrize(("steps", "lasts"), [(60, 1), (300, 1), (300, 6), (1000, 20)])
def test_interval_of_the_mean_covers_the_true_one_in_correlated_noise(steps: int, lasts: int) -> None:
    hits = 0
    for seed in range(200):
        low, high = mean_of(noise(seed, steps, lasts=lasts)).bounds(0.95)
        hits += low <= 0 <= high
    assert hits >= 180


def test_estimated_autocorrelation_time_equals_the_simulated_one() -> None:
    assert autocorrelation_time(noise(1, 4000, lasts=1)) == pytest.approx(1, abs=0.3)
    assert autocorrelation_time(noise(1, 4000, lasts=10)) == pytest.approx(10, rel=0.3)


def test_single_step_has_no_interval_and_constant_steps_have_a_point() -> None:
    assert mean_of(np.array([3.0])).bounds(0.95) == (-np.inf, np.inf)
    assert mean_of(np.full(20, 3.0)).bounds(0.95) == (3.0, 3.0)
    assert Estimate(3.0, 0.0, 5.0).chance_below(2.0) == 0.0
