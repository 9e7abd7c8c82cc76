"""Healthy kernels for tests that damage them, and what counts of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tests.analysis.trace_events import Event, kernel, launch

from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.columns import Trace

GEMM: Final = "ampere_sgemm_128x64"
START_US: Final = 5e12
"""Start of traces whose times do not count from 0."""
BASE_NS: Final = 1_700_000_000_000_000_000
HOUR_US, SECOND_US = 3.6e9, 1e6


def pair(
    number: int, ts: float, dur: float = 10.5, *, name: str = GEMM, call: str = "cudaLaunchKernel", **args: Any
) -> list[Event]:
    """Return a call, and its kernel 20 us later."""
    return [launch(number, ts, name=call), kernel(name, ts + 20, dur, correlation=number, **args)]


def work(count: int = 10, *, first: int = 1, start: float = START_US, every: float = 100, dur: float = 10.5) -> list[Event]:
    """Return healthy kernels and their calls."""
    return [event for at in range(count) for event in pair(first + at, start + every * at, dur)]


def kernels(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event["cat"] == "kernel"]


def lengths(trace: Trace) -> list[float]:
    """Return the lengths of the kernels that count, in the order of their starts, in us."""
    rows = sorted(trace.rows(0), key=lambda row: trace.start[row])
    return [(trace.end[row] - trace.start[row]) / 1000 for row in rows]


def damage(quality: DataQuality) -> tuple[int, int, int, int]:
    return quality.without_time, quality.far, quality.overlong, quality.without_kernel
