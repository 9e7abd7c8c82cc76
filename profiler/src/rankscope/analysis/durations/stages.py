"""Stages of a pipeline from the communicators of its sends and receives, as the logs of NCCL Inspector have them.

Torch sends batches on the communicator of the process group, and single messages on one of each pair of ranks
(``ProcessGroupNCCL::pointToPoint``). In both, ranks have the order that they have in the process group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from rankscope.analysis.durations.calls import Call, RankCalls

_MOST_PARTS: Final = 4
"""Largest number of sends and receives in one batch of a pipeline: both with the stage before and the one after."""
_BESIDE: Final = 0.1
"""Share of the time of single sends from which compute goes on during them."""


def pipeline_stages(ranks: Mapping[int, RankCalls]) -> dict[int, int | None]:
    """Return the stage of each rank; empty unless all ranks are in pipelines of one form, of which several run the same stages.

    Where all ranks send and receive alike, as in ring attention, they do the same work, and the stage of each is ``None``.
    A rank that sends and receives in several process groups, as for pipeline and context parallelism, has no known stage.
    """
    groups = {rank: {call.group for call in one.calls if call.is_transfer} for rank, one in ranks.items()}
    parts = max((call.elements for one in ranks.values() for call in one.calls if call.is_transfer), default=0)
    if not groups or not all(groups.values()) or parts > _MOST_PARTS:
        return {}
    if _is_exchange(ranks.values()):
        return dict.fromkeys(ranks)
    members = {group: tuple(ranks[rank].members.get(group, ())) for rank, names in groups.items() for group in names}
    if any(rank not in groups for places in members.values() for rank in places):
        return {}
    if all(len(names) == 1 for names in groups.values()):
        pipelines = [*dict.fromkeys(members.values())]
    elif all(len(pair) == 2 for pair in members.values()):
        pipelines = _chains(set(members.values()))
    else:
        return {}
    stages: dict[int, int | None] = {rank: stage for pipeline in pipelines for stage, rank in enumerate(pipeline)}
    is_alike = len({len(pipeline) for pipeline in pipelines}) == 1 and len(stages) == sum(map(len, pipelines)) == len(ranks)
    return stages if is_alike and len(pipelines) > 1 else {}


def _is_exchange(ranks: Iterable[RankCalls]) -> bool:
    """Return whether all ranks send and receive alike, as in ring attention.

    Either all their batches have several parts, or each rank only sends to one and only receives from another.
    """
    transfers = [[call for call in one.calls if call.is_transfer] for one in ranks]
    if all(call.elements > 1 for mine in transfers for call in mine):
        return True
    ways = [{op: {call.group for call in mine if call.op == op} for op in ("send", "recv")} for mine in transfers]
    return all(len(way["send"]) == 1 == len(way["recv"]) and way["send"] != way["recv"] for way in ways)


def _chains(pairs: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the ranks that are connected by ``pairs`` (the earlier rank first), in their order; empty if that is not known."""
    after: dict[int, set[int]] = {}
    before: Counter[int] = Counter()
    for earlier, later in pairs:
        after.setdefault(earlier, set()).add(later)
        after.setdefault(later, set())
        before[later] += 1
    chains: list[tuple[int, ...]] = []
    for first in [rank for rank in after if not before[rank]]:
        chain, ready = [first], [first]
        while ready:
            following = after[ready.pop()]
            before.subtract(following)
            ready = [rank for rank in following if not before[rank]]
            if len(ready) > 1:
                return []
            chain += ready
        chains.append(tuple(chain))
    return chains if sum(map(len, chains)) == len(after) else []


def block_on_sends(ranks: Mapping[int, RankCalls]) -> None:
    """Mark single sends as batches, for which compute waits, unless other messages start during them.

    NCCL does not know whether compute waits for a send. Where it does, no receive can start before the end of the send.
    """
    total = beside = 0.0
    for one in ranks.values():
        starts = sorted((_start_us(call), call.group) for call in one.calls if call.is_transfer)
        for call in one.calls:
            if call.op == "send" and call.duration_us is not None:
                begin, end = _start_us(call), call.ended_ns / 1000
                inside = starts[bisect_left(starts, (begin, "")) : bisect_left(starts, (end, ""))]
                total += call.duration_us
                beside += call.duration_us * any(group != call.group for _, group in inside)
    if beside > _BESIDE * total:
        return
    for one in ranks.values():
        one.calls = [msgspec.structs.replace(call, op="coalesced") if call.op == "send" else call for call in one.calls]


def _start_us(call: Call) -> float:
    return call.ended_ns / 1000 - (call.duration_us or 0.0)
