"""Significance of differences, on series with known ground truth and autocorrelated noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.compare.simulated_steps import lasting_noise

from rankscope.analysis.compare import outcomes
from rankscope.analysis.compare.outcomes import both_statistics, outcome
from rankscope.analysis.compare.quantities import STEP
from rankscope.analysis.compare.shift import (
    MIN_BLOCKS,
    MIN_STEPS,
    POWER,
    Difference,
    Series,
    Statistic,
    compare_blocks,
    cut,
    superiority,
)
from rankscope.analysis.statistics import autocorrelation_time, t_tail

STATISTICS: tuple[Statistic, ...] = ("typical", "average")
LEVEL = 0.05


def difference(a: Series, b: Series, statistic: Statistic = "typical", level: float = LEVEL) -> Difference | None:
    return compare_blocks(*cut(a, b), statistic, level=level)


@given(st.floats(0, 1e6), st.floats(0.5, 1e4))
def test_tail_probabilities_lie_in_0_to_1_and_fall_with_t(t: float, df: float) -> None:
    assert 0 <= t_tail(t + 1, df) <= t_tail(t, df) <= 1
    assert t_tail(-t, df) == pytest.approx(1 - t_tail(t, df))


Shape = tuple[int, int]
NOISES: dict[str, Callable[[np.random.Generator, Shape], Series]] = {
    "steps that know nothing of each other": lambda rng, shape: rng.standard_normal(shape),
    "noise that lasts": lambda rng, shape: lasting_noise(rng, shape, 0.8),
    "noise that lasts long": lambda rng, shape: lasting_noise(rng, shape, 0.9),
    "intermittent very slow steps": lambda rng, shape: (
        rng.random(shape) + (rng.random(shape) < 0.03) * rng.exponential(100, shape)
    ),
    "skewed": lambda rng, shape: rng.exponential(1, shape),
    "two states": lambda rng, shape: (
        0.2 * rng.standard_normal(shape) + (np.cumsum(rng.random(shape) < 0.1, axis=1) + rng.integers(2, size=(shape[0], 1))) % 2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(150, 150), (120, 480)])
@pytest.mark.parametrize("kind", NOISES)
def test_false_positive_rate_of_equal_runs_keeps_the_stated_level(kind: str, sizes: tuple[int, int]) -> None:
    # given pairs of series of the same kind
    rng = np.random.default_rng(11)
    of_a, of_b = (100 + NOISES[kind](rng, (80, size)) for size in sizes)
    # when they are compared
    pairs = [cut(a, b) for a, b in zip(of_a, of_b, strict=True)]
    for statistic in STATISTICS:
        collected = [compare_blocks(*pair, statistic, level=LEVEL) for pair in pairs]
        # then 1 in 20 differ significantly, or fewer: of 80 at most 9, which chance exceeds once in a hundred times
        assert sum(item is not None and item.is_real for item in collected) <= 9


@pytest.mark.parametrize("phi", [0.0, 0.6])
def test_change_of_the_detectable_size_is_detected_at_the_stated_power(phi: float) -> None:
    rng = np.random.default_rng(3)
    seen = judged = 0
    for a, b in zip(*(100 + 5 * lasting_noise(rng, (2, 100, 200), phi)), strict=True):
        before = difference(a, b, "average")
        if before is None:
            continue
        # Shift by the detectable difference, on top of the shift that chance has made already.
        after = difference(a, b + before.detectable, "average")
        assert after is not None
        judged += 1
        seen += after.is_real
    assert judged > 60
    assert seen / judged >= POWER - 0.1


def test_interval_contains_the_true_change_and_narrows_with_more_steps() -> None:
    rng = np.random.default_rng(5)
    inside, widths = 0, {}
    for count in (100, 1600):
        differences = [difference(100 + 5 * rng.standard_normal(count), 103 + 5 * rng.standard_normal(count)) for _ in range(60)]
        inside += sum(item is not None and item.low <= 3 <= item.high for item in differences)
        widths[count] = np.median([item.high - item.low for item in differences if item is not None])
    assert inside >= 108
    assert widths[1600] == pytest.approx(widths[100] / 4, rel=0.25)


def test_non_stationary_noise_hides_small_changes_but_not_huge_ones() -> None:
    rng = np.random.default_rng(1)
    pairs = np.cumsum(rng.standard_normal((40, 2, 100)), axis=2)
    differences = [difference(a, b) for a, b in pairs]
    assert sum(item is not None and item.is_real for item in differences) <= 6
    huge = [difference(a, b + 1000) for a, b in pairs]
    assert sum(item is not None and item.is_real for item in huge) >= 38


def test_too_few_steps_are_not_judged() -> None:
    rng = np.random.default_rng(1)
    short, enough = rng.standard_normal(MIN_STEPS - 1), rng.standard_normal(300)
    assert difference(short, enough) is None
    assert difference(enough, short) is None
    assert difference(np.empty(0), enough) is None


def test_constant_series_differ_exactly() -> None:
    result = difference(np.full(60, 100.0), np.full(60, 101.0))
    assert result is not None
    assert (result.difference, result.low, result.high, result.p_value, result.detectable) == (1, 1, 1, 0, 0)
    equal = difference(np.full(60, 100.0), np.full(60, 100.0))
    assert equal is not None
    assert (equal.is_real, equal.p_value) == (False, 1)


@pytest.mark.parametrize(("phi", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.8, 9.0)])
def test_autocorrelation_time_of_noise_is_estimated(phi: float, expected: float) -> None:
    # (1 + phi) / (1 - phi) for autoregressive noise
    rng = np.random.default_rng(2)
    assert autocorrelation_time(lasting_noise(rng, (20_000,), phi)) == pytest.approx(expected, rel=0.2)


def test_rare_slow_steps_change_the_average_and_not_the_typical_step() -> None:
    rng = np.random.default_rng(4)
    a, b = (100 + rng.standard_normal(400) for _ in range(2))
    b[::10] += 50
    typical, average = difference(a, b, "typical"), difference(a, b, "average")
    assert typical is not None
    assert average is not None
    assert abs(typical.difference) < 0.5
    assert average.is_real
    assert average.difference == pytest.approx(5, abs=0.3)


def test_a_run_has_the_same_typical_step_in_every_comparison() -> None:
    # given a baseline with skewed noise, and runs whose length and lasting noise lead to blocks of other lengths
    rng = np.random.default_rng(6)
    baseline = 100 + rng.exponential(10, 600)
    others = [100 + 10 * lasting_noise(rng, (count,), phi) for count, phi in ((60, 0.0), (600, 0.0), (600, 0.9))]
    # when each is compared with it
    differences = [difference(baseline, other) for other in others]
    # then the typical step of the baseline is its median each time
    assert [item.a for item in differences if item is not None] == [np.median(baseline)] * len(others)
    assert all(item.low <= item.difference <= item.high for item in differences if item is not None)


series = st.integers(0, 10**6).map(np.random.default_rng)


@given(series, st.integers(MIN_STEPS, 200), st.integers(MIN_STEPS, 200), st.floats(-20, 20), st.sampled_from(STATISTICS))
def test_exchanging_the_sides_inverts_the_sign(
    rng: np.random.Generator, count_a: int, count_b: int, shift: float, statistic: Statistic
) -> None:
    a, b = 100 + 5 * rng.standard_normal(count_a), 100 + shift + 5 * rng.standard_normal(count_b)
    result, other = difference(a, b, statistic), difference(b, a, statistic)
    assert (result is None) == (other is None)
    if result is not None and other is not None:
        assert result.ratio is not None
        assert other.ratio is not None
        assert (result.difference, result.low, result.high) == pytest.approx((-other.difference, -other.high, -other.low))
        assert result.p_value == pytest.approx(other.p_value)
        assert result.ratio == pytest.approx((1 / other.ratio[0], 1 / other.ratio[2], 1 / other.ratio[1]))
    assert superiority(a, b) == pytest.approx(1 - superiority(b, a))


@given(series, st.floats(1e-3, 1e3), st.sampled_from(STATISTICS))
def test_result_does_not_depend_on_the_unit(rng: np.random.Generator, unit: float, statistic: Statistic) -> None:
    a, b = 100 + 5 * rng.standard_normal(90), 102 + 5 * rng.standard_normal(70)
    result, other = difference(a, b, statistic), difference(a * unit, b * unit, statistic)
    assert (result is None) == (other is None)
    if result is not None and other is not None:
        assert (result.low * unit, result.high * unit) == pytest.approx((other.low, other.high))
        assert result.p_value == pytest.approx(other.p_value)
        assert result.ratio == pytest.approx(other.ratio)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.lists(st.floats(-5, 5), min_size=1, max_size=40))
def test_superiority_is_the_share_of_pairs(a: list[float], b: list[float]) -> None:
    pairs = [0.5 * (x == y) + (y > x) for x, y in itertools.product(a, b)]
    assert superiority(np.array(a), np.array(b)) == pytest.approx(sum(pairs) / len(pairs))


@given(series, st.integers(1, 400), st.integers(1, 400))
def test_blocks_contain_all_steps_in_order(rng: np.random.Generator, count_a: int, count_b: int) -> None:
    a, b = rng.standard_normal(count_a), rng.standard_normal(count_b)
    for uncut, blocks in zip((a, b), cut(a, b)[:2], strict=True):
        assert np.array_equal(np.concatenate(blocks), uncut)
        if len(blocks) >= MIN_BLOCKS:
            assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def difference_of(low: float, high: float) -> Difference:
    middle = (low + high) / 2
    return Difference(a=100, b=100 + middle, low=low, high=high, p_value=0.5, detectable=1, ratio=None)


@pytest.mark.parametrize(
    ("intervals", "says"),
    [
        ([], "insufficient_data"),
        ([(2, 4)], "worse"),
        ([(-4, -2)], "better"),
        ([(0.5, 3)], "worse"),
        ([(0.1, 0.5)], "same"),  # real, but less than what matters
        ([(-0.5, 0.6)], "same"),
        ([(-3, 4)], "undecided"),
        ([(-0.5, 1.2)], "undecided"),
        ([(2, 4), (-9, 9)], "worse"),
        ([(-4, -2), (2, 9)], "mixed"),
        ([(-0.5, 0.5), (-9, 9)], "undecided"),
    ],
)
def test_combined_intervals_determine_the_outcome(intervals: list[tuple[float, float]], says: str) -> None:
    # given what matters is a difference of 1
    assert outcome([difference_of(*interval) for interval in intervals], 1.0, "lower") == says
    opposite = {"worse": "better", "better": "worse"}
    assert outcome([difference_of(*interval) for interval in intervals], 1.0, "higher") == opposite.get(says, says)


def test_interval_ends_at_a_step_length_of_zero() -> None:
    # given a side so noisy that the interval of the difference is wider than its step time
    rng = np.random.default_rng(5)
    a, b = 400 + 150 * lasting_noise(rng, (1, 200), 0.9)[0], np.full(200, 20.0)
    statistics = both_statistics(*cut(a, b), LEVEL)
    assert any(item.low < -item.a for item in statistics.all)
    # then the published interval ends where B takes no time at all
    quantity = outcomes.tested_quantity("step", STEP, "step", a, b, level=LEVEL, min_change=0.01, step_us=400.0)
    for shift in (quantity.typical, quantity.average):
        assert shift is not None
        assert -shift.a <= shift.low <= shift.difference
        assert shift.relative_low is not None
        assert shift.relative_low >= -1


def test_infinite_t_has_probability_zero() -> None:
    assert t_tail(math.inf, 5) == 0
