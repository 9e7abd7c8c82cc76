"""Groups whose collectives run beside compute, as those that reduce gradients, and what their waits are worth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.matching import Match
from rankscope.analysis.durations.calls import Call

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
            if call.is_matchable and not call.op.startswith("all_gather"):
                reduced[call.group, call.issued.backward] += call.elements
    return {group for group, backward in reduced if backward and _MORE * reduced[group, False] < reduced[group, True]}


def overlapping_by_gaps(matches: Sequence[Match], kept: Mapping[int, Sequence[tuple[Call, int]]]) -> set[str]:
    """Return the groups whose collectives run beside compute, by the pauses between their collectives.

    Where compute waits for a collective, a rank computes for as long after a long wait as after a short one. Where it does not, a
    wait takes up the pause: it is shorter by the wait, or nothing of it is left. Groups with one collective per step are left
    out, because their longest wait is their only one.
    """
    ended_us = {
        (rank, call.group, call.sequence): call.ended_ns / 1000
        for rank, calls in kept.items()
        for call, _ in calls
        if call.ended_ns
    }
    found: defaultdict[str, defaultdict[int, list[Match]]] = defaultdict(lambda: defaultdict(list))
    for match in matches:
        found[match.group][match.step].append(match)
    return {group for group, steps in found.items() if _is_beside_compute(steps.values(), ended_us)}


def _is_beside_compute(steps: Iterable[Sequence[Match]], ended_us: Mapping[tuple[int, str, int], float]) -> bool:
    """Return whether most of the waiting, by place in the step, is at places that look so."""
    places: defaultdict[int, defaultdict[int, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in steps:
        for place, (before, after) in enumerate(pairwise(sorted(row, key=lambda match: match.records[0].index))):
            if before.ranks != after.ranks:
                continue
            for at, rank in enumerate(before.ranks):
                pause = _pause(before, after, at, ended_us)
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


def _pause(before: Match, after: Match, at: int, ended_us: Mapping[tuple[int, str, int], float]) -> float | None:
    """Return the time from the end of a collective to the start of the next on one rank, in microseconds."""
    ends = [ended_us.get((one.ranks[at], one.group, one.records[at].sequence or 0)) for one in (before, after)]
    return None if ends[0] is None or ends[1] is None else ends[1] - after.inside_ns[at] / 1000 - ends[0]


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
