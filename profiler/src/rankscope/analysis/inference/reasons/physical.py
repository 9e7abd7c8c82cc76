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

from rankscope.analysis.evidence.hardware import Readings, Values
from rankscope.analysis.remedies import OUT_OF_SERVICE, READINGS, SEGMENTS, Remedy, remedy
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.statistics import middle

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
        active = _shares(self.slow, reasons)
        of_peers = [shares for readings in self.peers.values() if len(shares := _shares(readings, reasons)) >= MINIMUM_READINGS]
        usual = [middle(map(_mean, of_peers))]
        if len(other := _shares(self.other, reasons)) >= MINIMUM_READINGS:
            usual.append(_mean(other))
        shares_elsewhere = [share for share in usual if share is not None]
        if len(active) < MINIMUM_READINGS or not shares_elsewhere:
            return None
        return _mean(active), int(active.sum()), max(shares_elsewhere)

    def gauge(self, name: str) -> tuple[float, list[float]] | None:
        """Return the medians of a gauge while busy: of the slow readings, and of the peers and the GPU's other steps.

        ``None`` without enough slow readings, or without enough readings to compare with.
        """
        of_rank = _median_of(self.slow, name)
        of_peers = middle(_median_of(readings, name) for readings in self.peers.values())
        usual = [value for value in (of_peers, _median_of(self.other, name)) if value is not None]
        return None if of_rank is None or not usual else (of_rank, usual)

    def rise(self, name: str) -> tuple[float, float, int] | None:
        """Return the increase of a counter, the median increase of the peers, and the time of the first increase.

        ``None`` where the counter did not rise, where there are no peers or slow readings, or where more than half of the slow
        readings precede the first increase.
        """
        own_rise = self.every.rises(name)
        rises = [rise[0] for readings in self.every_peer.values() if (rise := readings.rises(name)) is not None]
        if own_rise is None or own_rise[1] is None or not rises or not len(self.slow.unix_ns):
            return None
        if (self.slow.unix_ns >= own_rise[1]).mean() < 0.5:
            return None
        return own_rise[0], float(np.median(rises)), own_rise[1]


MAY_BE_DEVICE: Final[tuple[Cause, ...]] = ("host", "unknown")
"""Causes behind which may be the device, where its activity was not observed."""


@dataclass(frozen=True, slots=True)
class PhysicalRow:
    """Row of the table: a reason, and the signs of it. The first row with a sign is the explanation."""

    reason: str
    causes: frozenset[Cause]
    """Causes that this reason can explain."""
    signs: tuple[tuple[str, Callable[[GpuComparison], Evidence | None]], ...]
    """Text that continues the sentence about the rank in messages, and the function that finds the evidence."""
    remedies: tuple[Remedy, ...]
    on_device: bool = False
    """True if the reason slows the device; it then also explains ``MAY_BE_DEVICE`` where device activity was not observed."""


@dataclass(frozen=True, slots=True)
class PhysicalReason:
    """Physical reason of a slow rank, with its evidence."""

    row: PhysicalRow
    wording: str
    evidence: Evidence


def explain(gpus: GpuComparison, cause: Cause, *, device_unseen: bool) -> PhysicalReason | None:
    """Return the first sign that explains a slow rank with this cause. ``device_unseen``: device activity was not observed."""
    for row in PHYSICAL:
        if cause in row.causes or (row.on_device and cause in MAY_BE_DEVICE and device_unseen):
            for wording, evidence_of in row.signs:
                if (evidence := evidence_of(gpus)) is not None:
                    return PhysicalReason(row, wording, evidence)
    return None


def _shares(readings: Readings, reasons: tuple[str, ...]) -> Values:
    values = np.stack([readings.values[f"reason.{reason}"] for reason in reasons])
    active: Values = values[:, np.isfinite(values).all(axis=0)].max(axis=0)
    return active


def _median_of(readings: Readings, name: str) -> float | None:
    """Return the median of a gauge while the GPU was busy; ``None`` without enough readings."""
    values = readings.busy().known_values(name)
    return float(np.median(values)) if len(values) >= MINIMUM_READINGS else None


