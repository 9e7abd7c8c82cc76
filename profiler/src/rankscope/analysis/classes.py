"""Time by class of kernel, and the kernels that belong to no class."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.detail_result import ClassPart, NamedKernel
from rankscope.analysis.grouping import by_key
from rankscope.analysis.intervals import Spans, intersect, measure, union
from rankscope.analysis.kernel_classes import COMMUNICATION_CLASS
from rankscope.analysis.streams import known

LONG: Final = 0.005
"""Smallest share of the window for which an unknown kernel beside the main stream is reported."""

SHOWN: Final = 10


def class_parts(
    labels: list[str],
    label: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    *,
    compute: Spans,
    communication: Spans,
) -> list[ClassPart]:
    """Return one row per class, busiest first; ``label`` indexes ``labels``, one entry per kernel (times in nanoseconds)."""
    parts: list[ClassPart] = []
    for rows in by_key(label):
        name = labels[label[rows[0]]]
        busy = union(start[rows], end[rows])
        against = compute if name == COMMUNICATION_CLASS else communication
        parts.append(
            ClassPart(
                name=name,
                events=len(rows),
                busy_us=measure(busy) / 1000,
                summed_us=int((end[rows] - start[rows]).sum()) / 1000,
                overlapped_us=measure(intersect(busy, against)) / 1000,
            )
        )
    return sorted(parts, key=lambda part: (-part.busy_us, part.name))


def unclassified(
    names: list[str],
    name: NDArray[np.int32],
    stream: NDArray[np.int64],
    *,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    window_ns: int,
) -> list[NamedKernel]:
    """Return the kernels that take at least ``LONG`` of the window, grouped by name and stream, longest first."""
    found: list[NamedKernel] = []
    for rows in by_key(name, stream):
        busy = measure(union(start[rows], end[rows]))
        if busy >= LONG * window_ns:
            found.append(
                NamedKernel(
                    name=names[name[rows[0]]],
                    stream=known(int(stream[rows[0]])),
                    events=len(rows),
                    busy_us=busy / 1000,
                    longest_us=int((end[rows] - start[rows]).max()) / 1000,
                )
            )
    return sorted(found, key=lambda one: -one.busy_us)[:SHOWN]
