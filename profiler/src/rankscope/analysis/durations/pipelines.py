"""Stages of a pipeline from the communicators of its sends and receives, as the logs of NCCL Inspector have them.

Torch sends batches on the communicator of the process group, and single messages on one of each pair of ranks
(``ProcessGroupNCCL::pointToPoint``). In both, ranks have the order that they have in the process group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.durations.duration_calls import DurationCalls
from rankscope.runs.durations import TRANSFER

_MOST_PARTS: Final = 4
"""Largest number of sends and receives in one batch of a pipeline: both with the stage before and the one after."""
_LEAST_OVERLAPPING: Final = 0.1
"""Share of the time of single sends from which compute goes on during them."""


def pipeline_stages(calls: DurationCalls) -> dict[int, int | None]:
    """Return the stage of each rank; empty unless all ranks are in pipelines of one form, of which several run the same stages.

    Where all ranks send and receive alike, as in ring attention, they do the same work, and the stage of each is ``None``.
    A rank that sends and receives in several process groups, as for pipeline and context parallelism, has no known stage.
    """
    messages = calls.chosen(calls.has(TRANSFER))
    if len(np.unique(messages.rank)) < max(1, len(calls.ranks)) or messages.size.max() > _MOST_PARTS:
        return {}
    if _is_exchange(messages):
        return dict.fromkeys(calls.ranks)
    places = set(zip(messages.rank.tolist(), messages.group.tolist(), messages.team.tolist(), strict=True))
    members = {team: () if team == NONE else calls.teams[team] for _, _, team in sorted(places)}
    if any(rank not in calls.ranks for ranks in members.values() for rank in ranks):
        return {}
    if len(places) == len(calls.ranks):
        pipelines = [*dict.fromkeys(members.values())]
    elif all(len(pair) == 2 for pair in members.values()):
        pipelines = _chains(set(members.values()))
    else:
        return {}
    stages: dict[int, int | None] = {rank: stage for pipeline in pipelines for stage, rank in enumerate(pipeline)}
    is_alike = len({len(pipeline) for pipeline in pipelines}) == 1 and len(stages) == sum(map(len, pipelines)) == len(calls.ranks)
    return stages if is_alike and len(pipelines) > 1 else {}


def _is_exchange(messages: DurationCalls) -> bool:
    """Return whether all ranks send and receive alike, as in ring attention.

    Either all their batches have several parts, or each rank only sends to one and only receives from another.
    """
    if (messages.size > 1).all():
        return True
    groups = [
        {rank: set(messages.group[part][is_direction[part]].tolist()) for rank, part in messages.of_ranks()}
        for is_direction in map(messages.named, ("send", "recv"))
    ]
    return all(
        len(sent) == 1 == len(received) and sent != received
        for sent, received in zip(*(of_rank.values() for of_rank in groups), strict=True)
    )


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


def block_on_sends(calls: DurationCalls) -> DurationCalls:
    """Return the operations with single sends as batches, for which compute waits, unless other messages start during them.

    NCCL does not know whether compute waits for a send. Where it does, no receive can start before the end of the send.
    """
    is_send = calls.named("send")
    end_us = calls.ended_ns / 1000
    start_us = end_us - np.nan_to_num(calls.duration_us)
    total = overlapping_us = 0.0
    for _, part in calls.of_ranks():
        starts, groups = (column[part][calls.has(TRANSFER)[part]] for column in (start_us, calls.group))
        order = np.argsort(starts, kind="stable")
        starts, groups = starts[order], groups[order]
        for at in np.flatnonzero(is_send[part] & np.isfinite(calls.duration_us[part])) + part.start:
            inside = slice(*np.searchsorted(starts, (start_us[at], end_us[at])))
            total += calls.duration_us[at]
            overlapping_us += calls.duration_us[at] * bool((groups[inside] != calls.group[at]).any())
    if overlapping_us > _LEAST_OVERLAPPING * total:
        return calls
    return replace(calls, ops=["coalesced" if name == "send" else name for name in calls.ops])
