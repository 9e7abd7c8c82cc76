"""Cases between "this rank" and "no rank": a rank that was late at a cost, though chance cannot be excluded."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.analysis.collectives.blame import Blame
from rankscope.analysis.inference.late import find_late, too_few


def blame(gains_of_rank_1: list[float], gains_of_rank_0: list[float]) -> Blame:
    """Return the blame of two ranks with one collective a step; gains in microseconds of steps of 1,000."""
    gain = np.array([gains_of_rank_0, gains_of_rank_1], dtype=float).T
    steps = list(range(len(gain)))
    totals = {0: float(gain[:, 0].sum()), 1: float(gain[:, 1].sum())}
    return Blame(
        ranks=[0, 1],
        imposed_us=totals,
        exposed_us=totals,
        transfer_us={0: 1.0, 1: 1.0},
        wait_us={0: 1.0, 1: 1.0},
        steps=steps,
        gain_us=gain,
        instance_step=np.array(steps),
        waited_us=gain[:, ::-1],
        exposed_at_us=gain[:, ::-1],
    )


@pytest.mark.parametrize(
    ("rank_1", "rank_0", "named", "suspect"),
    [
        ([400.0] * 16, [0.0] * 16, 1, None),
        # one step in eight the other way: too likely by chance to name a rank, too unlikely to name none
        ([400.0] * 7 + [0.0], [0.0] * 7 + [300.0], None, 1),
        # both equally often: no rank
        ([400.0, 0.0] * 8, [0.0, 380.0] * 8, None, None),
        # always the same rank, but without cost
        ([10.0] * 16, [0.0] * 16, None, None),
    ],
)
def test_a_rank_is_named_suspected_or_neither(
    rank_1: list[float], rank_0: list[float], named: int | None, suspect: int | None
) -> None:
    found = blame(rank_1, rank_0)
    window_us = 1000.0 * len(rank_1)
    late = find_late(found, window_us)
    assert (late.ranks[0] if late else None) == named
    if late is None:
        assert too_few(found, window_us) == suspect
