"""Readings of one GPU over time, from wherever they come."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class HardwareSeries:
    """One GPU, or MIG device, of a run."""

    gpu_uuid: str
    """As its ranks call it."""
    host: str | None
    ranks: tuple[int, ...]
    """Ranks that train on it."""
    unix_ns: NDArray[np.int64]
    """[samples], ascending."""
    values: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Gauge of ``rankscope.analysis.hardware.GAUGES`` to its values [samples], NaN where the GPU did not tell."""
    simulated: bool = False
