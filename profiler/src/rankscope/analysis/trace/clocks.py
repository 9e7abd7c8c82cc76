"""Clocks of host and device that contradict each other, by the launches of a device's events."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.result.text import counted

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
