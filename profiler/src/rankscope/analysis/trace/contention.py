"""Contention of compute with communication: kernels that share the device with it, compared with the same kernels alone."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.detail import Contention, SlowedKernel
from rankscope.analysis.trace.intervals import by_key

ENOUGH: Final = 3
"""Smallest number of samples on each side, so that one outlier does not decide the median."""

STEADY: Final = 0.2
"""Largest interquartile range over the median of a kernel alone: beyond it there is no typical time to compare with."""

SHORTEST_NS: Final = 5_000
"""Kernels that take less time alone are left out, because some traces have whole microseconds only."""

SHOWN: Final = 8


def same_work(
    name: NDArray[np.int32], grid: NDArray[np.int32], device: NDArray[np.int16], stream: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return a number per event (in order of start) that is equal for the same name and grid between the same neighbours.

    Neighbours are the two events before and the two after it on the stream. They stand for the shape, which traces seldom
    record. A matrix product written to use the whole device has one name and one grid for all sizes. The place in the model
    distinguishes these sizes.
    """
    own = _mixed(name.astype(np.int64), grid.astype(np.int64))
    place = own.copy()
    for rows in by_key(device, stream):
        for distance in (1, 2):
            place[rows[distance:]] = _mixed(place[rows[distance:]], own[rows[:-distance]])
            place[rows[:-distance]] = _mixed(place[rows[:-distance]], own[rows[distance:]])
    return place


def _mixed(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    # Multiplication by odd numbers overflows on purpose: this scatters the bits.
    return (left * 0x2545F4914F6CDD1D) ^ (right * 0x1B873593CC9E2D51 + 0x165667B19E3779F9)


def contention(
    names: list[str],
    name: NDArray[np.int32],
    work: NDArray[np.int64],
    length: NDArray[np.int64],
    under: NDArray[np.int64],
) -> Contention:
    """Compare compute kernels under communication with those that do the same ``work`` without communication beside them.

    One entry per compute kernel, in nanoseconds: ``length`` is its duration, ``under`` the part of it under communication of its
    device. A kernel is overlapped when ``under`` is at least half of its duration, and alone when it is 0.
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
