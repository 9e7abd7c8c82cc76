"""Pipeline stages of ranks, from who sends to whom, and in what order.

Not every send is to another stage. Ring attention, halo exchanges and all-to-all send and receive, too, but all of their ranks do
so alike. In a pipeline data enter at one rank: it sends before it receives anything, and every other rank receives first. The
stage of a rank is the number of ranks that data pass before it.

Where records begin in the middle of a step, or do not name the other end, the place in the process group is the stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from rankscope.analysis.collectives.world import connected
from rankscope.runs.records import CollectiveRecord


class StageTransfer(NamedTuple):
    """One send or receive of a rank."""

    step: int
    batch: Hashable
    """The same for all messages of a batch, which ends as a whole."""
    is_send: bool
    peer: int | None
    """Rank at the other end; ``None`` where unknown."""


Messages = Mapping[int, Sequence[StageTransfer]]
"""Messages in one process group by rank, in the order in which they were issued; empty for a rank whose are not known."""


def stages_of_records(by_rank: Mapping[int, Iterable[CollectiveRecord]]) -> dict[int, int]:
    """Return the pipeline stage of each rank that is in a pipeline, from the collectives of traces or windows."""
    rows: dict[int, list[CollectiveRecord]] = {
        rank: sorted((row for row in records if row.p2p and row.op in ("send", "recv")), key=_ISSUED)
        for rank, records in by_rank.items()
    }
    groups: dict[tuple[int, ...] | str, dict[int, list[StageTransfer]]] = {}
    for rank, rows_of_rank in rows.items():
        for row in rows_of_rank:
            group = row.group if row.group_ranks is None else tuple(row.group_ranks)
            message = StageTransfer(row.step, (row.enqueue_unix_ns, row.start_unix_ns), row.op == "send", row.peer)
            groups.setdefault(group, {}).setdefault(rank, []).append(message)
    stages: dict[int, int] = {}
    for group, messages in groups.items():
        stages = {**stages_of_group(messages, None if isinstance(group, str) else group), **stages}
    return stages


_ISSUED = attrgetter("step", "enqueue_unix_ns", "start_unix_ns", "index")


def stages_of_group(messages: Messages, members: Sequence[int] | None, *, in_order: bool = True) -> dict[int, int]:
    """Return the stage of each rank that sends or receives in a process group; without the ranks that are in no pipeline.

    ``members``: ranks of the group, in their order; ``None`` where unknown. ``in_order``: steps begin where training steps do, so
    that the first message of a step shows where data enter.
    """
    all_stages: dict[int, int] = {}
    for ranks, connected_ranks in _connected(messages, members):
        own = {rank: messages[rank] for rank in sorted(connected_ranks & messages.keys())}
        is_whole = in_order and len(own) == len(connected_ranks)
        stages = _chain(own) if is_whole else None
        if stages is None and ranks is not None and not _is_exchange(own) and not (is_whole and _is_alike(own)):
            stages = {rank: ranks.index(rank) for rank in own if rank in ranks}
        all_stages |= stages or {}
    return all_stages


def _connected(messages: Messages, members: Sequence[int] | None) -> list[tuple[Sequence[int] | None, set[int]]]:
    """Return the sets of ranks that messages connect, each with the ranks whose order gives stages where messages do not."""
    linked: list[set[int]] = []
    for rank, own_messages in messages.items():
        linked.append({rank, *(message.peer for message in own_messages if message.peer is not None)})
        if members is not None and (not own_messages or any(message.peer is None for message in own_messages)):
            linked[-1].update(members)
    sets: dict[int, set[int]] = {}
    for rank, number in connected(linked).items():
        sets.setdefault(number, set()).add(rank)
    # Pipelines that share one group, as that of all ranks, have the order of its ranks, each by itself.
    return [(None if members is None else [rank for rank in members if rank in ranks], ranks) for ranks in sets.values()]


def _is_exchange(messages: Messages) -> bool:
    """Return whether every batch both sends and receives. In a pipeline some are one-way, at its ends and while it fills."""
    ways: dict[tuple[int, int, Hashable], set[bool]] = {}
    for rank, own_messages in messages.items():
        for message in own_messages:
            ways.setdefault((rank, message.step, message.batch), set()).add(message.is_send)
    return bool(ways) and all(len(both) == 2 for both in ways.values())


def _is_alike(messages: Messages) -> bool:
    """Return whether all ranks, which must be those of the whole set, send and receive alike, as in no pipeline."""
    to, of = (
        {rank: {message.peer for message in own_messages if message.is_send is sends} for rank, own_messages in messages.items()}
        for sends in (True, False)
    )
    is_ring = all(len(to[rank]) == 1 == len(of[rank]) and to[rank] != of[rank] for rank in messages)
    to_all = len(messages) > 3 and all(to[rank] == messages.keys() - {rank} for rank in messages)
    firsts = _firsts(messages)
    same_first = bool(firsts) and all(len(set(first.values())) == 1 for first in firsts)
    several_first = len(firsts) > 1 and all(sum(first.values()) > 1 for first in firsts)
    return is_ring or to_all or same_first or several_first


def _firsts(messages: Messages) -> list[dict[int, bool]]:
    """Return, per step that all ranks have, whether each rank sends in its first batch."""
    steps: dict[int, dict[int, bool]] = {}
    for rank, own_messages in messages.items():
        batches: dict[int, Hashable] = {}
        for message in own_messages:
            if batches.setdefault(message.step, message.batch) == message.batch:
                first = steps.setdefault(message.step, {})
                first[rank] = first.get(rank, False) or message.is_send
    return [first for first in steps.values() if len(first) == len(messages)]


def _chain(messages: Messages) -> dict[int, int] | None:
    """Return the stages that most steps show; empty where data enter at one rank, but pass no pipeline; ``None`` for neither."""
    steps = sorted({message.step for own_messages in messages.values() for message in own_messages})
    counts: Counter[tuple[tuple[int, int], ...]] = Counter()
    for step in steps:
        stages = _chain_of_step(
            {rank: [message for message in own_messages if message.step == step] for rank, own_messages in messages.items()}
        )
        if stages is not None:
            counts[tuple(sorted(stages.items()))] += 1
    most = counts.most_common(1)
    return dict(most[0][0]) if most and 2 * most[0][1] > len(steps) else None


def _chain_of_step(messages: Messages) -> dict[int, int] | None:
    first = _firsts(messages)
    if not first or sum(first[0].values()) != 1:
        return None
    before: dict[int, set[int]] = {}
    for rank, own_messages in messages.items():
        received = set()
        for message in [] if first[0][rank] else own_messages:
            if message.is_send:
                break
            if message.peer is None:
                return None
            received.add(message.peer)
        before[rank] = received
    stages: dict[int, int] = {}
    while ready := [rank for rank, ranks in before.items() if rank not in stages and ranks <= stages.keys()]:
        stages |= {rank: 1 + max((stages[sender] for sender in before[rank]), default=-1) for rank in ready}
    if len(stages) < len(messages):
        return None
    # A rank that sends to all others, and receives from them, is no stage.
    return stages if len(set(Counter(stages.values()).values())) == 1 else {}