def _mean(values: Values) -> float:
    return float(values.mean())


def _slows(gpus: GpuComparison, part: float, least: float) -> tuple[bool, str]:
    """Return whether the clock is lower than usual by both ``part`` of the lost share and ``least``, and a text on the clock.

    Return true where the clock is not known.
    """
    clock = gpus.gauge("sm_clock_hertz")
    if clock is None:
        return True, "clock not known"
    own_clock, usual = clock[0], min(clock[1])
    return own_clock <= usual * (1 - max(least, part * gpus.lost)), f"clock {own_clock / 1e6:.0f} MHz against {usual / 1e6:.0f}"


def _throttled(*reasons: str) -> Callable[[GpuComparison], Evidence | None]:
    def evidence(gpus: GpuComparison) -> Evidence | None:
        shares = gpus.share(*reasons)
        if shares is None:
            return None
        share, count, usual = shares
        slower, clock = _slows(gpus, 0.25, 0.02)
        if count < MINIMUM_READINGS or share - usual < _MORE_OFTEN or not slower:
            return None
        heat = gpus.slow.known_values("temperature_celsius")
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


def _counted(name: str, wording: str, *, least: float, times: float) -> Callable[[GpuComparison], Evidence | None]:
    def evidence(gpus: GpuComparison) -> Evidence | None:
        rise = gpus.rise(name)
        if rise is None:
            return None
        rose, usual, first = rise
        if rose < least or rose < times * usual or rose <= usual:
            return None
        when = dt.datetime.fromtimestamp(first // 10**9, tz=dt.UTC).isoformat().replace("+00:00", "Z")
        return Evidence(
            name=f"hardware.{name}", value=rose, unit="count", detail=f"{wording}, the first seen {when}; usual are {usual:g}"
        )

    return evidence


def _narrow_link(gpus: GpuComparison) -> Evidence | None:
    for name, unit in (("pcie_link_width", "lanes"), ("pcie_link_generation", "generation")):
        medians = gpus.gauge(name)
        if medians is not None and medians[0] < min(medians[1]):
            detail = f"of its PCIe link while busy; usual are {min(medians[1]):g}"
            return Evidence(name=f"hardware.{name}", value=medians[0], unit=unit, detail=detail)
    return None


def _links_down(gpus: GpuComparison) -> Evidence | None:
    medians = gpus.gauge("nvlinks_down")
    if medians is None or medians[0] <= max(medians[1]):
        return None
    detail = f"NVLinks that are down; usual are {max(medians[1]):g}"
    return Evidence(name="hardware.nvlinks_down", value=medians[0], unit="links", detail=detail)


def _retries(gpus: GpuComparison) -> Evidence | None:
    if gpus.retries is None:
        return None
    retries, usual = gpus.retries
    if retries < MINIMUM_READINGS or retries < 4 * usual:
        return None
    return Evidence(
        name="hardware.allocator_retries",
        value=retries,
        unit="count",
        detail=f"allocations that made the allocator give back its cache; usual are {usual:g}",
    )


_DEVICE: Final[frozenset[Cause]] = frozenset({"compute", "unknown"})
_ANY: Final[frozenset[Cause]] = frozenset({"compute", "host", "communication", "unknown"})

_DRAIN: Final = 'Take the host out: scontrol update NodeName={node} State=DRAIN Reason="rankscope: rank {rank} slow, %s"'

_READINGS_OF_HOST: Final = "Compare the readings of the GPUs of {host} with those of another host: nvidia-smi -q -d %s"


def _for_hardware(reason: str, topics: str, *actions: str, drain: bool = True) -> tuple[Remedy, Remedy]:
    """Return the remedies for a host and for a rank that the hardware holds back.

    ``topics``: sections of ``nvidia-smi -q`` that show it. ``drain``: the host may have to be taken out to mend it.
    """
    of_host = (*actions, _READINGS_OF_HOST % topics, *((OUT_OF_SERVICE,) if drain else ()))
    of_rank = (*actions, READINGS % topics, *((_DRAIN % reason.replace("_", " "),) if drain else ()))
    return (
        remedy("mend_host", *of_host, figure="hardware", whole_host=True),
        remedy("mend_hardware", *of_rank, figure="hardware"),
    )


PHYSICAL: Final[tuple[PhysicalRow, ...]] = (
    PhysicalRow(
        "xid",
        _ANY,
        (
            (
                "the driver reports errors of its GPU",
                _counted("xid_errors", "Xid errors, not of programs, while it trained", least=1, times=2),
            ),
        ),
        _for_hardware(
            "xid",
            "PAGE_RETIREMENT,ECC",
            "On {host}, find the errors in the kernel's log, and what each asks for: dmesg | grep Xid",
        ),
    ),
    PhysicalRow(
        "ecc",
        _ANY,
        (
            (
                "memory of its GPU loses data",
                _counted("ecc_uncorrected_errors", "uncorrected ECC errors while it trained", least=1, times=2),
            ),
        ),
        _for_hardware(
            "ecc",
            "ECC,ROW_REMAPPER",
            "Reset the GPU of {ranks} once the job is off it; if the errors come again, replace the GPU",
        ),
    ),
    PhysicalRow(
        "thermal_throttle",
        _DEVICE,
        (("its GPU is held down by heat", _throttled("hw_thermal", "sw_thermal")),),
        _for_hardware("thermal_throttle", "TEMPERATURE,PERFORMANCE", "Check airflow, fans and coolant of {host}"),
        on_device=True,
    ),
    PhysicalRow(
        "power_brake",
        _DEVICE,
        (("its GPU is held down by the host's power supply", _throttled("hw_power_brake")),),
        _for_hardware("power_brake", "POWER,PERFORMANCE", "Check the power supplies of {host} and what its rack may draw"),
        on_device=True,
    ),
    PhysicalRow(
        "power_cap",
        _DEVICE,
        (("its GPU is held down by its power limit", _throttled("sw_power_cap")),),
        _for_hardware(
            "power_cap",
            "POWER",
            "Compare the power limit of rank {rank}'s GPU with the others', and raise it if rack and cooling allow: "
            "nvidia-smi -pl",
            drain=False,
        ),
        on_device=True,
    ),
    PhysicalRow(
        "clock",
        _DEVICE,
        (
            (
                "its GPU is held to a lower clock",
                _throttled("hw_slowdown", "applications_clocks", "sync_boost", "display_clocks"),
            ),
            ("its GPU runs at a lower clock than the others", _low_clock),
        ),
        _for_hardware(
            "clock",
            "CLOCK,PERFORMANCE",
            "Reset the clocks of {host}'s GPUs, if they are locked: nvidia-smi -rgc; nvidia-smi -rac",
            drain=False,
        ),
        on_device=True,
    ),
    PhysicalRow(
        "link",
        _ANY,
        (
            ("the PCIe link of its GPU is narrower or slower than the others'", _narrow_link),
            ("NVLinks of its GPU are down", _links_down),
            ("an NVLink of its GPU has errors", _counted("nvlink_errors", "NVLink errors while it trained", least=10, times=10)),
            (
                "the PCIe link of its GPU repeats transfers",
                _counted("pcie_replays", "PCIe replays while it trained", least=10, times=10),
            ),
        ),
        _for_hardware(
            "link",
            "PERFORMANCE",
            "Compare the PCIe links of {host}: nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",
            "Find NVLinks that are down or have errors on {host}: nvidia-smi nvlink -s; nvidia-smi nvlink -e",
        ),
    ),
    PhysicalRow(
        "memory_pressure",
        frozenset({"compute", "host", "unknown"}),
        (("the memory of its GPU is full, and the allocator retries repeatedly", _retries),),
        (
            remedy(
                "memory_of_rank",
                "Find what {ranks} holds on its GPU and the others do not: longer sequences, work that only it does, or "
                "another process (nvidia-smi)",
                SEGMENTS,
            ),
        ),
    ),
)
