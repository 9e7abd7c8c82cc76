"""Groups whose collectives run beside compute, as those that reduce gradients, and what their waits are worth."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import Arrivals, Numbers, sums
from rankscope.analysis.durations.duration_calls import DurationCalls
from rankscope.analysis.trace.intervals import by_key
from rankscope.runs.durations import AUTOGRAD

_GRADIENT_FACTOR: Final = 100
_QUEUED_US: Final = 100.0
"""Largest mean pause between collectives that are queued behind each other. Kernels of a layer take longer."""
_QUEUED: Final = 0.02
"""Share of the longest wait of a step up to which the ranks came together."""
_SLOPE: Final = -0.5
"""Change of a pause with the time in the collective before it. It is -1 beside compute, 0 where compute waits."""


def overlapping_by_autograd(calls: DurationCalls) -> set[str]:
    """Return the groups whose collectives run beside compute: those that reduce gradients, or gather sharded parameters.

    In such a group autograd reduces ``_GRADIENT_FACTOR`` times as many elements as the script, which may reduce a loss. Where the
    script reduces more (tensor parallelism), compute waits for the result.
    """
    counts = calls.is_matchable & ~calls.of_family("all_gather")
    backward = calls.has(AUTOGRAD)
    by_autograd, by_script = (
        sums(calls.group[has_phase], calls.size[has_phase], len(calls.groups))
        for has_phase in (counts & backward, counts & ~backward)
    )
    return {calls.groups[at] for at in np.flatnonzero(_GRADIENT_FACTOR * by_script < by_autograd).tolist()}


def overlapping_by_gaps(matches: Arrivals, ended_ns: Numbers, messages: Mapping[int, Sequence[float]]) -> set[str]:
    """Return the groups whose collectives run beside compute, by the pauses between their collectives.

    Where compute waits for a collective, a rank computes for as long after a long wait as after a short one. Where it does not, a
    wait takes up the pause: it is shorter by the wait, or nothing of it is left. Groups with one collective per step are left
    out, because their longest wait is their only one. So are pauses with sends and receives, in which a rank waits, too. Groups
    of one form, as of several replicas, run beside compute only if all do: own times of ranks in them are compared.

    ``ended_ns``: end of each record on its rank's clock. ``messages``: ends of sends and receives of each rank in microseconds,
    ascending.
    """
    ended_us = (ended_ns[matches.row] / 1000).tolist()
    rows_of_groups: defaultdict[int, list[Numbers]] = defaultdict(list)
    for row in _in_steps(matches, np.arange(len(matches))):
        rows_of_groups[int(matches.group[row[0]])].append(row)
    names = matches.group_names
    overlapping = {group for group, rows in rows_of_groups.items() if _is_beside_compute(matches, rows, ended_us, messages)}
    forms = {group: _form(matches, rows[0]) for group, rows in rows_of_groups.items()}
    blocking = {forms[group] for group in rows_of_groups.keys() - overlapping} if any(messages.values()) else set()
    return {names[group] for group in overlapping if forms[group] not in blocking}


def _in_steps(matches: Arrivals, row: Numbers) -> Iterator[Numbers]:
    """Yield those of some instances that are of one group and step, in their order, by group and step."""
    row = row[np.argsort(matches.records.index[matches.leader[row]], kind="stable")]
    for places in by_key(matches.group[row], matches.step[row]):
        yield row[places]


def _form(matches: Arrivals, row: Numbers) -> tuple[int, frozenset[tuple[int, int]]]:
    """Return what groups of several replicas have in common: their size, and the operations of a step."""
    sizes = matches.records.bytes[matches.leader[row]].tolist()
    return int(matches.count[row[0]]), frozenset(zip(matches.op[row].tolist(), sizes, strict=True))


def _is_beside_compute(
    matches: Arrivals, steps: Iterable[Numbers], ended_us: Sequence[float], messages: Mapping[int, Sequence[float]]
) -> bool:
    """Return whether most of the waiting, by place in the step, is at places that look so. ``steps``: instances of each step."""
    places: defaultdict[int, defaultdict[int, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    waits = (matches.inside_ns - matches.shortest_ns[matches.instance]).tolist()
    inside, first, rank = matches.inside_ns.tolist(), matches.first.tolist(), matches.rank.tolist()
    for row in steps:
        for place, (before, after) in enumerate(pairwise(row.tolist())):
            if matches.team[before] != matches.team[after]:
                continue
            for earlier, other in zip(
                range(first[before], first[before + 1]), range(first[after], first[after + 1]), strict=True
            ):
                pause = _pause(ended_us[earlier], ended_us[other], inside[other] / 1000, messages[rank[earlier]])
                if pause is not None:
                    places[place][rank[earlier]].append((inside[earlier] / 1000, pause, min(waits[earlier], waits[other]) / 1000))
    overlapping_weight = total = 0.0
    for by_rank in places.values():
        rows = [np.array(row) for row in by_rank.values()]
        waited = np.concatenate([row[:, 2] for row in rows])
        if (weight := float(waited.sum())) > 0:
            pause = float((np.concatenate([row[:, 1] for row in rows]) * waited).sum()) / weight
            overlapping_weight += weight * (pause < _QUEUED_US or _slope(rows) < _SLOPE)
            total += weight
    return 2 * overlapping_weight > total


def _pause(before_us: float, after_us: float, inside_us: float, messages: Sequence[float]) -> float | None:
    """Return the time from the end of a collective to the start of the next on one rank, in microseconds.

    ``None`` where it is not known, or a send or receive ended in between (``messages``: their ends, ascending).
    """
    if not before_us or not after_us or bisect(messages, before_us) < bisect(messages, after_us):
        return None
    return after_us - inside_us - before_us


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


def longest_waits(matches: Arrivals, groups: set[str]) -> Arrivals:
    """Return the matches; of the waits in ``groups``, only those at the collective with the longest ones are left of each delay.

    While a rank waits on the communication stream, its compute goes on. So one delay shows at every collective that follows, and
    the sum of the waits is many times the delay. The longest is usually less than the delay: compute may have waited in between.
    """
    chosen = np.flatnonzero(np.isin(matches.group, [at for at, name in enumerate(matches.group_names) if name in groups]))
    if not len(chosen):
        return matches
    waits = matches.sum(matches.inside_ns) / matches.count - matches.shortest_ns
    is_free = np.ones(len(matches), np.bool_)
    is_free[chosen] = False
    for row in _in_steps(matches, chosen):
        is_free[[row[place] for place in _longest_of_delays(waits[row].tolist())]] = True
    without = matches.records.start[matches.row] + matches.shortest_ns[matches.instance]
    return matches.ending(np.where(is_free[matches.instance], matches.end_ns, without))


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
