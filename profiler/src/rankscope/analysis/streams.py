"""Activity of each stream of a device, and the time in which no other stream was active."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.detail_result import StreamPart
from rankscope.analysis.grouping import by_key
from rankscope.analysis.intervals import intersect, measure, shared, union
from rankscope.analysis.work import COMPUTE, KINDS

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
