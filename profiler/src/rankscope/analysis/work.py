"""Which events of a trace are work, and of what kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.breakdown import Work
from rankscope.analysis.classify import WorkKind, classify_kernel, is_cpu_communication, is_cpu_work
from rankscope.analysis.intervals import union
from rankscope.analysis.traces import COPY, KERNEL, LAUNCHED, NOTE, OPERATOR, Trace

NO_WORK: Final = -1
KINDS: Final[tuple[WorkKind, ...]] = ("compute", "communication", "memcpy")
COMPUTE, COMMUNICATION, MEMCPY = range(3)


@dataclass(frozen=True, slots=True)
class WorkEvents:
    """The events of a trace that are work.

    On a trace with device work, compute is what ran on the device; on a CPU build it is the operators. Communication of CPU
    libraries (gloo) counts in both, so a run that computes on a GPU and communicates through gloo comes out whole.
    """

    rows: NDArray[np.intp]
    """Rows of the trace, in order of their start."""
    kind: NDArray[np.int8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    launch: NDArray[np.int64]
    """When the CPU asked for it: the start of the linked launch, or the event's own start where nothing is linked."""

    def work(self) -> Work:
        """Everything, as merged sets."""
        sets = [union(self.start[self.kind == kind], self.end[self.kind == kind]) for kind in (COMPUTE, COMMUNICATION, MEMCPY)]
        return Work(*sets)


def work_events(trace: Trace) -> WorkEvents:
    """Classify every event once."""
    kind = np.full(len(trace.start), NO_WORK, dtype=np.int8)
    kernels = trace.category == KERNEL
    notes = trace.category == NOTE
    by_name = np.array([KINDS.index(classify_kernel(name)) for name in trace.names], dtype=np.int8)
    kind[kernels] = by_name[trace.name[kernels]]
    # What the communication library said about a kernel outweighs the kernel's name.
    for row in trace.metadata:
        if kernels[row]:
            kind[row] = COMMUNICATION
    kind[trace.category == COPY] = MEMCPY
    cpu_communication = np.array([is_cpu_communication(name) for name in trace.names], dtype=bool)
    kind[notes & cpu_communication[trace.name]] = COMMUNICATION
    if not trace.has_device_work:
        computes = np.array([is_cpu_work(name) for name in trace.names], dtype=bool)
        operators = (trace.category == OPERATOR) & computes[trace.name]
        kind[_outermost(trace, operators)] = COMPUTE
    rows = np.flatnonzero(kind != NO_WORK)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    return WorkEvents(rows=rows, kind=kind[rows], start=trace.start[rows], end=trace.end[rows], launch=_launches(trace)[rows])


def _outermost(trace: Trace, wanted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Rows of the wanted events that lie inside no other wanted event of their thread: ``aten::linear``, not the ``aten::t``
    in it.
    """
    rows = np.flatnonzero(wanted)
    order = np.lexsort((-trace.end[rows], trace.start[rows], trace.thread[rows]))
    rows = rows[order]
    keep = np.ones(len(rows), dtype=bool)
    for thread in np.unique(trace.thread[rows]):
        mine = np.flatnonzero(trace.thread[rows] == thread)
        ends = np.maximum.accumulate(trace.end[rows[mine]])
        keep[mine[1:]] = trace.start[rows[mine[1:]]] >= ends[:-1]
    return rows[keep]


def _launches(trace: Trace) -> NDArray[np.int64]:
    """Per row, the start of the CPU call that launched it; its own start where no call is linked."""
    launched = trace.start.copy()
    calls = trace.rows(LAUNCHED)
    calls = calls[trace.correlation[calls] >= 0]
    if not len(calls):
        return launched
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    device = np.flatnonzero((trace.category <= COPY) & (trace.correlation >= 0))
    at = np.searchsorted(trace.correlation[calls], trace.correlation[device])
    at = np.minimum(at, len(calls) - 1)
    linked = trace.correlation[calls[at]] == trace.correlation[device]
    launched[device[linked]] = trace.start[calls[at[linked]]]
    return launched
