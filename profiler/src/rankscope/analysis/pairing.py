"""Pairing of sends with their receives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from rankscope.analysis.agreement import disagreement
from rankscope.runs.records import CollectiveRecord

_Side = dict[str, list[CollectiveRecord]]


class Pairs(msgspec.Struct, frozen=True):
    """Result of pairing sends with their receives."""

    pairs: list[tuple[int, CollectiveRecord, int, CollectiveRecord]] = msgspec.field(default_factory=list)
    """Tuples of sender, its record, receiver and its record."""
    unmatched: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of transfers that could not be paired, by reason."""
    unknown_peer: int = 0
    """Number of transfers whose records do not identify the other end."""


def pair_up(by_rank: Mapping[int, Iterable[CollectiveRecord]], known: set[int], *, world_size: int | None = None) -> Pairs:
    """Pair sends and receives of ``by_rank`` by (step, group, sender, receiver) and order.

    Messages between two ranks of a group do not overtake each other. Sequence numbers are not usable: they count each rank's own
    operations with all its peers. The record names the other end; in a group or world of two it can only be the other rank.
    ``known``: ranks that recorded anything. Where one end recorded more operations than the other, none of them is paired.
    """
    sides: dict[tuple[int, str, int, int], _Side] = {}
    without = 0
    for rank, records in by_rank.items():
        for record in sorted(records, key=lambda record: record.index):
            peer = _peer(rank, record, known, world_size)
            if peer is None or record.op not in ("send", "recv"):
                without += 1
                continue
            ends = (rank, peer) if record.op == "send" else (peer, rank)
            side = sides.setdefault((record.step, record.group, *ends), {"send": [], "recv": []})
            side[record.op].append(record)
    pairs: list[tuple[int, CollectiveRecord, int, CollectiveRecord]] = []
    unmatched: Counter[str] = Counter()
    for (_, _, sender, receiver), side in sides.items():
        sends, receives = side["send"], side["recv"]
        if not {sender, receiver} <= known:
            unmatched["rank_missing"] += max(len(sends), len(receives))
        elif len(sends) != len(receives):
            unmatched["order_shifted" if sends and receives else "incomplete"] += max(len(sends), len(receives))
        else:
            for send, receive in zip(sends, receives, strict=True):
                differs = disagreement((send, receive))
                if differs is None:
                    pairs.append((sender, send, receiver, receive))
                else:
                    unmatched[differs] += 1
    # Every transfer has two ends, so two records.
    return Pairs(pairs, unmatched, (without + 1) // 2)


def _peer(rank: int, record: CollectiveRecord, known: set[int], world_size: int | None) -> int | None:
    if record.peer is not None:
        return record.peer if record.peer != rank else None
    members = set(record.group_ranks or ()) or (known if world_size == 2 else set())
    others = members - {rank}
    return others.pop() if len(members) == 2 and len(others) == 1 else None
