"""Readings of a run's GPUs, and for people where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rankscope.dashboards.data.hardware import Hardware
from rankscope.dashboards.data.run_data import RunData

OF_RUN: Final = "the samples that rankscope run took of each host's exporter"
OF_PROMETHEUS: Final = "the Prometheus of --prometheus; the run has no samples of its own"


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings, and where they come from."""

    hardware: Hardware
    origin: str


def readings_of(run: RunData) -> Readings:
    """Readings of a run's GPUs. Raises ``RankscopeError``."""
    hardware = run.hardware
    return Readings(hardware, OF_RUN if hardware.index.prometheus is None else OF_PROMETHEUS)
