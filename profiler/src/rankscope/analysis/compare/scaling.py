"""Scaling efficiency over runs of several world sizes, and the parts of the step that reduce it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankscope.analysis.compare.comparable_steps import WORK_NAMES, Basis, ComparableSteps, WorkName, cost_per_million, priced
from rankscope.analysis.compare.compare_result import Loss, Scaling, ScalingRow
from rankscope.analysis.compare.compare_wording import percent
from rankscope.analysis.compare.outcomes import CONFIDENCE
from rankscope.analysis.compare.pair import per_second
from rankscope.analysis.compare.quantities import PARTS, parts, with_rest
from rankscope.analysis.compare.shift import Series, compare_blocks, cut
from rankscope.analysis.result.analysis import Cost

_NAMED: Final = 3
_WORTH_NAMING: Final = 0.005


def scaling(sides: Sequence[ComparableSteps], *, gpu_hour: Cost | None) -> Scaling:
    """Return one row per side, smallest world first. The first row is the reference; of equal worlds, the first named."""
    ordered = sorted(sides, key=lambda side: side.recording.world_size)
    # The best measure of work that every side recorded.
    work = next((name for name in WORK_NAMES if all(side.work[name] is not None for side in ordered)), None)
    reference = ordered[0]
    level = (1 - CONFIDENCE) / max(1, len(ordered) - 1)
    rows = [_row(side, reference, work, level, gpu_hour) for side in ordered]
    return Scaling(reference=reference.label, work=work, rows=rows, summary=_summary(rows, reference, work))


def _row(
    side: ComparableSteps, reference: ComparableSteps, work: WorkName | None, level: float, gpu_hour: Cost | None
) -> ScalingRow:
    world = side.recording.world_size
    linear = world / reference.recording.world_size
    per_s = None if work is None else per_second(side, work)
    base = None if work is None else per_second(reference, work)
    speedup = per_s / base if per_s is not None and base else None
    efficiency = None if speedup is None else speedup / linear
    low = high = None
    losses: list[Loss] = []
    if work is not None and efficiency is not None and side is not reference:
        low, high = _interval(side, reference, work, level)
        losses = _losses(side, reference, work)
    return ScalingRow(
        label=side.label,
        world_size=world,
        per_s=per_s,
        speedup=speedup,
        linear=linear,
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        losses=losses,
        cost_per_million=cost_per_million(per_s, world, priced(gpu_hour, side.recording.info)),
    )


def _rank_time(side: ComparableSteps, work: WorkName, series: Series) -> Series:
    """Return rank-microseconds per unit of work."""
    amount = side.work[work]
    assert amount is not None
    per_unit: Series = series * (side.recording.world_size / amount)
    return per_unit


def _walls(side: ComparableSteps, work: WorkName) -> Series:
    return _rank_time(side, work, side.walls)


def _interval(
    side: ComparableSteps, reference: ComparableSteps, work: WorkName, level: float
) -> tuple[float | None, float | None]:
    """Return the interval of the efficiency: the inverted interval of the ratio of the average rank-times."""
    difference = compare_blocks(*cut(_walls(reference, work), _walls(side, work)), "average", level=level)
    if difference is None or difference.ratio is None:
        return None, None
    return 1 / difference.ratio[2], 1 / difference.ratio[1]


def _losses(side: ComparableSteps, reference: ComparableSteps, work: WorkName) -> list[Loss]:
    """Return the additional rank-time of a unit of work over the reference, by part, as shares of all rank-time.

    The shares add up to 1 - efficiency.
    """
    basis: Basis = "own" if side.has_own and reference.has_own else "wall"
    of_reference, of_side = (
        {name: _rank_time(side_, work, series) for name, series in parts(side_, basis).items()} for side_ in (reference, side)
    )
    wall_reference, wall = _walls(reference, work), _walls(side, work)
    pieces = with_rest(of_reference, of_side, wall_reference, wall)
    scaling_losses = [
        Loss(name=name, label=PARTS[name].label, share=float((after.mean() - before.mean()) / wall.mean()))
        for name, (before, after) in pieces.items()
    ]
    return sorted(scaling_losses, key=lambda loss: -loss.share)


def _summary(rows: Sequence[ScalingRow], reference: ComparableSteps, work: WorkName | None) -> str:
    if work is None:
        return (
            "Efficiency is not known: not every run recorded samples, tokens or input elements. "
            "Tell the recorder (`step(samples=...)`), or let it see the data loader."
        )
    last = rows[-1]
    if last.efficiency is None:
        return f"Efficiency is not known: {reference.label} or {last.label} has no usable step."
    between = (
        f" (between {percent(last.efficiency_low, signed=False)} and {percent(last.efficiency_high, signed=False)})"
        if last.efficiency_low is not None and last.efficiency_high is not None
        else " (too few steps, or too lasting noise, to say within what)"
    )
    text = (
        f"On {last.world_size} ranks {percent(last.efficiency, signed=False)}{between} of what linear scaling from "
        f"{reference.recording.world_size} would give."
    )
    lost = [loss for loss in last.losses if loss.share >= _WORTH_NAMING][:_NAMED]
    if lost:
        text += (
            " Lost to: " + ", ".join(f"{loss.label} {percent(loss.share, signed=False)}" for loss in lost) + " of the rank-time."
        )
    return text
