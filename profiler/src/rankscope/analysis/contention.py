"""Compute that runs beside communication against the same kernels alone: they share the device, so both slow down."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.detail_result import Contention, SlowedKernel
from rankscope.analysis.grouping import by_key

ENOUGH: Final = 3
"""Samples on each side for a median that one odd kernel does not decide."""

STEADY: Final = 0.2
"""Interquartile range over the median, of a kernel alone: beyond it there is no usual time to compare with."""

SHORTEST_NS: Final = 5_000
"""Kernels that take less alone are left out: some traces have whole microseconds only."""

SHOWN: Final = 8


def same_work(
    name: NDArray[np.int32], grid: NDArray[np.int32], device: NDArray[np.int16], stream: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Per event (in order of start) a number that is the same for the same name and grid between the same neighbours.

    Neighbours are the two events before and after on the stream. They stand for the shape, which traces seldom tell: a matrix
    product that is written to use all of the device has one name and one grid for all sizes, but its place in the model is one.
    """
    own = _mixed(name.astype(np.int64), grid.astype(np.int64))
    place = own.copy()
    for rows in by_key(device, stream):
        for distance in (1, 2):
            place[rows[distance:]] = _mixed(place[rows[distance:]], own[rows[:-distance]])
            place[rows[:-distance]] = _mixed(place[rows[:-distance]], own[rows[distance:]])
    return place


def _mixed(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    # Multiplication by odd numbers wraps around, which is what scatters the bits.
    return (left * 0x2545F4914F6CDD1D) ^ (right * 0x1B873593CC9E2D51 + 0x165667B19E3779F9)


def contention(
    names: list[str],
    name: NDArray[np.int32],
    work: NDArray[np.int64],
    length: NDArray[np.int64],
    under: NDArray[np.int64],
) -> Contention:
    """Compare compute kernels under communication with those that do the same ``work`` and have none beside them.

    One entry per compute kernel: how long it took, and how much of it lay under communication of its device, in nanoseconds. It
    is overlapped when that is at least half of it, and alone when it is nothing.
    """
    overlapped = (2 * under >= length) & (length > 0)
    alone = (under == 0) & (length > 0)
    rows: list[SlowedKernel] = []
    for group in by_key(name, work):
        beside, by_itself = length[group[overlapped[group]]], length[group[alone[group]]]
        if min(len(beside), len(by_itself)) < ENOUGH:
            continue
        slowed = float(np.median(beside))
        low, usual, high = map(float, np.percentile(by_itself, (25, 50, 75)))
        if usual < SHORTEST_NS or high - low > STEADY * usual:
            continue
        rows.append(
            SlowedKernel(
                name=names[name[group[0]]],
                overlapped=len(beside),
                alone=len(by_itself),
                overlapped_median_us=slowed / 1000,
                alone_median_us=usual / 1000,
                ratio=slowed / usual,
            )
        )
    expected = sum(row.overlapped * row.alone_median_us for row in rows)
    took = sum(row.overlapped * row.overlapped_median_us for row in rows)
    return Contention(
        slowdown=took / expected if rows else None,
        extra_us=took - expected if rows else None,
        compared=sum(row.overlapped for row in rows),
        overlapped=int(overlapped.sum()),
        costliest=sorted(rows, key=lambda row: -abs(row.overlapped * (row.overlapped_median_us - row.alone_median_us)))[:SHOWN],
    )
