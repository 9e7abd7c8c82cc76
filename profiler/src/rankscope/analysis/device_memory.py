"""Memory size of the ranks' devices, from the hardware samples of a run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from rankscope.analysis.possible import MOST_BYTES
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo

_SAMPLES: Final = 256
"""Number of samples read per host: sizes do not change, and any round of samples has every GPU."""


def device_memory(reader: RunReader, infos: Mapping[int, RankInfo]) -> dict[int, int]:
    """Return the memory size in bytes per rank; ranks whose device is in no sample are left out."""
    wanted: dict[str, list[int]] = {}
    for rank, info in infos.items():
        if info.gpu_uuid is not None:
            wanted.setdefault(info.gpu_uuid, []).append(rank)
    found: dict[int, int] = {}
    for host in {info.host for info in infos.values()} & set(reader.hosts()) if wanted else ():
        for sample in islice(reader.hardware(host), _SAMPLES):
            if sample.memory_total_bytes is not None and 0 < sample.memory_total_bytes < MOST_BYTES:
                found.update(dict.fromkeys(wanted.get(sample.gpu_uuid or "", ()), sample.memory_total_bytes))
    return found
