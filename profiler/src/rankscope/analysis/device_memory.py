"""How much memory the ranks' devices have, from the hardware samples of a run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo

_SAMPLES: Final = 1024
"""Read per host: sizes do not change, and the first round of samples has every GPU."""


def device_memory(reader: RunReader, infos: Mapping[int, RankInfo]) -> dict[int, int]:
    """Rank to bytes; without ranks whose device no sample names."""
    wanted = {info.gpu_uuid: rank for rank, info in infos.items() if info.gpu_uuid is not None}
    found: dict[int, int] = {}
    for host in {info.host for info in infos.values()} & set(reader.hosts()) if wanted else ():
        for sample in islice(reader.hardware(host), _SAMPLES):
            rank = None if sample.gpu_uuid is None else wanted.get(sample.gpu_uuid)
            if rank is not None and sample.memory_total_bytes is not None and 0 < sample.memory_total_bytes < 1 << 62:
                found[rank] = sample.memory_total_bytes
    return found
