"""Counters that a GPU's process adds up by itself begin at zero with every process; what is published goes on where it was."""

from __future__ import annotations

from typing import Final

from rankscope.exporter.source import Labels, Reading

ADDED_UP_BY_PROCESS: Final = frozenset(
    {
        "gpu_busy_seconds_total",
        "gpu_graphics_active_seconds_total",
        "gpu_sm_active_seconds_total",
        "gpu_tensor_active_seconds_total",
        "gpu_dram_active_seconds_total",
        "gpu_mig_sm_active_seconds_total",
        # where the driver does not count these itself
        "gpu_pcie_transmit_bytes_total",
        "gpu_pcie_receive_bytes_total",
    }
)

_Key = tuple[str, str, Labels]


class Continuity:
    """What one GPU's counters have reached, over all its processes."""

    def __init__(self) -> None:
        self._reached: dict[_Key, float] = {}
        self._bases: dict[_Key, float] = {}

    def new_process(self) -> None:
        """From now on readings come from a new process."""
        self._bases.clear()

    def carry_on(self, readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        """The readings as they are to be published.

        A counter that is not behind what was reached comes from the driver, not from the process, and is left as it is.
        """
        published = list(readings)
        for place, reading in enumerate(readings):
            if reading.metric not in ADDED_UP_BY_PROCESS:
                continue
            key = (reading.metric, reading.uuid, reading.labels)
            base = self._bases.get(key)
            if base is None:
                reached = self._reached.get(key, 0.0)
                base = self._bases[key] = reached if reading.value < reached else 0.0
            value = self._reached[key] = base + reading.value
            if base:
                published[place] = Reading(reading.metric, value, reading.labels, reading.uuid)
        return tuple(published)
