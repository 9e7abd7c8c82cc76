"""Derive an outcome that a person can act on from differences and their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from rankscope.analysis.compare.quantities import Kind
from rankscope.analysis.compare.result import Outcome, Quantity, Role, Shift
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
from rankscope.analysis.statistics import TIMES_LASTING

CONFIDENCE: Final = 0.95
"""Joint confidence of all intervals and tests of one comparison."""

METHOD: Final = (
    "batch means: Welch's test on the medians (typical step) and means (average step) of blocks of consecutive steps, at least "
    f"{TIMES_LASTING:.0f} times as long as the noise lasts, {MIN_BLOCKS} blocks of either side or more; Bonferroni over all "
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
        whole = (1 - CONFIDENCE) / len(_STATISTICS)
        return cls(step=whole / 2, inside=whole / 4 / max(1, inside), ranks=whole / 4 / max(1, ranks))


@dataclass(frozen=True, slots=True)
class Tested:
    """Both statistics of one pair of series; ``None``: too little data."""

    typical: Difference | None
    average: Difference | None

    @property
    def all(self) -> list[Difference]:
        """Statistics that are not ``None``."""
        return [one for one in (self.typical, self.average) if one is not None]


def both_statistics(a: Sequence[Series], b: Sequence[Series], too_short: float, level: float) -> Tested:
    """Compute both statistics of series that are already cut into blocks."""
    typical, average = (compare_blocks(a, b, too_short, statistic, level=level) for statistic in _STATISTICS)
    return Tested(typical, average)


def outcome(found: Sequence[Difference], matters: float, better: Literal["lower", "higher"]) -> Outcome:
    """Combine the statistics of one quantity. ``matters``: the smallest difference that matters, in the quantity's unit."""
    if not found:
        return "insufficient_data"
    sign = 1 if better == "lower" else -1
    large = [one for one in found if one.is_real and abs(one.difference) >= matters]
    worse = any(sign * one.difference > 0 for one in large)
    improved = any(sign * one.difference < 0 for one in large)
    if worse and improved:
        return "mixed"
    if worse or improved:
        return "worse" if worse else "better"
    small = all((one.is_real and abs(one.difference) < matters) or (-matters < one.low and one.high < matters) for one in found)
    return "same" if small else "undecided"


def as_shift(found: Difference | None, level: float) -> Shift | None:
    """Convert to the published form; the p-value is scaled for comparison with 1 - ``CONFIDENCE``."""
    if found is None:
        return None
    # Divided by A's measured value without its noise, so this interval excludes 0 where that of the difference does.
    relative, low, high = (value / found.a if found.a > 0 else None for value in (found.difference, found.low, found.high))
    return Shift(
        a=found.a,
        b=found.b,
        difference=found.difference,
        low=found.low,
        high=found.high,
        relative=relative,
        relative_low=low,
        relative_high=high,
        p_value=min(1.0, found.p_value * (1 - CONFIDENCE) / level),
        real=found.is_real,
        detectable=found.detectable,
    )


def tested_quantity(
    name: str, kind: Kind, role: Role, a: Series, b: Series, *, level: float, min_change: float, step_us: float
) -> Quantity:
    """Test one quantity of the steps. ``step_us``: A's mean step; ``min_change``: the fraction of it that matters."""
    why = f"{min(len(a), len(b))} usable steps on one side; {MIN_STEPS} are needed"
    matters = min_change * step_us
    return _quantity(name, kind, role, cut(a, b), level=level, matters=matters, step_us=step_us, why=why)


def window_quantity(
    name: str, kind: Kind, a: Sequence[Series], b: Sequence[Series], *, level: float, min_change: float, step_us: float
) -> Quantity:
    """Test one quantity of the profiled steps, each window a block. ``step_us``: A's mean profiled step."""
    matters = min_change * step_us if kind.unit == "us" else min_change
    why = f"{min(len(a), len(b))} profiled windows on one side; {MIN_BLOCKS} are needed"
    return _quantity(name, kind, "window", (a, b, 1.0), level=level, matters=matters, step_us=step_us, why=why)


def single_quantity(name: str, kind: Kind, a: float | None, b: float | None) -> Quantity:
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


def _quantity(
    name: str,
    kind: Kind,
    role: Role,
    blocks: tuple[Sequence[Series], Sequence[Series], float],
    *,
    level: float,
    matters: float,
    step_us: float,
    why: str,
) -> Quantity:
    found = both_statistics(*blocks, level)
    of_a, of_b = np.concatenate(blocks[0]), np.concatenate(blocks[1])
    known = len(of_a) > 0 and len(of_b) > 0
    difference = float(of_b.mean()) - float(of_a.mean()) if known else None
    larger = superiority(of_a, of_b) if known else None
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
        typical=as_shift(found.typical, level),
        average=as_shift(found.average, level),
        superiority=larger,
        cliffs_delta=None if larger is None else 2 * larger - 1,
        outcome=outcome(found.all, matters, kind.better),
        why=None if found.all else why,
    )
