"""Ranks of a job, by its process groups: how many there are at least, and which are connected."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeVar

from rankscope.runs.records import CollectiveRecord

MOST_RANKS: Final = 2**31
"""Limit of numbers of ranks: NCCL, gloo and MPI count them in an ``int``, so a larger number is damage."""

_Member = TypeVar("_Member")


def least_ranks(rank: int, collectives: Iterable[CollectiveRecord]) -> int:
    """Return the number of ranks of a job, at least, in which ``rank`` takes part in these ``collectives``.

    The number in the metadata of the job may be missing, or of another job. No group has more ranks than the job, and no rank's
    number is as large as the number of ranks.
    """
    sizes: set[int] = set()
    groups: dict[str, list[int]] = {}
    for row in collectives:
        sizes |= {row.group_size or 0, 1 + max(row.peer or 0, row.root or 0), 2 * row.p2p}
        # The list of a thousand ranks in each of a group's records would take long.
        if row.group_ranks and row.group not in groups:
            groups[row.group] = row.group_ranks
    return least_ranks_of_groups(groups.values(), {rank + 1, *sizes})


def least_ranks_of_groups(groups: Iterable[Collection[int]], sizes: Iterable[int] = ()) -> int:
    """Return the number of ranks of a job, at least, that has process ``groups`` of these ranks and others of these ``sizes``."""
    counts = [*sizes, *(number for ranks in groups for number in (len(ranks), 1 + max(ranks, default=0)))]
    return max((number for number in counts if number < MOST_RANKS), default=0)


def connected(groups: Iterable[Iterable[_Member]]) -> dict[_Member, int]:
    """Return a number for each member: the same for those that groups connect, directly or by way of others."""
    parents: dict[_Member, _Member] = {}

    def root(member: _Member) -> _Member:
        while (parent := parents.setdefault(member, member)) != member:
            parents[member] = member = parents[parent]
        return member

    for group in groups:
        first, *others = group
        top = root(first)
        for other in others:
            parents[root(other)] = top
    numbers: dict[_Member, int] = {}
    return {member: numbers.setdefault(root(member), len(numbers)) for member in list(parents)}
