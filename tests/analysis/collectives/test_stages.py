"""Sends and receives of pipelines are told from those of rings, halos and all-to-all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rankscope.analysis.collectives.stages import stages_of_records
from rankscope.runs.records import CollectiveRecord

Batches = Sequence[Sequence[tuple[str, int]]]
"""Batches of one rank in a step, each of operations with the rank at the other end."""


def records(
    batches: Callable[[int], Batches], ranks: Sequence[int], *, group: list[int] | None, steps: int = 2, peers: bool = True
) -> dict[int, list[CollectiveRecord]]:
    """Return the records of ``ranks``, with what each does per step."""
    return {
        rank: [
            CollectiveRecord(
                step=step,
                group="g",
                group_ranks=group,
                index=index,
                op=op,
                enqueue_unix_ns=1000 * (100 * step + at),
                start_unix_ns=1000 * (100 * step + at),
                end_unix_ns=1000 * (100 * step + at) + 500,
                stream=0,
                p2p=True,
                peer=peer if peers else None,
            )
            for step in range(steps)
            for at, batch in enumerate(batches(rank))
            for index, (op, peer) in enumerate(batch)
        ]
        for rank in ranks
    }


def one_by_one(batches: Callable[[int], Batches]) -> Callable[[int], Batches]:
    """Return the same operations, none of them batched."""
    return lambda rank: [[message] for batch in batches(rank) for message in batch]


def ring(rank: int) -> Batches:
    return [[("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)]] * 3


def ring_in_turns(rank: int) -> Batches:
    """Return the messages of a ring that avoids deadlocks: every second rank receives first."""
    messages = [("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)]
    return [[message] for message in (reversed(messages) if rank % 2 else messages)] * 3


def halo(rank: int) -> Batches:
    beside = [other for other in (rank - 1, rank + 1) if 0 <= other < 4]
    return [[(op, other) for other in beside for op in ("send", "recv")]] * 2


def periodic_halo(rank: int) -> Batches:
    return [[(op, (rank + way) % 4) for way in (1, -1) for op in ("send", "recv")]] * 2


def all_to_all(rank: int) -> Batches:
    return [[(op, other) for other in range(4) if other != rank for op in ("send", "recv")]]


def all_to_all_in_turns(rank: int) -> Batches:
    """Return the messages of pairs that take turns, the lower rank of each sends first."""
    return [[(op, rank ^ turn)] for turn in (1, 2, 3) for op in (("send", "recv") if rank < rank ^ turn else ("recv", "send"))]


def from_first(rank: int) -> Batches:
    """Return the messages of a rank that hands out work to all others and collects it."""
    others = (1, 2, 3)
    return (
        [[("send", other)] for other in others] + [[("recv", other)] for other in others]
        if rank == 0
        else [[("recv", 0)], [("send", 0)]]
    )


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("exchange", [ring, ring_in_turns, halo, periodic_halo, all_to_all, all_to_all_in_turns, from_first])
@pytest.mark.parametrize("group", [[0, 1, 2, 3], [*range(8)], None])
def test_exchanges_among_equal_ranks_are_no_pipeline(
    exchange: Callable[[int], Batches], batched: bool, group: list[int] | None
) -> None:
    batches = exchange if batched else one_by_one(exchange)
    assert stages_of_records(records(batches, range(4), group=group)) == {}


@pytest.mark.parametrize("exchange", [ring, halo, periodic_halo, all_to_all])
def test_batched_exchanges_are_no_pipeline_with_missing_ranks_or_peers(exchange: Callable[[int], Batches]) -> None:
    assert stages_of_records(records(exchange, [0, 2], group=[0, 1, 2, 3])) == {}
    assert stages_of_records(records(exchange, range(4), group=[0, 1, 2, 3], peers=False)) == {}


def chain(rank: int, stages: int = 4, batches: int = 6) -> Batches:
    """Return the messages of 1F1B: stages of a replica follow each other."""
    stage = rank % stages
    before = [rank - 1] if stage else []
    after = [rank + 1] if stage + 1 < stages else []
    warm_up = min(batches, stages - stage - 1)
    steps: list[list[tuple[str, int]]] = []
    for _ in range(warm_up):
        steps += [[("recv", item) for item in before], [("send", item) for item in after]]
    steps.append([("recv", item) for item in before])
    for number in range(batches - warm_up):
        steps.append([(op, item) for item in after for op in ("send", "recv")])
        more = ("send", "recv") if number + 1 < batches - warm_up else ("send",)
        steps.append([(op, item) for item in before for op in more])
    for _ in range(warm_up):
        steps += [[("recv", item) for item in after], [("send", item) for item in before]]
    return [batch for batch in steps if batch]


def all_forward_first(rank: int) -> Batches:
    stage = rank % 4
    forward = [*([[("recv", rank - 1)]] if stage else []), *([[("send", rank + 1)]] if stage < 3 else [])] * 4
    backward = [*([[("recv", rank + 1)]] if stage < 3 else []), *([[("send", rank - 1)]] if stage else [])] * 4
    return [*forward, *backward]


def interleaved(rank: int) -> Batches:
    """Return the messages of a rank with two parts of the model: the last stage sends to the first, and back."""
    batches = []
    for backward in (False, True):
        for part in (1, 0) if backward else (0, 1):
            at = part * 4 + rank % 4
            before, after = (at + 1, at - 1) if backward else (at - 1, at + 1)
            for _ in range(4):
                batches += [[("recv", rank - rank % 4 + before % 4)]] if 0 <= before < 8 else []
                batches += [[("send", rank - rank % 4 + after % 4)]] if 0 <= after < 8 else []
    return batches


@pytest.mark.parametrize("schedule", [chain, all_forward_first, interleaved])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("group", [[*range(8)], None])
def test_stages_follow_the_data_flow_even_in_the_group_of_all_ranks(
    schedule: Callable[[int], Batches], batched: bool, group: list[int] | None
) -> None:
    batches = schedule if batched else one_by_one(schedule)
    assert stages_of_records(records(batches, range(8), group=group)) == {rank: rank % 4 for rank in range(8)}


@pytest.mark.parametrize("batched", [True, False])
def test_two_ranks_with_equal_exchanges_are_no_stages(batched: bool) -> None:
    def pair(rank: int) -> Batches:
        return [[("send", 1 - rank), ("recv", 1 - rank)]] * 3

    assert stages_of_records(records(pair if batched else one_by_one(pair), range(2), group=[0, 1])) == {}


def test_pipeline_of_two_stages_is_recognised() -> None:
    assert stages_of_records(records(lambda rank: chain(rank, 2), range(4), group=[0, 1, 2, 3])) == {0: 0, 1: 1, 2: 0, 3: 1}


@pytest.mark.parametrize("steps", [1, 3])
def test_group_position_is_the_stage_where_peers_are_missing(steps: int) -> None:
    group = [0, 1, 2, 3]
    assert stages_of_records(records(chain, range(4), group=group, peers=False, steps=steps)) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert stages_of_records(records(chain, [1, 3], group=group, steps=steps)) == {1: 1, 3: 3}
