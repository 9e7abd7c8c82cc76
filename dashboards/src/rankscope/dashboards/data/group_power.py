"""Power and thermal headroom of hosts and racks, over their GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rankscope.analysis.evidence.hardware import bare
from rankscope.dashboards.data.gpu_columns import TimeColumns, Values, means_in, worst_in
from rankscope.dashboards.data.hardware import Hardware
from rankscope.dashboards.data.topology import Place, Topology

NO_RACK = "rack not known"


@dataclass(frozen=True, slots=True)
class GroupPower:
    """Power of the GPUs of a host or rack."""

    name: str
    known: int
    """Highest number of GPUs whose power is known at the same time."""
    gpus: int
    """Number of all GPUs of the group."""
    median_watts: float | None
    """Median of the sums over the ``known`` GPUs; ``None``: no GPU's power is known."""
    highest_watts: float | None
    headroom_celsius: float | None
    """Smallest margin of any of its GPUs to thermal slowdown."""

    @property
    def is_whole(self) -> bool:
        """True if the sums include all GPUs."""
        return self.known == self.gpus


def group_powers(
    hardware: Hardware, columns: TimeColumns, group_of: Mapping[str, str], unsampled: Mapping[str, int]
) -> list[GroupPower]:
    """Return the power of each group of ``group_of`` (GPU to group) and ``unsampled`` (group to its number of GPUs without
    samples), highest power first. MIG devices count as part of their GPU.
    """
    watts = means_in(hardware, "power_watts", columns)
    margins = worst_in(hardware, "temperature_margin_celsius", columns)
    groups = []
    for name in sorted({*group_of.values(), *unsampled}):
        rows = [row for row, gpu in enumerate(hardware.gpus) if gpu.parent_uuid is None and group_of[gpu.gpu_uuid] == name]
        groups.append(_group(name, watts[rows], margins[rows], len(rows) + unsampled.get(name, 0)))
    return sorted(groups, key=lambda group: -(group.median_watts or -1))


def _group(name: str, watts: Values, margins: Values, gpus: int) -> GroupPower:
    """Return the power of one group. Sums cover only times with the most known GPUs, so that they stay comparable."""
    counts = np.isfinite(watts).sum(axis=0)
    known = margins[np.isfinite(margins)]
    headroom = float(known.min()) if len(known) else None
    most = int(counts.max(initial=0))
    if not most:
        return GroupPower(name, 0, gpus, None, None, headroom)
    sums = np.nansum(watts[:, counts == most], axis=0)
    return GroupPower(name, most, gpus, float(np.median(sums)), float(sums.max()), headroom)


def rack_of(place: Place) -> str | None:
    """Return the rack in the place's coordinates, ``None`` if there is none."""
    return f"rack {place.coordinates['rack']}" if "rack" in place.coordinates else None


def racks_of_gpus(hardware: Hardware, topology: Topology) -> dict[str, str]:
    """Return GPU to rack; the rack of a host is that of any rank on it."""
    racks = {place.rank: rack for place in topology.places if (rack := rack_of(place)) is not None}
    hosts = {gpu.host: racks[rank] for gpu in hardware.gpus for rank in gpu.ranks if rank in racks}
    return {gpu.gpu_uuid: hosts.get(gpu.host, NO_RACK) for gpu in hardware.gpus}


def unsampled_gpus(hardware: Hardware, topology: Topology, *, by_rack: bool) -> dict[str, int]:
    """Return the number of GPUs with ranks but without samples, by host or rack."""
    missing = set(hardware.index.unsampled_ranks)
    found = {
        ((rack_of(place) or NO_RACK) if by_rack else place.host, bare(place.gpu_uuid))
        for place in topology.places
        if place.rank in missing and place.gpu_uuid is not None and place.host is not None
    }
    return Counter(group for group, _ in found)
