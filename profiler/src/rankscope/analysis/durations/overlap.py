"""Groups whose collectives run beside compute, as those that reduce gradients, and what their waits are worth."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.matching import Match
from rankscope.analysis.durations.calls import Call
from rankscope.analysis.operations import operation

_MORE: Final = 100
_QUEUED_US: Final = 100.0
"""Largest mean pause between collectives that are queued behind each other. Kernels of a layer take longer."""
_QUEUED: Final = 0.02
"""Share of the longest wait of a step up to which the ranks came together."""
_SLOPE: Final = -0.5
"""Change of a pause with the time in the collective before it. It is -1 beside compute, 0 where compute waits."""


def overlapping_by_autograd(calls: Iterable[Sequence[tuple[Call, int]]]) -> set[str]:
    """Return the groups whose collectives run beside compute: those that reduce gradients, or gather sharded parameters.

    In such a group autograd reduces ``_MORE`` times as many elements as the script, which may reduce a loss. Where the script
    reduces more (tensor parallelism), compute waits for the result.
    """
    reduced: Counter[tuple[str, bool]] = Counter()
    for row in calls:
        for call, _ in row:
            if call.is_matchable and operation(call.op).family != "all_gather":
                reduced[call.group, call.issued.backward] += call.elements
    return {group for group, backward in reduced if backward and _MORE * reduced[group, False] < reduced[group, True]}


def overlapping_by_gaps(matches: Sequence[Match], kept: Mapping[int, Sequence[tuple[Call, int]]]) -> set[str]:
    """Return the groups whose collectives run beside compute, by the pauses between their collectives.

    Where compute waits for a collective, a rank computes for as long after a long wait as after a short one. Where it does not, a
    wait takes up the pause: it is shorter by the wait, or nothing of it is left. Groups with one collective per step are left
    out, because their longest wait is their only one. So are pauses with sends and receives, in which a rank waits, too. Groups
    of one form, as of several replicas, run beside compute only if all do: own times of ranks in them are compared.
    """
    transfers = {rank: sorted(call.ended_ns / 1000 for call, _ in calls if call.is_transfer) for rank, calls in kept.items()}
    ended_us = {
        (rank, call.group, call.sequence): call.ended_ns / 1000
        for rank, calls in kept.items()
        for call, _ in calls
        if call.ended_ns
    }
    found: defaultdict[str, defaultdict[int, list[Match]]] = defaultdict(lambda: defaultdict(list))
    for match in matches:
        found[match.group][match.step].append(match)
    beside = {group for group, steps in found.items() if _is_beside_compute(steps.values(), ended_us, transfers)}
    forms = {group: _form(next(iter(steps.values()))) for group, steps in found.items()}
    blocking = {forms[group] for group in found.keys() - beside} if any(transfers.values()) else set()
    return {group for group in beside if forms[group] not in blocking}


def _form(row: Sequence[Match]) -> tuple[int, frozenset[tuple[str, int | None]]]:
    """Return what groups of several replicas have in common: their size, and the operations of a step."""
    return len(row[0].ranks), frozenset((match.op, match.records[0].bytes) for match in row)


def _is_beside_compute(
    steps: Iterable[Sequence[Match]],
    ended_us: Mapping[tuple[int, str, int], float],
    transfers: Mapping[int, Sequence[float]],
) -> bool:
    """Return whether most of the waiting, by place in the step, is at places that look so."""
    places: defaultdict[int, defaultdict[int, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in steps:
        for place, (before, after) in enumerate(pairwise(sorted(row, key=lambda match: match.records[0].index))):
            if before.ranks != after.ranks:
                continue
            for at, rank in enumerate(before.ranks):
                pause = _pause(before, after, at, ended_us, transfers[rank])
                if pause is not None:
                    wait = min(one.inside_ns[at] - min(one.inside_ns) for one in (before, after)) / 1000
                    places[place][rank].append((before.inside_ns[at] / 1000, pause, wait))
    beside = total = 0.0
    for by_rank in places.values():
        rows = [np.array(row) for row in by_rank.values()]
        waits = np.concatenate([row[:, 2] for row in rows])
        if (weight := float(waits.sum())) > 0:
            pause = float((np.concatenate([row[:, 1] for row in rows]) * waits).sum()) / weight
            beside += weight * (pause < _QUEUED_US or _slope(rows) < _SLOPE)
            total += weight
    return 2 * beside > total


def _pause(
    before: Match,
    after: Match,
    at: int,
    ended_us: Mapping[tuple[int, str, int], float],
    transfers: Sequence[float],
) -> float | None:
    """Return the time from the end of a collective to the start of the next on one rank, in microseconds.

    ``None`` where it is not known, or a send or receive ended in between (``transfers``: their ends, ascending).
    """
    ends = [ended_us.get((one.ranks[at], one.group, one.records[at].sequence or 0)) for one in (before, after)]
    if ends[0] is None or ends[1] is None or bisect(transfers, ends[0]) < bisect(transfers, ends[1]):
        return None
    return ends[1] - after.inside_ns[at] / 1000 - ends[0]


def _slope(rows: Iterable[NDArray[np.float64]]) -> float:
    """Return the slope of pauses over durations, the first columns of each row; 0 where it is not known.

    The few largest durations of a row, as by a hiccup, do not count.
    """
    product = square = 0.0
    for row in rows:
        points = row[row[:, 0] <= np.quantile(row[:, 0], 0.95), :2]
        points = points - points.mean(axis=0)
        product += float((points[:, 0] * points[:, 1]).sum())
        square += float((points[:, 0] ** 2).sum())
    return product / square if square > 0 else 0.0


def longest_waits(matches: Sequence[Match], groups: set[str]) -> list[Match]:
    """Return the matches; of the waits in ``groups``, only those at the collective with the longest ones are left of each delay.

    While a rank waits on the communication stream, its compute goes on. So one delay shows at every collective that follows, and
    the sum of the waits is many times the delay. The longest is usually less than the delay: compute may have waited in between.
    """
    steps: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for number, match in enumerate(matches):
        if match.group in groups:
            steps[match.group, match.step].append(number)
    left: set[int] = set()
    for numbers in steps.values():
        numbers.sort(key=lambda number: matches[number].records[0].index)
        waits = [float(np.mean(matches[number].inside_ns)) - min(matches[number].inside_ns) for number in numbers]
        left.update(numbers[place] for place in _longest_of_delays(waits))
    return [
        match if match.group not in groups or number in left else _without_waits(match) for number, match in enumerate(matches)
    ]


def _longest_of_delays(waits: Sequence[float]) -> Iterator[int]:
    """Yield the place of the longest of the ``waits`` of each delay in a step.

    When waits are half as long as before or less, compute has waited for that delay, and what follows is another one. Without any
    wait, the collective was queued behind the one before, and shows nothing.
    """
    longest: int | None = None
    least = _QUEUED * max(waits)
    for place, wait in enumerate(waits):
        if wait <= least:
            continue
        if longest is not None and 2 * wait <= waits[longest]:
            yield longest
            longest = None
        if longest is None or wait > waits[longest]:
            longest = place
    if longest is not None:
        yield longest


def _without_waits(match: Match) -> Match:
    least = min(match.inside_ns)
    records = [msgspec.structs.replace(record, end_unix_ns=record.start_unix_ns + least) for record in match.records]
    return msgspec.structs.replace(match, records=records)
