"""Kernels that may be communication in a job of several ranks whose traces have no kernel that is known as such, or few.

A library that is not in the table of names runs its kernels on streams of their own, or in line with the compute. In line, the
ranks that wait for the last one take longer for them than that rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.result.analysis import UnknownKernel
from rankscope.analysis.trace.classify import function_of, last_part
from rankscope.analysis.trace.columns import Trace
from rankscope.analysis.trace.intervals import distinct
from rankscope.analysis.trace.kernels import LEAST_SHARE, kernel_class
from rankscope.analysis.trace.work import COMPUTE, KernelTime, WorkEvents, beside_the_main_stream

SHOWN: Final = 5
"""Largest number of kernels that are listed."""

_DIFFERS: Final = 0.02
"""Share of the window by which the times of the ranks must differ, at least."""
_RATIO: Final = 1.2
"""Longest time of any rank over the shortest, at least."""
_WAITS: Final = 0.1
"""Share of the window by which a kernel's times differ where ranks wait in it, though others are known to be communication."""
_BALANCE: Final = 0.5
"""Difference between the ranks' times outside known communication, over that in such a kernel, at most."""
_CALLS: Final = 0.5
"""Fewest calls of such a kernel on any rank over the most: no kernel of one stage of a pipeline alone."""
_COMPUTES: Final = frozenset({"attention", "convolution", "gemm"})
"""Classes of kernels that surely compute."""


class RankKernels(msgspec.Struct, frozen=True):
    """Kernels of one rank that are not known to be communication."""

    window_us: float
    exposed_us: float
    """Time in known communication that no compute hides."""
    kernels: Sequence[KernelTime]
    on_own_stream: frozenset[str]
    """Names of those that run on streams of their own, see ``kernels_on_own_streams``."""


def kernels_on_own_streams(trace: Trace, events: WorkEvents) -> frozenset[str]:
    """Return the names of compute kernels that never run on the main stream of their device.

    That is the stream with the most time in kernels that surely compute, or in any if there are none: the kernels of a rank that
    waits for long may take longer than its compute.
    """
    of_device = (events.kind == COMPUTE) & events.is_on_device(trace)
    rows = events.rows[of_device]
    length = (events.end - events.start)[of_device]
    sure = np.isin(
        trace.name[rows], [name for name in distinct(trace.name[rows]) if kernel_class(trace.names[name]) in _COMPUTES]
    )
    weight = np.where(sure, length, 0) if sure.any() else length
    off_main = beside_the_main_stream(trace.device[rows], trace.stream[rows], events.kind[of_device], weight)
    names = set(distinct(trace.name[rows[off_main]])).difference(distinct(trace.name[rows[~off_main]]))
    return frozenset(trace.names[name] for name in names)


def unknown_kernels(ranks: Mapping[int, RankKernels]) -> list[UnknownKernel]:
    """Return the kernels that may be communication, likeliest first.

    Of those that do not surely compute, these are the kernels on streams of their own and those whose time differs most between
    the ranks; without any, the longest ones.
    """
    window = float(np.mean([rank.window_us for rank in ranks.values()]))
    rows = [row for row in _unsure(ranks, window) if row.share >= LEAST_SHARE]
    chosen = [row for row in rows if row.own_stream or _differs(row, window)]
    return sorted(chosen or rows, key=_order)[:SHOWN]


def kernels_with_waits(ranks: Mapping[int, RankKernels]) -> list[UnknownKernel]:
    """Return the kernels in which ranks seem to wait for each other, likeliest first; empty where none is.

    Such a kernel does not surely compute, and its total time differs much between the ranks, all of which call it often. The
    time outside known communication hardly differs: a rank waits in the kernel for as long as another one computes more, or has
    nothing to do.
    """
    window = float(np.mean([rank.window_us for rank in ranks.values()]))
    outside = [rank.window_us - rank.exposed_us for rank in ranks.values()]
    unbalanced = max(outside) - min(outside)
    waits = [
        row
        for row in _unsure(ranks, window)
        if row.most_us - row.least_us >= _WAITS * window > 0
        and unbalanced < _BALANCE * (row.most_us - row.least_us)
        and _are_called_alike(row.name, ranks)
    ]
    return sorted(waits, key=_order)[:SHOWN]


def _are_called_alike(name: str, ranks: Mapping[int, RankKernels]) -> bool:
    calls = [sum(row.calls for row in rank.kernels if row.name == name) for rank in ranks.values()]
    return min(calls) >= _CALLS * max(calls)


def pattern_of(kernel: UnknownKernel, ranks: Mapping[int, RankKernels]) -> str:
    """Return a regular expression that finds this kernel and, if possible, no other: the shortest name of its function."""
    others = {row.name for rank in ranks.values() for row in rank.kernels} - {kernel.name}
    function = function_of(kernel.name)
    spellings = [text for text in (last_part(function), function) if text and text in kernel.name]
    alone = [text for text in spellings if not any(text in name for name in others)]
    return re.escape([*alone, kernel.name][0])


def _unsure(ranks: Mapping[int, RankKernels], window_us: float) -> list[UnknownKernel]:
    """Return all kernels that do not surely compute."""
    return [_row(name, times, ranks, window_us) for name, times in _times(ranks).items() if kernel_class(name) not in _COMPUTES]


def _times(ranks: Mapping[int, RankKernels]) -> dict[str, dict[int, float]]:
    """Return the total time of each kernel by rank, where it ran."""
    times: dict[str, dict[int, float]] = {}
    for rank, kernels in ranks.items():
        for row in kernels.kernels:
            of_ranks = times.setdefault(row.name, {})
            of_ranks[rank] = of_ranks.get(rank, 0.0) + row.total_us
    return times


def _row(name: str, times: Mapping[int, float], ranks: Mapping[int, RankKernels], window_us: float) -> UnknownKernel:
    totals = [times.get(rank, 0.0) for rank in ranks]
    return UnknownKernel(
        name=name,
        share=float(np.mean(totals)) / window_us if window_us > 0 else 0.0,
        least_us=min(totals),
        most_us=max(totals),
        own_stream=all(name in ranks[rank].on_own_stream for rank in times),
    )


def _differs(row: UnknownKernel, window_us: float) -> bool:
    return row.most_us - row.least_us >= _DIFFERS * window_us and row.most_us >= _RATIO * row.least_us


def _order(row: UnknownKernel) -> tuple[bool, float, float, str]:
    differs_us = 0.0 if row.own_stream else row.most_us - row.least_us
    return not row.own_stream, -differs_us, -row.most_us, row.name
