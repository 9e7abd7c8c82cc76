"""Groups whose collectives run beside compute, as those that reduce gradients, and what their waits are worth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.matching import Match
from rankscope.analysis.durations.calls import Call

_MORE: Final = 100
_RATIO: Final = 0.25
"""Largest pause of the waiting ranks, relative to that of the last, at which collectives are queued behind each other."""
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
    wait takes up the pause: it is shorter by the wait, or nothing is left of it while the last rank still computes. Groups with
    one collective per step are left out, because their longest wait is their only one.
    """
    ended_us = {
        (rank, call.group, call.sequence): call.ended_ns / 1000 for rank, calls in kept.items() for call, _ in calls if call.ended_ns
    }
    found: defaultdict[str, defaultdict[int, list[Match]]] = defaultdict(lambda: defaultdict(list))
    for match in matches:
        found[match.group][match.step].append(match)
    return {group for group, steps in found.items() if _is_beside_compute(steps.values(), ended_us)}


def _is_beside_compute(steps: Iterable[Sequence[Match]], ended_us: Mapping[tuple[int, str, int], float]) -> bool:
    waited = last = 0.0
    pauses: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for row in steps:
        for place, (before, after) in enumerate(pairwise(sorted(row, key=lambda match: match.records[0].index))):
            if before.ranks != after.ranks:
                continue
            known = [_pause(before, after, at, ended_us) for at in range(len(before.ranks))]
            late = int(np.argmin(after.inside_ns))
            for at, (rank, pause) in enumerate(zip(before.ranks, known, strict=True)):
                if pause is None or known[late] is None or at == late:
                    continue
                wait = min(one.inside_ns[at] - min(one.inside_ns) for one in (before, after)) / 1000
                waited += wait * max(0.0, pause)
                last += wait * max(0.0, known[late] or 0.0)
                pauses[rank, place].append((before.inside_ns[at] / 1000, pause))
    slope = _slope(pauses.values())
    return bool(pauses) and (waited < _RATIO * last or slope < _SLOPE)


def _pause(before: Match, after: Match, at: int, ended_us: Mapping[tuple[int, str, int], float]) -> float | None:
    """Return the time from the end of a collective to the start of the next on one rank, in microseconds."""
    ends = [ended_us.get((one.ranks[at], one.group, one.records[at].sequence or 0)) for one in (before, after)]
    return None if ends[0] is None or ends[1] is None else ends[1] - after.inside_ns[at] / 1000 - ends[0]


def _slope(rows: Iterable[Sequence[tuple[float, float]]]) -> float:
    """Return the slope of a line through the points of each row, the same for all rows; 0 where it is not known.

    The few largest durations of a row, as by a hiccup, do not count.
    """
    product = square = 0.0
    for row in rows:
        points = np.array(row)
        points = points[points[:, 0] <= np.quantile(points[:, 0], 0.95)]
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
