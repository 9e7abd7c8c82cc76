"""Counters that a GPU's process accumulates itself: they restart at zero in each process but stay monotonic on the page."""

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
        # accumulated only where the driver has no counter
        "gpu_pcie_transmit_bytes_total",
        "gpu_pcie_receive_bytes_total",
    }
)

_Key = tuple[str, str, Labels]


class MonotonicCounters:
    """Values that one GPU's counters have reached, over all its processes."""

    def __init__(self) -> None:
        self._reached: dict[_Key, float] = {}
        self._bases: dict[_Key, float] = {}

    def new_process(self) -> None:
        """Expect readings of a new process from now on."""
        self._bases.clear()

    def apply(self, readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        """Return the readings to publish, each counter raised by the value its earlier processes reached.

        A counter that starts at or above that value comes from the driver rather than from the process, and is left as it is.
        """
        published = list(readings)
        for index, reading in enumerate(readings):
            if reading.metric not in ADDED_UP_BY_PROCESS:
                continue
            key = (reading.metric, reading.uuid, reading.labels)
            base = self._bases.get(key)
            if base is None:
                reached = self._reached.get(key, 0.0)
                base = self._bases[key] = reached if reading.value < reached else 0.0
            value = self._reached[key] = base + reading.value
            if base:
                published[index] = Reading(reading.metric, value, reading.labels, reading.uuid)
        return tuple(published)
