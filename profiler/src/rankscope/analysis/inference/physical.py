"""Physical reasons for a slow rank, from the readings of its GPU: a table from evidence to reason.

A GPU is compared with itself in the steps in which its rank was not late, and with GPUs of the same model at the same steps
whose ranks are not to blame. Readings that all of them have explain nothing, nor do constant readings of an intermittently late
rank.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rankscope.analysis.evidence.hardware import Readings, Values, median_of
from rankscope.analysis.result.analysis import Cause, Evidence

MINIMUM_READINGS: Final = 5
"""Minimum number of readings in the slow steps for an explanation, and minimum number to compare with."""

_MORE_OFTEN: Final = 0.2
"""Minimum share of readings in which a reason for a lowered clock must be active, beyond its share elsewhere."""


@dataclass(frozen=True, slots=True)
class GpuComparison:
    """GPU of a slow rank: its readings in the slow steps, and those that they are compared with."""

    slow: Readings
    """Readings of the slow rank's GPU, in the steps in which the rank was late."""
    other: Readings
    """Readings of the same GPU in the other steps; empty where the rank is late all the time, as there is nothing to compare."""
    peers: Mapping[int, Readings]
    """Readings by rank in the same steps as ``slow``, of GPUs of the same model whose ranks are not to blame."""
    lost: float
    """Share of its own time that the rank lost in those steps, 0.2 for a fifth. A lowered clock must account for a part of it."""
    every: Readings
    """Readings of the slow rank's GPU in all analysed steps; for counters."""
    every_peer: Mapping[int, Readings] = field(default_factory=dict)
    retries: tuple[float, float] | None = None
    """Number of allocations that failed at first, of the slow rank and of a typical peer, over the run."""

    def share(self, *reasons: str) -> tuple[float, int, float] | None:
        """Return how often one of the reasons held the clock down: share and count in the slow readings, and share elsewhere.

        The last is the larger of the median share of the peers and the share in the GPU's other steps. ``None`` without enough
        slow readings, or without enough readings to compare with.
        """
        mine = _shares(self.slow, reasons)
        rest = [float(np.median(values)) for values in [[_mean(_shares(one, reasons)) for one in self._enough()]] if values]
        if len(other := _shares(self.other, reasons)) >= MINIMUM_READINGS:
            rest.append(_mean(other))
        if len(mine) < MINIMUM_READINGS or not rest:
            return None
        return _mean(mine), int(mine.sum()), max(rest)

    def _enough(self) -> list[Readings]:
        return [one for one in self.peers.values() if len(_shares(one, ("hw_thermal",))) >= MINIMUM_READINGS]

    def gauge(self, name: str) -> tuple[float, list[float]] | None:
        """Return the medians of a gauge while busy: of the slow readings, and of the peers and the GPU's other steps.

        ``None`` without enough slow readings, or without enough readings to compare with.
        """
        mine = self.slow.busy().known(name)
        peers = {rank: one.busy() for rank, one in self.peers.items()}
        usual = [
            value
            for those in (peers, {0: self.other.busy()})
            if (value := median_of(those, name, at_least=MINIMUM_READINGS)) is not None
        ]
        return (float(np.median(mine)), usual) if len(mine) >= MINIMUM_READINGS and usual else None

    def rise(self, name: str) -> tuple[float, float, int] | None:
        """Return the increase of a counter, the median increase of the peers, and the time of the first increase.

        ``None`` where the counter did not rise, where there are no peers or slow readings, or where more than half of the slow
        readings precede the first increase.
        """
        mine = self.every.rises(name)
        theirs = [found[0] for one in self.every_peer.values() if (found := one.rises(name)) is not None]
        if mine is None or mine[1] is None or not theirs or not len(self.slow.unix_ns):
            return None
        if (self.slow.unix_ns >= mine[1]).mean() < 0.5:
            return None
        return mine[0], float(np.median(theirs)), mine[1]


MAY_BE_DEVICE: Final[tuple[Cause, ...]] = ("host", "unknown")
"""Causes behind which may be the device, where its activity was not observed."""


@dataclass(frozen=True, slots=True)
class PhysicalRow:
    """Row of the table; the first row that applies is the explanation."""

    reason: str
    says: str
    """Text that continues the sentence about the rank in messages."""
    causes: frozenset[Cause]
    """Causes that this reason can explain."""
    evidence: Callable[[GpuComparison], Evidence | None]
    on_device: bool = False
    """True if the reason slows the device; it then also explains ``MAY_BE_DEVICE`` where device activity was not observed."""


@dataclass(frozen=True, slots=True)
class Explained:
    """Row of the table that explains a slow rank, with its evidence."""

    row: PhysicalRow
    evidence: Evidence


def explain(gpus: GpuComparison, cause: Cause, *, device_unseen: bool) -> Explained | None:
    """Return the first row that explains a slow rank with this cause. ``device_unseen``: device activity was not observed."""
    for row in PHYSICAL:
        if cause in row.causes or (row.on_device and cause in MAY_BE_DEVICE and device_unseen):
            found = row.evidence(gpus)
            if found is not None:
                return Explained(row, found)
    return None


def _shares(readings: Readings, reasons: tuple[str, ...]) -> Values:
    values = np.stack([readings.values[f"reason.{reason}"] for reason in reasons])
    active: Values = values[:, np.isfinite(values).all(axis=0)].max(axis=0)
    return active


def _mean(values: Values) -> float:
    return float(values.mean())


