"""Parts of the comparison of durations: waits at collectives beside compute, and stages of pipelines by their communicators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tests.analysis.collectives_by_hand import matched, record

from rankscope.analysis.durations.duration_calls import DurationCall, DurationCalls, RankCalls, calls_of
from rankscope.analysis.durations.overlap import longest_waits
from rankscope.analysis.durations.pipelines import block_on_sends, pipeline_stages
from rankscope.runs.durations import TRANSFER, DurationGroup
from rankscope.runs.records import CollectiveRecord

TRANSFER_NS = 100_000


def collective(wait_ns: int, last: int) -> dict[int, CollectiveRecord]:
    """Return a collective of four ranks at which all wait for the ``last``."""
    return {
        rank: record(0, (TRANSFER_NS + (wait_ns if rank != last else 0)) / 1000, op="all_gather", bytes=1) for rank in range(4)
    }


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
def test_longest_wait_of_each_delay_is_kept(waits: list[tuple[int, int]], expected: list[int]) -> None:
    matches = matched(*(collective(1_000_000 * wait, last) for wait, last in waits))
    result = longest_waits(matches, {"0"})
    assert np.flatnonzero(result.most(result.inside_ns) > TRANSFER_NS).tolist() == expected
    assert longest_waits(matches, set()) is matches


def message(group: str, op: str = "send", *, start_us: int = 0, took_us: float = 10.0, parts: int = 1) -> DurationCall:
    """Return a send, a receive or a batch."""
    return DurationCall(group, op, 1, parts, 1000 * start_us, 1000 * (start_us + round(took_us)), took_us, TRANSFER)


def ranks_of(groups: Mapping[str, Sequence[int]]) -> dict[int, RankCalls]:
    """Return the ranks of groups, with one send in each group."""
    every = sorted({rank for members in groups.values() for rank in members})
    groups_of_rank = {rank: {name: [*members] for name, members in groups.items() if rank in members} for rank in every}
    return {
        rank: RankCalls(
            [message(name) for name in names], {name: DurationGroup(name, ranks=ranks) for name, ranks in names.items()}
        )
        for rank, names in groups_of_rank.items()
    }


def names(calls: DurationCalls) -> list[str]:
    return [calls.ops[at] for at in calls.op.tolist()]


PAIRS = {f"{one}-{other}": [one, other] for one, other in [(0, 2), (2, 4), (1, 3), (3, 5)]}


@pytest.mark.parametrize(
    "groups",
    [
        {"pp0": [0, 2, 4], "pp1": [1, 3, 5]},
        PAIRS,
        # The last stage sends to the first in an interleaved schedule.
        PAIRS | {"0-4": [0, 4], "1-5": [1, 5]},
    ],
)
def test_stages_are_pipeline_positions(groups: dict[str, list[int]]) -> None:
    assert pipeline_stages(calls_of(ranks_of(groups))) == {0: 0, 2: 1, 4: 2, 1: 0, 3: 1, 5: 2}


def test_batched_ring_exchanges_have_no_stages() -> None:
    groups = {"cp0": [0, 1, 2, 3], "cp1": [4, 5, 6, 7]}
    ring = ranks_of(groups)
    for item in ring.values():
        item.rows = [message(call.group, "coalesced", parts=2) for call in item.rows] * 3
    assert pipeline_stages(calls_of(ring)) == dict.fromkeys(range(8))


def test_ring_of_single_messages_is_no_pipeline() -> None:
    pairs = {
        f"{value}-{other}": [value, other] for value, other in [(0, 1), (1, 2), (2, 3), (0, 3), (4, 5), (5, 6), (6, 7), (4, 7)]
    }
    ring = ranks_of(pairs)
    for rank, value in ring.items():
        following = rank + 1 if rank % 4 < 3 else rank - 3
        value.rows = [message(call.group, "send" if following in pairs[call.group] else "recv") for call in value.rows]
    assert pipeline_stages(calls_of(ring)) == dict.fromkeys(range(8))


@pytest.mark.parametrize(
    "groups",
    [
        # One replica: no rank does the same work as another.
        {"pp0": [0, 1, 2, 3]},
        # Pipelines of different lengths.
        {"pp0": [0, 1, 2], "pp1": [3, 4]},
        # Context parallelism with sends and receives in each stage: places in two groups.
        {"pp0": [0, 2], "pp1": [1, 3], "cp0": [0, 1], "cp1": [2, 3]},
        {"pp0": [0, 4, 8], "pp1": [1, 5, 9], "cp0": [0, 1], "cp1": [4, 5], "cp2": [8, 9]},
        # A rank whose log is missing.
        {"pp0": [0, 2, -1], "pp1": [1, 3, 5]},
    ],
)
def test_other_group_layouts_have_no_stages(groups: dict[str, list[int]]) -> None:
    ranks = ranks_of(groups)
    ranks.pop(-1, None)
    assert pipeline_stages(calls_of(ranks)) == {}


def test_batches_of_many_messages_are_no_pipeline() -> None:
    ranks = ranks_of({"ep0": [0, 1, 2], "ep1": [3, 4, 5]})
    ranks[0].rows.append(message("ep0", "coalesced", parts=6))
    assert pipeline_stages(calls_of(ranks)) == {}


@pytest.mark.parametrize(("start_us", "op"), [(500, "send"), (1000, "coalesced")])
def test_compute_waits_for_sends_unless_receives_start_during_them(start_us: int, op: str) -> None:
    ranks = {0: RankCalls([message("0-1", took_us=1000.0), message("0-2", "recv", start_us=start_us)])}
    assert names(block_on_sends(calls_of(ranks)))[0] == op
