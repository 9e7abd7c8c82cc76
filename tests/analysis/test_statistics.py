"""Statistics of series: Student's t, and means of steps whose noise lasts."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.analysis.statistics import Estimate, lasting, mean_of, t_quantile, t_tail


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    [
        (0.025, 1, 12.7062),
        (0.025, 2, 4.30265),
        (0.025, 7, 2.36462),
        (0.005, 9, 3.24984),
        (0.05, 30, 1.69726),
        (0.025, 1e7, 1.95996),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_tables(tail: float, freedom: float, expected: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(expected, rel=1e-5)
    assert t_tail(expected, freedom) == pytest.approx(tail, rel=1e-4)


def noise(seed: int, steps: int, lasts: int) -> np.ndarray:
    keep = (lasts - 1) / (lasts + 1)
    values = np.random.default_rng(seed).normal(size=steps)
    for step in range(1, steps):
        values[step] = keep * values[step - 1] + np.sqrt(1 - keep**2) * values[step]
    return values


@pytest.mark.parametrize(("steps", "lasts"), [(60, 1), (300, 1), (300, 6), (1000, 20)])
def test_the_interval_of_a_mean_holds_the_true_one_although_noise_lasts(steps: int, lasts: int) -> None:
    hits = 0
    for seed in range(200):
        low, high = mean_of(noise(seed, steps, lasts)).bounds(0.95)
        hits += low <= 0 <= high
    assert hits >= 180


def test_noise_lasts_as_long_as_it_was_made_to() -> None:
    assert lasting(noise(1, 4000, 1)) == pytest.approx(1, abs=0.3)
    assert lasting(noise(1, 4000, 10)) == pytest.approx(10, rel=0.3)


def test_one_step_has_no_interval_and_no_noise_has_a_point() -> None:
    assert mean_of(np.array([3.0])).bounds(0.95) == (-np.inf, np.inf)
    assert mean_of(np.full(20, 3.0)).bounds(0.95) == (3.0, 3.0)
    assert Estimate(3.0, 0.0, 5.0).chance_below(2.0) == 0.0
