"""Matching of collectives, sends and receives, and the reasons for exclusion."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.collectives_by_hand import ByRank, numbered, record

from rankscope.analysis.collectives.matching import match_collectives
from rankscope.runs.records import CollectiveRecord


@pytest.mark.parametrize(
    ("first", "other", "reason"),
    [
        ({"op": "all_reduce"}, {"op": "all_gather"}, "operation_differs"),
        ({"bytes": 8}, {"bytes": 16}, "bytes_differ"),
        ({"dtype": "Float"}, {"dtype": "Half"}, "dtype_differs"),
        ({"op": "broadcast", "root": 0}, {"op": "broadcast", "root": 1}, "root_differs"),
        ({"group_ranks": [0, 1]}, {"group_ranks": [0, 1, 2]}, "ranks_differ"),
        ({"sequence": 1}, {"sequence": 2}, "incomplete"),
    ],
)
def test_members_that_disagree_are_unmatched_and_counted_by_reason(
    first: dict[str, Any], other: dict[str, Any], reason: str
) -> None:
    matching = match_collectives({0: [record(0, 9, **first)], 1: [record(0, 9, **other)], 2: []})
    assert not matching.matches
    assert set(matching.unmatched_by) == {reason}
    assert matching.unmatched == sum(matching.unmatched_by.values())


def test_unrecorded_rank_and_missing_collective_are_different_reasons() -> None:
    members = {"group_ranks": [0, 1, 2]}
    both = [record(0, 9, **members)]
    assert match_collectives({0: both, 1: both}).unmatched_by == {"rank_missing": 1}
    assert match_collectives({0: both, 1: both, 2: []}).unmatched_by == {"incomplete": 1}
    assert match_collectives({0: both, 1: [*both, record(10, 19, index=1, **members)], 2: both}).unmatched_by == {
        "order_shifted": 2
    }


def test_broadcast_with_a_known_root_is_a_directed_match() -> None:
    matching = match_collectives({rank: [record(0, 9, op="broadcast", root=1)] for rank in (0, 1, 2)})
    assert (len(matching.matches), matching.excluded, matching.unmatched) == (0, {}, 0)
    assert [(match.rule, match.root, match.ranks) for match in matching.directed] == [("from_root", 1, [0, 1, 2])]


def test_sends_pair_with_receives_by_peer_and_order_among_other_operations() -> None:
    by_rank = {
        0: numbered([record(0, 1, op="send", peer=1, bytes=4), record(2, 9), record(10, 11, op="send", peer=1, bytes=8)]),
        1: numbered([record(0, 1, op="recv", peer=0, bytes=4), record(10, 11, op="recv", peer=0, bytes=8), record(2, 9)]),
    }
    matching = match_collectives(by_rank)
    assert [(match.ranks, match.records[0].bytes, match.records[1].bytes) for match in matching.directed] == [
        ([0, 1], 4, 4),
        ([0, 1], 8, 8),
    ]
    assert len(matching.matches) == 1
    assert (matching.unmatched, matching.excluded) == (0, {})


def test_peer_in_a_group_of_two_is_the_other_rank() -> None:
    by_rank = {0: [record(0, 9, op="send")], 1: [record(0, 9, op="recv")]}
    assert len(match_collectives(by_rank, world_size=2).directed) == 1
    in_group = {rank: [record(0, 9, op=op, group_ranks=[3, 5])] for rank, op in ((3, "send"), (5, "recv"))}
    assert [match.ranks for match in match_collectives(in_group, world_size=8).directed] == [[3, 5]]
    # In a larger world the two ranks might have communicated with others.
    assert match_collectives(by_rank, world_size=3).excluded == {"p2p": 1}


@pytest.mark.parametrize(
    ("by_rank", "reason"),
    [
        ({0: [record(0, 9, op="send", peer=1)]}, "rank_missing"),
        ({0: [record(0, 9, op="send", peer=1)], 1: []}, "incomplete"),
        (
            {0: [record(0, 9, op="send", peer=1), record(9, 10, op="send", peer=1)], 1: [record(0, 9, op="recv", peer=0)]},
            "order_shifted",
        ),
        ({0: [record(0, 9, op="send", peer=1, bytes=8)], 1: [record(0, 9, op="recv", peer=0, bytes=4)]}, "bytes_differ"),
    ],
)
def test_transfers_without_a_counterpart_are_counted_by_reason(by_rank: ByRank, reason: str) -> None:
    matching = match_collectives(by_rank)
    assert not matching.directed
    assert set(matching.unmatched_by) == {reason}


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[int, int]]:
    return [
        (sender, (sender + hop) % 4)
        for sender, hop in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=20))
    ]


@given(schedules(), st.permutations(range(4)))
def test_messages_pair_with_their_own_receives_for_any_rank_numbers(schedule: list[tuple[int, int]], names: list[int]) -> None:
    by_rank: dict[int, list[CollectiveRecord]] = {rank: [] for rank in names}
    for number, (sender, receiver) in enumerate(schedule):
        item, other = names[sender], names[receiver]
        by_rank[item].append(record(number, number + 1, op="send", peer=other, sequence=number))
        by_rank[other].append(record(number, number + 1, op="recv", peer=item, sequence=number))
    matching = match_collectives({rank: numbered(rows) for rank, rows in by_rank.items()})
    assert matching.unmatched == 0
    result = sorted((match.records[0].sequence, match.records[1].sequence, *match.ranks) for match in matching.directed)
    assert result == [(number, number, names[item], names[other]) for number, (item, other) in enumerate(schedule)]


def test_sequence_numbers_match_where_order_would_not() -> None:
    by_rank = {
        0: [record(0, 9, sequence=5, index=0), record(10, 19, sequence=6, index=1)],
        1: [record(12, 19, sequence=6, index=0)],
    }
    matching = match_collectives(by_rank)
    assert [match.records[0].sequence for match in matching.matches] == [6]
    assert (matching.unmatched, matching.method) == (1, "sequence")


def test_order_without_sequence_numbers_needs_a_record_of_each_rank() -> None:
    by_rank = {0: [record(0, 9), record(10, 19, index=1)], 1: [record(12, 19)]}
    matching = match_collectives(by_rank)
    assert (len(matching.matches), matching.unmatched, matching.method) == (0, 2, None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"op": "send", "p2p": True}, "p2p"),
        ({"op": "broadcast"}, "broadcast"),
        ({"op": "gather"}, "rooted"),
        ({"op": "all_to_allv"}, "uneven_all_to_all"),
        ({"op": "dispatch"}, "expert_parallel"),
        ({"op": "coalesced"}, "p2p"),
        ({"op": "coalesced", "p2p": True}, "p2p"),
        ({"op": "unknown"}, "unknown_operation"),
        ({"op": "exchange_of_halos"}, "unknown_operation"),
    ],
)
def test_operations_without_wait_evidence_are_counted_by_reason(fields: dict[str, Any], reason: str) -> None:
    matching = match_collectives({rank: [record(0, 9, **fields), record(10, 19, index=1)] for rank in (0, 1)})
    assert matching.excluded == {reason: 1}
    assert (len(matching.matches), matching.unmatched) == (1, 0)


def test_a_group_is_complete_only_with_all_its_ranks() -> None:
    by_rank = {rank: [record(0, 9, group_ranks=[0, 1, 2])] for rank in (0, 1)}
    assert match_collectives(by_rank).unmatched == 1
    assert match_collectives({rank: [record(0, 9)] for rank in (0, 1)}, world_size=3).unmatched == 1


def test_groups_of_the_same_name_with_other_members_are_separate() -> None:
    by_rank = {rank: [record(0, 9, group="tp", group_ranks=[0, 1] if rank < 2 else [2, 3])] for rank in range(4)}
    assert [match.ranks for match in match_collectives(by_rank).matches] == [[0, 1], [2, 3]]


def test_sizes_conflict_only_if_both_are_known_and_differ() -> None:
    assert len(match_collectives({0: [record(0, 9, bytes=8)], 1: [record(0, 9)]}).matches) == 1
    exchange = {rank: [record(0, 9, op="all_to_all", bytes=8 + rank)] for rank in (0, 1)}
    assert match_collectives(exchange).excluded == {"uneven_all_to_all": 1}
