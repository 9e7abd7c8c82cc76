"""Waits at collectives beside compute: one delay shows at many collectives of a step, and counts once."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.collectives_by_hand import matched, record

from rankscope.analysis.durations.overlap import longest_waits
from rankscope.runs.records import CollectiveRecord

TRANSFER = 100_000


def collective(wait_ns: int, last: int) -> dict[int, CollectiveRecord]:
    """Return a collective of four ranks at which all wait for the ``last``."""
    return {rank: record(0, (TRANSFER + (wait_ns if rank != last else 0)) / 1000, op="all_gather", bytes=1) for rank in range(4)}


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        # A delay that grows while nothing waits for it.
        ([(1, 3), (2, 3), (3, 3), (4, 3)], [3]),
        # The same, with collectives that are queued behind each other.
        ([(1, 3), (0, 0), (2, 3), (0, 0), (4, 3)], [4]),
        # A pause of another rank, for which compute waits before the slow one delays it.
        ([(11, 2), (0, 0), (1, 3), (2, 3), (4, 3)], [0, 4]),
        # A pause that lasts to the end, while a slow rank gets later still.
        ([(11, 2), (11, 2), (12, 3)], [2]),
        ([(0, 0), (0, 0)], []),
    ],
)
def test_of_each_delay_the_longest_wait_is_left(waits: list[tuple[int, int]], expected: list[int]) -> None:
    matches = matched(*(collective(1_000_000 * wait, last) for wait, last in waits))
    result = longest_waits(matches, {"0"})
    assert np.flatnonzero(result.most(result.inside_ns) > TRANSFER).tolist() == expected
    assert longest_waits(matches, set()) is matches
