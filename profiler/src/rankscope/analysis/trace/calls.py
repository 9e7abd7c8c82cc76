"""Calls of a device's runtime: which launch kernels, which launch what event, and whether the clocks of both agree."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.result.text import counted
from rankscope.analysis.trace.intervals import positions_of

_KERNEL_LAUNCH: Final = re.compile(r"launch\w*kernel|kernellaunch", re.IGNORECASE)
_GRAPH_LAUNCH: Final = re.compile(r"graph\w*launch", re.IGNORECASE)
_GIVES_WORK: Final = re.compile(r"launch|enqueue|memcpy|memset", re.IGNORECASE)
_CAPTURE_BEGIN: Final = re.compile("BeginCapture")
_CAPTURE_END: Final = re.compile("EndCapture")
EARLY_START: Final = re.compile(r"Launch\w*Kernel\w*Ex")
"""Calls that may let a kernel start before the one before it on its stream has ended (programmatic dependent launch)."""


class HostEvents(msgspec.Struct, frozen=True):
    """Events of the host with a time in arrays [events], and those of its calls that launch kernels, as positions in them."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    places: Sequence[tuple[int, int]]
    """Times near them, see the function ``places``."""
    thread: NDArray[np.int64]
    calls: NDArray[np.intp]
    """Positions of calls of the device's runtime, in which ``correlation`` and ``names`` are."""
    correlation: NDArray[np.int64]
    names: Sequence[str]
    """Names of the trace; ``name`` of each call is an index into them."""
    name: NDArray[np.int32]


def is_work_launch(name: str) -> bool:
    """Return whether a call of a device's runtime gives work to the device, by its name."""
    return _GIVES_WORK.search(name) is not None


def kernel_launches(host: HostEvents, called: Sequence[int]) -> NDArray[np.bool_]:
    """Return which calls launch a kernel by themselves, [calls]. ``called``: distinct names of calls."""
    return named(host, called, _is_kernel_launch) & (host.correlation >= 0)


def in_capture(host: HostEvents, called: Sequence[int]) -> NDArray[np.bool_]:
    """Return which calls were made while a device graph was captured, [calls].

    Autograd launches what is captured from a thread of its own. A trace may lack the begin or the end of a capture.
    """
    start = host.start[host.calls]
    begins = named(host, called, lambda name: _CAPTURE_BEGIN.search(name) is not None)
    bounds = np.flatnonzero(begins | named(host, called, lambda name: _CAPTURE_END.search(name) is not None))
    bounds = bounds[np.argsort(start[bounds], kind="stable")]
    # Of the bound before a call and the one after it: outside of all bounds there is no capture.
    is_begin = np.concatenate(([False], begins[bounds], [True]))
    before = np.searchsorted(start[bounds], start, side="right")
    inside: NDArray[np.bool_] = is_begin[before] | ~is_begin[before + 1]
    return inside


