"""Calls of a device's runtime: which launch kernels, which launch what event, and whether the clocks of both agree."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.numbering import are_named

GIVES_WORK: Final = re.compile(r"launch|enqueue|memcpy|memset", re.IGNORECASE)
"""Names of calls that give work to a device."""
_KERNEL_LAUNCH: Final = re.compile(r"^(?!.*graph\w*launch).*(launch\w*kernel|kernellaunch)", re.IGNORECASE | re.DOTALL)
"""Names of calls that launch one kernel, and no device graph."""
_GRAPH_LAUNCH: Final = re.compile(r"graph\w*launch", re.IGNORECASE)
"""Names of calls that launch a device graph."""
EARLY_START: Final = re.compile(r"Launch\w*Kernel\w*Ex")
"""Calls that may let a kernel start before the one before it on its stream has ended (programmatic dependent launch)."""
_CAPTURE_BEGIN: Final = re.compile("BeginCapture")
_CAPTURE_END: Final = re.compile("EndCapture")


class RuntimeCalls(msgspec.Struct, frozen=True):
    """Calls of a device's runtime in arrays [calls]. Times are int64 nanoseconds."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int64]
    correlation: NDArray[np.int64]
    names: Sequence[str]
    """Names of the trace; ``name`` of each call is an index into them."""
    name: NDArray[np.int32]

    def named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Return which calls have a name that matches, [calls]."""
        return are_named(self.names, self.name, pattern.search)


def kernel_launches(
    calls: RuntimeCalls, call: NDArray[np.intp], correlation: NDArray[np.int64], *, shows_all: bool
) -> tuple[NDArray[np.bool_], ...]:
    """Return which calls launch a kernel by themselves, which of these have none, and which only capture a graph, [calls].

    A launch of a graph counts, too, if it has no event, and each event has a call: events of other graphs need not be linked.

    ``call``, ``correlation``: of the device events. ``shows_all``: false where kernels may be missing because of the file.
    """
    launched = calls.named(_KERNEL_LAUNCH) & (calls.correlation >= 0)
    graphs = calls.named(_GRAPH_LAUNCH) & (calls.correlation >= 0) & bool((call >= 0).all())
    lost = (launched | graphs) & shows_all
    lost[call[call >= 0]] = False
    if lost.any():  # two calls may have one id
        lost[lost] = ~np.isin(calls.correlation[lost], correlation)
    launched |= lost
    captured = lost.copy()
    if lost.any():
        captured &= _in_capture(calls)
        launched &= ~captured
        lost &= launched
        launched &= ~_part_of_another(calls, launched, lost)
        lost &= launched
    return launched, lost, captured


def _in_capture(calls: RuntimeCalls) -> NDArray[np.bool_]:
    """Return which calls were made while a device graph was captured, [calls].

    Autograd launches what is captured from a thread of its own. A trace may lack the begin or the end of a capture.
    """
    begins = calls.named(_CAPTURE_BEGIN)
    bounds = np.flatnonzero(begins | calls.named(_CAPTURE_END))
    bounds = bounds[np.argsort(calls.start[bounds], kind="stable")]
    # Of the bound before a call and the one after it: outside of all bounds there is no capture.
    is_begin = np.concatenate(([False], begins[bounds], [True]))
    before = np.searchsorted(calls.start[bounds], calls.start, side="right")
    inside: NDArray[np.bool_] = is_begin[before] | ~is_begin[before + 1]
    return inside


def _part_of_another(calls: RuntimeCalls, launched: NDArray[np.bool_], lost: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which ``lost`` launches, those without a kernel, are part of another launch, [calls].

    One launch may show as several calls, each inside the one before: of the runtime, and of the driver. One of them has the
    kernel; where none has, the outermost counts. Calls that start at once are not inside each other.
    """
    rows = np.flatnonzero(launched)
    rows = rows[np.lexsort((-calls.end[rows], calls.start[rows], calls.thread[rows]))]
    is_outer = np.ones(len(rows), dtype=bool)
    edges = np.flatnonzero(np.diff(calls.thread[rows])) + 1
    for of_thread in np.split(np.arange(len(rows)), edges):
        begin, end = calls.start[rows[of_thread]], calls.end[rows[of_thread]]
        is_outer[of_thread[1:]] = begin[1:] >= np.maximum.accumulate(end)[:-1]
        is_outer[of_thread] = is_outer[of_thread[np.searchsorted(begin, begin)]]
    launch = np.cumsum(is_outer) - 1
    has_kernel = np.bincount(launch, weights=~lost[rows]) > 0
    part = np.zeros(len(launched), dtype=bool)
    part[rows] = lost[rows] & (has_kernel[launch] | ~is_outer)
    return part


def launch_about(correlation: NDArray[np.int64], calls: RuntimeCalls, bounds: tuple[int, int]) -> NDArray[np.int64]:
    """Return the launch times of device events whose call is not known, by those before it: ids ascend; -1 without an id.

    ``bounds``: times for ids before the first that is known and after the last, of steps before and after the others.
    """
    has_correlation = calls.correlation >= 0
    if not has_correlation.any():
        return np.full(len(correlation), -1)
    order = np.argsort(calls.correlation[has_correlation], kind="stable")
    ids, times = calls.correlation[has_correlation][order], calls.start[has_correlation][order]
    at = np.searchsorted(ids, correlation)
    times = np.concatenate((bounds[:1], times[:-1], bounds[1:]))
    return np.where(correlation < 0, -1, times[at])


_EARLY_NS: Final = 1_000_000
"""Time by which an event begins before its launch, or is launched before one that began earlier, that no rounding explains."""


def before_launch(start: NDArray[np.int64], launch: NDArray[np.int64]) -> int:
    """Return how many events begin before their launch."""
    return int((launch - start > _EARLY_NS).sum())


def out_of_order(launch: NDArray[np.int64], queue: NDArray[np.int64]) -> int:
    """Return how many events, at least, have a wrong place in their stream, which runs events in the order of their launch.

    They are many where a clock was set back. The events are given by queue and start; those with a negative queue have no order.
    """
    back = (queue[1:] == queue[:-1]) & (queue[1:] >= 0) & (launch[:-1] - launch[1:] > _EARLY_NS)
    return sum(_not_ascending(launch[queue == at].tolist()) for at in np.unique(queue[1:][back]))


def _not_ascending(times: list[int]) -> int:
    """Return how many times must be taken out so that the others ascend: all but those of the longest ascending row."""
    # Per length, the earliest time at which an ascending row of this length ends.
    ends: list[int] = []
    for time in times:
        at = bisect_right(ends, time)
        ends[at : at + 1] = [time]
    return len(times) - len(ends)