def _slows(gpus: GpuComparison, part: float, least: float) -> tuple[bool, str]:
    """Return whether the clock is lower than usual by both ``part`` of the lost share and ``least``, and a text on the clock.

    Return true where the clock is not known.
    """
    clock = gpus.gauge("sm_clock_hertz")
    if clock is None:
        return True, "clock not known"
    mine, usual = clock[0], min(clock[1])
    return mine <= usual * (1 - max(least, part * gpus.lost)), f"clock {mine / 1e6:.0f} MHz against {usual / 1e6:.0f}"


def _throttled(*reasons: str) -> Callable[[GpuComparison], Evidence | None]:
    def evidence(gpus: GpuComparison) -> Evidence | None:
        found = gpus.share(*reasons)
        if found is None:
            return None
        share, count, usual = found
        slower, clock = _slows(gpus, 0.25, 0.02)
        if count < MINIMUM_READINGS or share - usual < _MORE_OFTEN or not slower:
            return None
        heat = gpus.slow.known("temperature_celsius")
        warm = f", {np.median(heat):.0f} °C" if len(heat) else ""
        detail = f"{'/'.join(reasons)} in {count} of {len(gpus.slow.unix_ns)} readings, elsewhere {usual:.0%}; {clock}{warm}"
        return Evidence(name="hardware.throttled", value=share, unit="ratio", detail=detail)

    return evidence


def _low_clock(gpus: GpuComparison) -> Evidence | None:
    clock = gpus.gauge("sm_clock_hertz")
    if clock is None or not _slows(gpus, 0.5, 0.05)[0]:
        return None
    detail = f"SM clock while busy, median of {len(gpus.slow.unix_ns)} readings; usual are {min(clock[1]) / 1e6:.0f} MHz"
    return Evidence(name="hardware.sm_clock", value=clock[0], unit="hertz", detail=detail)


def _counted(name: str, says: str, *, least: float, times: float) -> Callable[[GpuComparison], Evidence | None]:
    def evidence(gpus: GpuComparison) -> Evidence | None:
        found = gpus.rise(name)
        if found is None:
            return None
        rose, usual, first = found
        if rose < least or rose < times * usual or rose <= usual:
            return None
        when = dt.datetime.fromtimestamp(first // 10**9, tz=dt.UTC).isoformat().replace("+00:00", "Z")
        return Evidence(
            name=f"hardware.{name}", value=rose, unit="count", detail=f"{says}, the first seen {when}; usual are {usual:g}"
        )

    return evidence


def _narrow_link(gpus: GpuComparison) -> Evidence | None:
    for name, unit in (("pcie_link_width", "lanes"), ("pcie_link_generation", "generation")):
        found = gpus.gauge(name)
        if found is not None and found[0] < min(found[1]):
            detail = f"of its PCIe link while busy; usual are {min(found[1]):g}"
            return Evidence(name=f"hardware.{name}", value=found[0], unit=unit, detail=detail)
    return None


def _links_down(gpus: GpuComparison) -> Evidence | None:
    found = gpus.gauge("nvlinks_down")
    if found is None or found[0] <= max(found[1]):
        return None
    detail = f"NVLinks that are down; usual are {max(found[1]):g}"
    return Evidence(name="hardware.nvlinks_down", value=found[0], unit="links", detail=detail)


def _retries(gpus: GpuComparison) -> Evidence | None:
    if gpus.retries is None:
        return None
    mine, usual = gpus.retries
    if mine < MINIMUM_READINGS or mine < 4 * usual:
        return None
    return Evidence(
        name="hardware.allocator_retries",
        value=mine,
        unit="count",
        detail=f"allocations that made the allocator give back its cache; usual are {usual:g}",
    )


_DEVICE: Final[frozenset[Cause]] = frozenset({"compute", "unknown"})
_ANY: Final[frozenset[Cause]] = frozenset({"compute", "host", "communication", "unknown"})

PHYSICAL: Final[tuple[PhysicalRow, ...]] = (
    PhysicalRow(
        "xid",
        "the driver reports errors of its GPU",
        _ANY,
        _counted("xid_errors", "Xid errors, not of programs, while it trained", least=1, times=2),
    ),
    PhysicalRow(
        "ecc",
        "memory of its GPU loses data",
        _ANY,
        _counted("ecc_uncorrected_errors", "uncorrected ECC errors while it trained", least=1, times=2),
    ),
    PhysicalRow("thermal_throttle", "its GPU is held down by heat", _DEVICE, _throttled("hw_thermal", "sw_thermal"), True),
    PhysicalRow("power_brake", "its GPU is held down by the host's power supply", _DEVICE, _throttled("hw_power_brake"), True),
    PhysicalRow("power_cap", "its GPU is held down by its power limit", _DEVICE, _throttled("sw_power_cap"), True),
    PhysicalRow(
        "clock",
        "its GPU is held to a lower clock",
        _DEVICE,
        _throttled("hw_slowdown", "applications_clocks", "sync_boost", "display_clocks"),
        True,
    ),
    PhysicalRow("clock", "its GPU runs at a lower clock than the others", _DEVICE, _low_clock, True),
    PhysicalRow("link", "the PCIe link of its GPU is narrower or slower than the others'", _ANY, _narrow_link),
    PhysicalRow("link", "NVLinks of its GPU are down", _ANY, _links_down),
    PhysicalRow(
        "link",
        "an NVLink of its GPU has errors",
        _ANY,
        _counted("nvlink_errors", "NVLink errors while it trained", least=10, times=10),
    ),
    PhysicalRow(
        "link",
        "the PCIe link of its GPU repeats transfers",
        _ANY,
        _counted("pcie_replays", "PCIe replays while it trained", least=10, times=10),
    ),
    PhysicalRow(
        "memory_pressure",
        "the memory of its GPU is full, and the allocator retries repeatedly",
        frozenset({"compute", "host", "unknown"}),
        _retries,
    ),
)