def part_of_another(host: HostEvents, launched: NDArray[np.bool_], lost: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which ``lost`` launches, those without a kernel, are part of another launch, [calls].

    One launch may show as several calls, each inside the one before: of the runtime, and of the driver. One of them has the
    kernel; where none has, the outermost counts. Calls that start at once are not inside each other.
    """
    rows = np.flatnonzero(launched)
    at = host.calls[rows]
    order = np.lexsort((-host.end[at], host.start[at], host.thread[at]))
    rows, at = rows[order], at[order]
    is_outer = np.ones(len(rows), dtype=bool)
    edges = np.flatnonzero(np.diff(host.thread[at])) + 1
    for mine in np.split(np.arange(len(rows)), edges):
        begin, end = host.start[at[mine]], host.end[at[mine]]
        is_outer[mine[1:]] = begin[1:] >= np.maximum.accumulate(end)[:-1]
        is_outer[mine] = is_outer[mine[np.searchsorted(begin, begin)]]
    launch = np.cumsum(is_outer) - 1
    has_kernel = np.bincount(launch, weights=~lost[rows]) > 0
    part = np.zeros(len(launched), dtype=bool)
    part[rows] = lost[rows] & (has_kernel[launch] | ~is_outer)
    return part


def named(host: HostEvents, called: Sequence[int], wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return which calls have a wanted name, [calls]. ``called``: distinct names of calls."""
    is_wanted = np.zeros(len(host.names), dtype=bool)
    is_wanted[[at for at in called if wanted(host.names[at])]] = True
    found: NDArray[np.bool_] = is_wanted[host.name]
    return found


def _is_kernel_launch(name: str) -> bool:
    return _KERNEL_LAUNCH.search(name) is not None and _GRAPH_LAUNCH.search(name) is None


def calls_of(correlation: NDArray[np.int64], host: HostEvents) -> NDArray[np.intp]:
    """Return, per device event, the position of the host event that launched it, or -1."""
    call = positions_of(correlation, host.correlation)
    return np.where(call >= 0, host.calls[call] if len(host.calls) else -1, -1)


def launch_about(correlation: NDArray[np.int64], host: HostEvents) -> NDArray[np.int64]:
    """Return the launch times of device events whose call is not known, by those before it: ids ascend; -1 without an id."""
    known = host.correlation >= 0
    if not known.any():
        return np.full(len(correlation), -1)
    order = np.argsort(host.correlation[known], kind="stable")
    ids, times = host.correlation[known][order], host.start[host.calls[known]][order]
    at = np.searchsorted(ids, correlation)
    # Ids before the first and after the last that is known: of steps before and after those that are known.
    times = np.concatenate(([host.start.min() - 1], times[:-1], [host.end.max() + 1]))
    return np.where(correlation < 0, -1, times[at])


_EARLY_NS: Final = 1_000_000
"""Time by which an event begins before its launch, or is launched before one that began earlier, that no rounding explains."""
_MOST: Final = 0.02
"""Largest share of launched events for which this may be so: more of them are no single damaged event."""


def before_launch(start: NDArray[np.int64], launch: NDArray[np.int64]) -> int:
    """Return how many events begin before their launch."""
    return int((launch - start > _EARLY_NS).sum())


def out_of_order(launch: NDArray[np.int64], queue: NDArray[np.int64]) -> int:
    """Return how many events, at least, have a wrong place in their stream, which runs events in the order of their launch.

    They are many where a clock was set back. The events are given by queue and start; those with a negative queue have no order.
    """
    back = (queue[1:] == queue[:-1]) & (queue[1:] >= 0) & (launch[:-1] - launch[1:] > _EARLY_NS)
    return sum(_not_ascending(launch[queue == at].tolist()) for at in np.unique(queue[1:][back]))


def contradiction(quality: DataQuality) -> str | None:
    """Return why a trace's clocks cannot be believed, as the end of a sentence about the trace; ``None`` if they can."""
    if _are_many(quality.before_launch, quality.before_launch_share):
        early, linked = quality.before_launch, round(quality.before_launch / (quality.before_launch_share or 1.0))
        said = f"{early:,} of {counted(linked, 'event')}"
        return f"has device events that begin before their launch: its clocks of host and device contradict each other ({said})"
    if _are_many(quality.out_of_order, quality.out_of_order_share):
        linked = round(quality.out_of_order / (quality.out_of_order_share or 1.0))
        said = f"{quality.out_of_order:,} of {counted(linked, 'event')}"
        return f"has device events in another order than their launches: a clock was set back while it was recorded ({said})"
    return None


def _are_many(count: int, share: float | None) -> bool:
    return count > 1 and (share or 0.0) > _MOST


def _not_ascending(times: list[int]) -> int:
    """Return how many times must be taken out so that the others ascend: all but those of the longest ascending row."""
    # Per length, the earliest time at which an ascending row of this length ends.
    ends: list[int] = []
    for time in times:
        at = bisect_right(ends, time)
        ends[at : at + 1] = [time]
    return len(times) - len(ends)
