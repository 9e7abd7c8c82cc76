"""Memory of a run's ranks, from the samples in their step records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankscope.analysis.memory_growth import Values, is_leak, slope_of
from rankscope.analysis.memory_result import Memory, MemoryGrowth, MemoryKind, RankMemory
from rankscope.analysis.own_time import WARM_UP
from rankscope.analysis.step_rows import MEMORY
from rankscope.analysis.steps import Matrix, StepTable

_COLUMN: Final = {name: place for place, name in enumerate(MEMORY, start=1)}
_GROWING: Final[tuple[tuple[MemoryKind, str], ...]] = (("device", "allocated_bytes"), ("host", "resident_bytes"))


def memory_of(table: StepTable, device_bytes: Mapping[int, int]) -> Memory | None:
    """Memory of all ranks; ``None`` where no rank has a sample. ``device_bytes``: rank to the size of its device's memory."""
    if not table.memory:
        return None
    growth = [
        found
        for rank, samples in table.memory.items()
        for kind, name in _GROWING
        if (found := _growth(rank, samples, kind, name, ranks=len(table.memory), device_bytes=device_bytes.get(rank))) is not None
    ]
    return Memory(
        ranks=[_rank(rank, samples, device_bytes.get(rank)) for rank, samples in table.memory.items()],
        growth=sorted(growth, key=lambda row: (-row.bytes_per_1000_steps, row.rank)),
    )


def _rank(rank: int, samples: Matrix, device_bytes: int | None) -> RankMemory:
    known = {name: memory_samples(samples, name)[1] for name in MEMORY}

    def last(name: str) -> int | None:
        return int(known[name][-1]) if len(known[name]) else None

    peak = int(known["peak_allocated_bytes"].max()) if len(known["peak_allocated_bytes"]) else None
    reserved = int(known["reserved_bytes"].max()) if len(known["reserved_bytes"]) else None
    return RankMemory(
        rank=rank,
        samples=len(samples),
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
    rank: int, samples: Matrix, kind: MemoryKind, name: str, *, ranks: int, device_bytes: int | None
) -> MemoryGrowth | None:
    steps, values = memory_samples(samples, name)
    settled = steps >= steps[0] + WARM_UP if len(steps) else np.zeros(0, dtype=bool)
    steps, values = steps[settled], values[settled]
    slope = slope_of(steps, values, series=ranks * len(_GROWING))
    if slope is None:
        return None
    leaking = is_leak(values, slope)
    peak = memory_samples(samples, "peak_allocated_bytes")[1]
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
    """Steps, ascending and each once, and what one column has at them."""
    rows = samples[np.isfinite(samples[:, _COLUMN[name]])]
    if (rows[1:, 0] > rows[:-1, 0]).all():
        return rows[:, 0], rows[:, _COLUMN[name]]
    # A step that was recorded twice counts as last written.
    steps, at = np.unique(rows[::-1, 0], return_index=True)
    return steps, rows[::-1, _COLUMN[name]][at]
