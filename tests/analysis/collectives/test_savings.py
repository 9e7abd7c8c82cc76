"""Savings by healing ranks: delays of different ranks at different collectives of a step add up."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.collectives_by_hand import matched

from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.waits.blame import assign_blame
from rankscope.analysis.collectives.waits.savings import Savings
from rankscope.runs.records import CollectiveRecord

MS = 1_000_000
SECOND = 1000 * MS


def savings(*arrivals_ms: list[float], steps: list[int] | None = None, computes_ms: float = 0.0) -> Savings:
    """Return the savings of a job whose ranks come to each collective at these times; ``computes_ms``: beside each wait."""
    matches = []
    for number, row in enumerate(arrivals_ms):
        at = number * SECOND
        records = [
            CollectiveRecord(
                step=steps[number] if steps else 0,
                group="0",
                group_ranks=list(range(len(row))),
                index=number,
                op="all_reduce",
                bytes=1,
                enqueue_unix_ns=at + round(arrival * MS),
                start_unix_ns=at + round(arrival * MS),
                end_unix_ns=at + round(max(row) * MS) + MS,
                stream=7,
                compute_spans_us=[(0.0, computes_ms * 1000)] if computes_ms else [],
            )
            for arrival in row
        ]
        matches.append(dict(enumerate(records)))
    blame = assign_blame(matched(*matches), Clocks(residual_ns=0.0), range(len(arrivals_ms[0])))
    return Savings(blame, blame.ranks, blame.steps)


def test_pauses_of_others_at_another_collective_do_not_hide_what_a_rank_costs() -> None:
    """The whole step of rank 1 is as long as that of rank 0, and both delay the others."""
    result = savings([0, 9, 1, 0], [9, 0, 0, 1])
    assert result.together([0])[0] / 1000 == pytest.approx(8)
    assert result.together([0, 1])[0] / 1000 == pytest.approx(8 + 8)
    assert result.each()[:, 0].tolist() == pytest.approx([8000, 8000, 0, 0])


def test_a_healed_rank_would_still_wait_for_the_next_one() -> None:
    result = savings([9, 8, 0, 0])
    assert result.together([0])[0] / 1000 == pytest.approx(1)
    assert result.together([1])[0] == 0
    assert result.together([0, 1])[0] / 1000 == pytest.approx(9)


def test_waits_beside_compute_are_no_cost() -> None:
    assert savings([9, 0, 0], computes_ms=5).together([0])[0] / 1000 == 4
    assert savings([9, 0, 0], computes_ms=20).together([0])[0] == 0


def test_savings_are_of_each_step() -> None:
    result = savings([4, 0, 0], [0, 3, 0], [2, 0, 0], steps=[5, 5, 6])
    assert (result.together([0]) / 1000).tolist() == pytest.approx([4, 2])
    assert np.allclose(result.each() / 1000, [[4, 2], [3, 0], [0, 0]])
