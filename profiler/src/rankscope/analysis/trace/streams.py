"""Activity of a device's streams: kernels, copies, recomputed operators, idle time while the host was in the data loader.

Autograd numbers the operators that it records while gradients are on. Backward itself runs with gradients off. So an operator
inside a backward operator that has a number, but no forward thread, is a recomputed forward operator. This holds for every
checkpointing implementation. A backward that is itself differentiated (``create_graph=True``) looks the same. Recomputation
inside a compiled backward is not visible.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.detail import CopyPart, Direction, StreamPart
from rankscope.analysis.trace.categories import NOTE
from rankscope.analysis.trace.classify import direction_of
from rankscope.analysis.trace.columns import BACKWARD, RECORDED, Trace
from rankscope.analysis.trace.intervals import Spans, by_key, clip, intersect, join, measure, shared, subtract, union
from rankscope.analysis.trace.work import COMPUTE, KINDS, WorkEvents, outermost, within

MAX_STREAMS: Final = 64
"""Number of streams reported at most, the busiest first: no program needs more, but a hostile trace may claim any number."""


def stream_parts(
    device: NDArray[np.int16],
    stream: NDArray[np.int64],
    kind: NDArray[np.int8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> list[StreamPart]:
    """Return one row per stream, busiest first; arguments have one entry per event on a device, with times in nanoseconds."""
    parts: list[StreamPart] = []
    for on_device in by_key(device):
        groups = [on_device[rows] for rows in by_key(stream[on_device])]
        busy = [union(start[rows], end[rows]) for rows in groups]
        together = shared(busy)
        for rows, spans in zip(groups, busy, strict=True):
            by_kind = [measure(union(start[mine], end[mine])) for mine in (rows[kind[rows] == one] for one in range(len(KINDS)))]
            overlapped = measure(intersect(spans, together))
            parts.append(
                StreamPart(
                    device=known(int(device[rows[0]])),
                    stream=known(int(stream[rows[0]])),
                    kind=KINDS[int(np.argmax(by_kind))],
                    events=len(rows),
                    busy_us=measure(spans) / 1000,
                    overlapped_us=overlapped / 1000,
                    exposed_us=(measure(spans) - overlapped) / 1000,
                    compute_us=by_kind[0] / 1000,
                    communication_us=by_kind[1] / 1000,
                    memcpy_us=by_kind[2] / 1000,
                )
            )
    return sorted(parts, key=lambda part: -part.busy_us)[:MAX_STREAMS]


def beside_the_main_stream(
    device: NDArray[np.int16], stream: NDArray[np.int64], kind: NDArray[np.int8], length: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return the mask of events on other streams than the one that computes longest on their device."""
    beside = np.ones(len(device), dtype=bool)
    for on_device in by_key(device):
        groups = [on_device[rows] for rows in by_key(stream[on_device])]
        main = max(groups, key=lambda rows: int(length[rows[kind[rows] == COMPUTE]].sum()))
        beside[main] = False
    return beside


def known(number: int) -> int | None:
    """Return the number of a device or stream, or ``None`` if the trace has none (it is negative)."""
    return None if number < 0 else number


_LARGEST_COPY_BYTES: Final = 2**40
"""Largest plausible copy, 1 TiB: a larger size is damage."""

_MAX_COPY_ROWS: Final = 32
"""Largest number of kinds of copies reported, the longest first; a hostile trace may invent any number."""

_MEMORY: Final = re.compile(r"\(([A-Za-z ]{1,24}-> ?[A-Za-z ]{1,24})\)")


def memory_of(name: str) -> str | None:
    """Return the kinds of memory in an event's name, such as ``Pageable -> Device``; ``None`` where it has none."""
    found = _MEMORY.search(name)
    return found.group(1) if found else None


def copy_parts(
    names: list[str],
    name: NDArray[np.int32],
    *,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    size: NDArray[np.int64],
    collective: NDArray[np.bool_],
    hidden: Spans,
) -> list[CopyPart]:
    """Return one row per direction, memory and purpose, longest first.

    One entry per copy: ``name`` indexes ``names``, times are nanoseconds, ``size`` is in bytes and -1 where unknown. ``hidden``
    is compute and communication of the window.
    """
    kinds: dict[tuple[Direction, str | None], int] = {}
    of_name = {
        int(one): kinds.setdefault((direction_of(names[one]), memory_of(names[one])), len(kinds)) for one in np.unique(name)
    }
    kind = np.array([of_name[int(one)] for one in name], dtype=np.int64)
    labels = list(kinds)
    parts: list[CopyPart] = []
    for rows in by_key(kind, collective):
        direction, memory = labels[kind[rows[0]]]
        busy = union(start[rows], end[rows])
        sized = rows[(size[rows] >= 0) & (size[rows] <= _LARGEST_COPY_BYTES)]
        took = measure(union(start[sized], end[sized]))
        total = int(size[sized].sum()) if len(sized) else None
        parts.append(
            CopyPart(
                direction=direction,
                memory=memory,
                events=len(rows),
                busy_us=measure(busy) / 1000,
                exposed_us=measure(subtract(busy, hidden)) / 1000,
                bytes=total,
                sized_events=len(sized),
                bytes_per_second=total * 1e9 / took if total is not None and took else None,
                collective=bool(collective[rows[0]]),
            )
        )
    return sorted(parts, key=lambda part: -part.busy_us)[:_MAX_COPY_ROWS]


def recomputing_rows(trace: Trace) -> NDArray[np.intp] | None:
    """Return the rows of the outermost recomputed operators; ``None`` if no operator has an autograd number."""
    if not trace.autograd.any():
        return None
    recorded = np.flatnonzero(trace.autograd == RECORDED)
    again = np.zeros(len(trace.start), dtype=bool)
    again[recorded[within(trace, recorded, np.flatnonzero(trace.autograd == BACKWARD))]] = True
    return outermost(trace, again)


_LOADER: Final = "enumerate(DataLoader)"
"""Prefix of the annotation that torch's DataLoader records."""


def input_wait_us(trace: Trace, events: WorkEvents) -> float | None:
    """Return the device's idle time during data loading, in microseconds.

    ``None`` for traces without device work (CPU builds) and traces without data loader annotations.
    """
    is_loader = np.array([name.startswith(_LOADER) for name in trace.names], dtype=bool)
    rows = np.flatnonzero((trace.category == NOTE) & is_loader[trace.name])
    work = events.work()
    extent = work.extent()
    if extent is None or not len(rows) or not trace.has_device_work:
        return None
    loading = clip(union(trace.start[rows], trace.end[rows]), *extent)
    return measure(subtract(loading, join(work.compute, work.communication, work.copies))) / 1000
