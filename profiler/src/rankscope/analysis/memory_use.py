"""Memory of a run's ranks, from the samples in their step records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankscope.analysis.memory_growth import Values, is_leak, slope_of
from rankscope.analysis.memory_result import Memory, MemoryGrowth, MemoryKind, RankMemory
from rankscope.analysis.own_time import WARM_UP
from rankscope.analysis.steps import Matrix, StepTable
from rankscope.runs.step_columns import MEMORY

_COLUMN: Final = {name: place for place, name in enumerate(MEMORY, start=1)}
_GROWING: Final[tuple[tuple[MemoryKind, str], ...]] = (("device", "allocated_bytes"), ("host", "resident_bytes"))


def memory_of(table: StepTable, device_bytes: Mapping[int, int]) -> Memory | None:
    """Return the memory of all ranks; ``None`` where no rank has a sample.

    ``device_bytes``: size of the device's memory by rank.
    """
    if not table.memory:
        return None
    of_rank = {rank: {name: memory_samples(samples, name) for name in MEMORY} for rank, samples in table.memory.items()}
    growth = [
        found
        for rank, series in of_rank.items()
        for kind, name in _GROWING
        if (found := _growth(rank, series, kind, name, ranks=len(of_rank), device_bytes=device_bytes.get(rank))) is not None
    ]
    return Memory(
        ranks=[_rank(rank, len(table.memory[rank]), series, device_bytes.get(rank)) for rank, series in of_rank.items()],
        growth=sorted(growth, key=lambda row: (-row.bytes_per_1000_steps, row.rank)),
    )


_Series = Mapping[str, tuple[Values, Values]]
"""Result of ``memory_samples`` for each name in ``MEMORY``."""


def _rank(rank: int, samples: int, series: _Series, device_bytes: int | None) -> RankMemory:
    def last(name: str) -> int | None:
        values = series[name][1]
        return int(values[-1]) if len(values) else None

    def most(name: str) -> int | None:
        values = series[name][1]
        return int(values.max()) if len(values) else None

    peak, reserved = most("peak_allocated_bytes"), most("reserved_bytes")
    return RankMemory(
        rank=rank,
        samples=samples,
        allocated_bytes=last("allocated_bytes"),
        reserved_bytes=reserved,
        peak_allocated_bytes=peak,
        device_bytes=device_bytes,
        peak_share=peak / device_bytes if peak is not None and device_bytes else None,
        fragmentation=1 - peak / reserved if peak is not None and reserved and peak <= reserved else None,
        resident_bytes=last("resident_bytes"),
        allocator_retries=last("allocator_retries"),
    )


def _growth(
    rank: int, series: _Series, kind: MemoryKind, name: str, *, ranks: int, device_bytes: int | None
) -> MemoryGrowth | None:
    steps, values = series[name]
    settled = steps >= steps[0] + WARM_UP if len(steps) else np.zeros(0, dtype=bool)
    steps, values = steps[settled], values[settled]
    slope = slope_of(steps, values, series=ranks * len(_GROWING))
    if slope is None:
        return None
    leaking = is_leak(values, slope)
    peak = series["peak_allocated_bytes"][1]
    full = None
    if leaking and kind == "device" and device_bytes and len(peak):
        full = int(max(0.0, device_bytes - float(peak[-1])) / slope.middle)
    return MemoryGrowth(
        rank=rank,
        kind=kind,
        samples=len(steps),
        bytes_per_1000_steps=1000 * slope.middle,
        low_bytes_per_1000_steps=1000 * slope.low,
        high_bytes_per_1000_steps=1000 * slope.high,
        leaking=leaking,
        steps_until_full=full,
    )


def memory_samples(samples: Matrix, name: str) -> tuple[Values, Values]:
    """Return the steps with a value in one column, ascending and distinct, and the values."""
    column = samples[:, _COLUMN[name]]
    known = np.isfinite(column)
    steps, values = samples[known, 0], column[known]
    if (steps[1:] > steps[:-1]).all():
        return steps, values
    # For a step that was recorded twice the last record counts.
    each, at = np.unique(steps[::-1], return_index=True)
    return each, values[::-1][at]
