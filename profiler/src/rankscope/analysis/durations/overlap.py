"""Groups whose collectives run beside compute, as those that reduce gradients, and what their waits are worth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    """Return the matches; of the waits of a rank in ``groups``, only the longest of each step is left.

    While a rank waits on the communication stream, its compute goes on. So one delay shows at every collective that follows, and
    the sum of the waits is many times the delay. The longest is usually less than the delay: compute may have waited in between.
    """
    longest: dict[tuple[str, int, int], tuple[int, int]] = {}
    for number, match in enumerate(matches):
        if match.group in groups:
            least = min(match.inside_ns)
            for rank, inside in zip(match.ranks, match.inside_ns, strict=True):
                key = (match.group, match.step, rank)
                longest[key] = max(longest.get(key, (-1, -1)), (inside - least, number))
    found: list[Match] = []
    for number, match in enumerate(matches):
        if match.group not in groups:
            found.append(match)
            continue
        least = min(match.inside_ns)
        records = [
            record
            if longest[match.group, match.step, rank][1] == number
            else msgspec.structs.replace(record, end_unix_ns=record.start_unix_ns + least)
            for rank, record in zip(match.ranks, match.records, strict=True)
        ]
        found.append(msgspec.structs.replace(match, records=records))
    return found
