"""Detection of slowness that rotates among the ranks, from own times."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.evidence.compared import MINIMUM_STEPS, Judged
from rankscope.analysis.evidence.order import last_ranks, ordered
from rankscope.analysis.inference.slow import FIXED, Slow


def find_rotating(judged: Judged) -> Slow | None:
    """Return the slowness that moves from rank to rank, or ``None``.

    Some rank is always last. Here the last rank must be an outlier in at least ``FIXED`` of the steps: its gap to the rank before
    it is at least five times the typical distance between the others, and 15 % of the step. Exponential noise, the worst common
    kind, reaches half of that.
    """
    own = judged.own
    if len(own) < 4 or own.shape[1] < 2 * MINIMUM_STEPS:
        return None
    least, second, most = ordered(own, [0, len(own) - 2, len(own) - 1]).astype(np.float64)
    gap = most - second
    spacing = (second - least) / (len(own) - 2)
    far = gap >= np.maximum(5 * spacing, 0.15 * judged.wall_us)
    if far.mean() < FIXED:
        return None
    counts = np.bincount(last_ranks(own)[far], minlength=len(own))
    took_part = np.flatnonzero(counts >= 2)
    if len(took_part) < 3 or counts.max() > 0.5 * far.sum():
        return None
    return Slow(
        ranks=[judged.ranks[row] for row in took_part[np.argsort(-counts[took_part], kind="stable")]],
        pattern="rotating",
        gain_us=float(gap.mean()),
        excess_us=float(gap[far].mean()),
        p_value=None,
        stability=float(far.mean()),
        last_share=1.0,
        affected=far,
    )
