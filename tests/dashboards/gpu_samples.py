"""Samples of the GPUs of a run, as the recorder writes them and as they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.dashboards.recorded_run import START_NS

from rankscope.dashboards.data.hardware import ROW
from rankscope.runs.paths import host_dir
from rankscope.runs.records import HardwareSample
from rankscope.runs.segment_writer import JsonLinesWriter

STEP_NS = 80_000_000
STEPS = 60


def uuid(rank: int) -> str:
    return f"GPU-{rank:08x}-5d1f-4a52-9c3e-0123456789ab"


def hot(step: int) -> bool:
    return 20 <= step < 40


def samples_of(rank: int, **values: Any) -> list[HardwareSample]:
    """Return one sample per step; from step 20 to 39 GPU 3 is hot and slow."""
    return [
        HardwareSample(
            unix_ns=START_NS + step * STEP_NS + STEP_NS // 2,
            gpu_uuid=uuid(rank),
            gpu_index=rank % 2,
            temperature_celsius=88.0 if rank == 3 and hot(step) else 60.0 + rank,
            temperature_margin_celsius=2.0 if rank == 3 and hot(step) else 27.0,
            power_watts=500.0 + rank,
            power_limit_watts=700.0,
            sm_clock_hertz=1.2e9 if rank == 3 and hot(step) else 1.98e9,
            utilization_ratio=0.95,
            throttle_reasons=["hw_thermal"] if rank == 3 and hot(step) else [],
            xid_errors=int(rank == 3 and step > 30),
            pcie_link_width=16,
            **values,
        )
        for step in range(STEPS)
    ]


def write_samples(run: Path, host: str, *gpus: list[HardwareSample]) -> None:
    writer = JsonLinesWriter(host_dir(run, host), "gpu")
    for sample in sorted((sample for gpu in gpus for sample in gpu), key=lambda sample: sample.unix_ns):
        writer.append(sample)
    writer.close()


def rows_of(times: list[int], **gauges: list[float]) -> Any:
    """Return stored samples at times in nanoseconds; gauges that are not given are not known."""
    rows = np.zeros(len(times), ROW)
    for name in ROW.names or ():
        rows[name] = gauges.get(name, np.nan) if name != "unix_ns" else times
    return rows
