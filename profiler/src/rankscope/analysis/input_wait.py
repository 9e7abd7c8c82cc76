"""Idle time of a trace's device while its host was in the data loader."""

from __future__ import annotations

from typing import Final

import numpy as np

from rankscope.analysis.intervals import clip, join, measure, subtract, union
from rankscope.analysis.traces import NOTE, Trace
from rankscope.analysis.work import WorkEvents

_LOADER: Final = "enumerate(DataLoader)"
"""Prefix of the annotation that torch's DataLoader records."""


def input_wait_us(trace: Trace, events: WorkEvents) -> float | None:
    """Return the device's idle time during data loading, in microseconds.

    ``None`` for traces without device work (CPU builds) and traces without data loader annotations.
    """
    names = np.array([name.startswith(_LOADER) for name in trace.names], dtype=bool)
    rows = np.flatnonzero((trace.category == NOTE) & names[trace.name]) if trace.has_device_work and names.any() else ()
    if not len(rows):
        return None
    work = events.work()
    extent = work.extent()
    if extent is None:
        return None
    loading = clip(union(trace.start[rows], trace.end[rows]), *extent)
    return measure(subtract(loading, join(work.compute, work.communication, work.copies))) / 1000
