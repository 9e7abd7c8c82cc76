"""Derive an outcome that a person can act on from differences and their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from rankscope.analysis.compare.compare_result import Outcome, Quantity, Role, Shift
from rankscope.analysis.compare.quantities import QuantityKind
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
from rankscope.analysis.statistics import BATCH_LENGTH

CONFIDENCE: Final = 0.95
"""Joint confidence of all intervals and tests of one comparison."""

METHOD: Final = (
    "batch means: Welch's test on the medians (typical step) and means (average step) of blocks of consecutive steps, at least "
    f"{BATCH_LENGTH:.0f} times as long as the noise lasts, {MIN_BLOCKS} blocks of either side or more; Bonferroni over all "
    f"tests, half of the allowance for the step time; detectable with a chance of {POWER:.0%}"
)

_STATISTICS: Final[tuple[Statistic, ...]] = ("typical", "average")


@dataclass(frozen=True, slots=True)
class Levels:
    """Allowed chance of a false alarm per single test, so that all tests together have 1 - ``CONFIDENCE``."""

    step: float
    inside: float
    ranks: float

    @classmethod
    def over(cls, *, inside: int, ranks: int) -> Levels:
        """Divide the allowance: half for the step time, which decides; a quarter each for quantities inside it and for ranks."""
        allowance = (1 - CONFIDENCE) / len(_STATISTICS)
        return cls(step=allowance / 2, inside=allowance / 4 / max(1, inside), ranks=allowance / 4 / max(1, ranks))


@dataclass(frozen=True, slots=True)
class TestedPair:
    """Both statistics of one pair of series; ``None``: too little data."""

    typical: Difference | None
    average: Difference | None

    @property
    def all(self) -> list[Difference]:
        """Statistics that are not ``None``."""
        return [difference for difference in (self.typical, self.average) if difference is not None]


def both_statistics(a: Sequence[Series], b: Sequence[Series], too_short: float, level: float) -> TestedPair:
    """Compute both statistics of series that are already cut into blocks."""
    typical, average = (compare_blocks(a, b, too_short, statistic, level=level) for statistic in _STATISTICS)
    return TestedPair(typical, average)


def outcome(differences: Sequence[Difference], least_difference: float, better: Literal["lower", "higher"]) -> Outcome:
    """Combine the statistics of one quantity. ``least_difference``: the smallest that matters, in the quantity's unit."""
    if not differences:
        return "insufficient_data"
    sign = 1 if better == "lower" else -1
    large = [difference for difference in differences if difference.is_real and abs(difference.difference) >= least_difference]
    worse = any(sign * difference.difference > 0 for difference in large)
    improved = any(sign * difference.difference < 0 for difference in large)
    if worse and improved:
        return "mixed"
    if worse or improved:
        return "worse" if worse else "better"
    small = all(
        (difference.is_real and abs(difference.difference) < least_difference)
        or (-least_difference < difference.low and difference.high < least_difference)
        for difference in differences
    )
    return "same" if small else "undecided"


def as_shift(difference: Difference | None, level: float) -> Shift | None:
    """Convert to the published form; the p-value is scaled for comparison with 1 - ``CONFIDENCE``."""
    if difference is None:
        return None
    # Divided by A's measured value without its noise, so this interval excludes 0 where that of the difference does.
    relative, low, high = (
        value / difference.a if difference.a > 0 else None for value in (difference.difference, difference.low, difference.high)
    )
    return Shift(
        a=difference.a,
        b=difference.b,
        difference=difference.difference,
        low=difference.low,
        high=difference.high,
        relative=relative,
        relative_low=low,
        relative_high=high,
        p_value=min(1.0, difference.p_value * (1 - CONFIDENCE) / level),
        real=difference.is_real,
        detectable=difference.detectable,
    )


def tested_quantity(
    name: str, kind: QuantityKind, role: Role, a: Series, b: Series, *, level: float, min_change: float, step_us: float
) -> Quantity:
    """Test one quantity of the steps. ``step_us``: A's mean step; ``min_change``: the fraction of it that matters."""
    why = f"{min(len(a), len(b))} usable steps on one side; {MIN_STEPS} are needed"
    least_difference = min_change * step_us
    return _quantity(name, kind, role, cut(a, b), level=level, least_difference=least_difference, step_us=step_us, why=why)


def window_quantity(
    name: str, kind: QuantityKind, a: Sequence[Series], b: Sequence[Series], *, level: float, min_change: float, step_us: float
) -> Quantity:
    """Test one quantity of the profiled steps, each window a block. ``step_us``: A's mean profiled step."""
    least_difference = min_change * step_us if kind.unit == "us" else min_change
    why = f"{min(len(a), len(b))} profiled windows on one side; {MIN_BLOCKS} are needed"
    return _quantity(name, kind, "window", (a, b, 1.0), level=level, least_difference=least_difference, step_us=step_us, why=why)


def single_quantity(name: str, kind: QuantityKind, a: float | None, b: float | None) -> Quantity:
    """Compare one number of either side; the difference cannot be tested against noise."""
    return Quantity(
        name=name,
        label=kind.label,
        unit=kind.unit,
        role="single",
        better=kind.better,
        a=a,
        b=b,
        difference=None if a is None or b is None else b - a,
        of_step=None,
        outcome="untested",
        why="one number of each side" if a is not None and b is not None else "not recorded on one side",
    )


def _with_possible_bounds(difference: Difference | None) -> Difference | None:
    """Return the difference without the part of its interval in which B would be negative, as no time or share is."""
    if difference is None:
        return None
    return replace(difference, low=max(difference.low, min(-difference.a, difference.difference)))


def _quantity(
    name: str,
    kind: QuantityKind,
    role: Role,
    blocks: tuple[Sequence[Series], Sequence[Series], float],
    *,
    level: float,
    least_difference: float,
    step_us: float,
    why: str,
) -> Quantity:
    statistics = both_statistics(*blocks, level)
    of_a, of_b = np.concatenate(blocks[0]), np.concatenate(blocks[1])
    has_both = len(of_a) > 0 and len(of_b) > 0
    difference = float(of_b.mean()) - float(of_a.mean()) if has_both else None
    return Quantity(
        name=name,
        label=kind.label,
        unit=kind.unit,
        role=role,
        better=kind.better,
        a=float(of_a.mean()) if len(of_a) else None,
        b=float(of_b.mean()) if len(of_b) else None,
        difference=difference,
        of_step=difference / step_us if difference is not None and kind.unit == "us" else None,
        typical=as_shift(_with_possible_bounds(statistics.typical), level),
        average=as_shift(_with_possible_bounds(statistics.average), level),
        superiority=superiority(of_a, of_b) if has_both else None,
        outcome=outcome(statistics.all, least_difference, kind.better),
        why=None if statistics.all else why,
    )
