"""Slow ranks of pipeline stages with few replicas, judged beside the ranks of the other stages.

Two ranks and ten steps cannot show how long their noise lasts, so by themselves they exclude chance for no excess, however large.
But the stages of a job run on like machines: what no rank of another stage deviates from its replicas by is no noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.inference.judging.excess import excess
from rankscope.analysis.inference.judging.significance import LIMIT, block_sums, p_value
from rankscope.analysis.inference.judging.slow_ranks import MINIMUM_EFFECT, SlowRanks
from rankscope.analysis.statistics import t_quantile


def slow_replica(group: OwnTimes, suspect: int, calm: Sequence[OwnTimes]) -> SlowRanks | None:
    """Return the rank ``suspect`` of ``group`` as slow, if neither chance nor noise of any duration explains its excess.

    ``calm``: groups of other stages without slow ranks. Four conditions must hold:

    - Healing the rank saves ``MINIMUM_EFFECT`` of the step.
    - A permutation test among the excess of all these ranks excludes chance.
    - Its mean excess is an outlier among those of the ranks of other stages, whatever their noise lasts.
    - Its excess is larger than one draw of its own noise. Only steady excess is, as noise may last as long as the steps.
    """
    same_steps = [group_beside for group_beside in calm if group_beside.steps == group.steps]
    row = group.ranks.index(suspect)
    excesses = [excess(group_beside.own) for group_beside in (group, *same_steps)]
    own_excess = excesses[0][row]
    gain = float((group.own[row] - np.delete(group.own, row, axis=0).max(axis=0)).mean())
    if not same_steps or len(own_excess) < 2 or gain < MINIMUM_EFFECT * group.wall_us:
        return None
    all_excesses = np.concatenate(excesses)
    others = all_excesses[len(group.ranks) :].mean(axis=1)
    # In each group, the ranks' deviations from their peers add up to about nothing.
    between = t_quantile(LIMIT / len(all_excesses), len(others) - len(same_steps)) * float(np.sqrt((others**2).mean()))
    within = t_quantile(LIMIT / len(all_excesses), len(own_excess) - 1) * float(own_excess.std(ddof=1))
    if own_excess.mean() <= max(between, within) or (chance := p_value(block_sums(all_excesses.T), row)) > LIMIT:
        return None
    last = group.own.argmax(axis=0) == row
    return SlowRanks(
        [suspect], "fixed", gain, float(own_excess.mean()), chance, 1.0, float(last.mean()), np.ones(len(own_excess), dtype=bool)
    )
