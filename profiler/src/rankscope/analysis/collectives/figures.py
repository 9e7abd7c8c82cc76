"""Type of the named figures that advice rests on, and the figures of collectives. Unknown figures are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.result.costs import PartSource
from rankscope.runs.records import CollectiveRecord


class Figure(msgspec.Struct, frozen=True):
    """One number, its unit, and its source."""

    value: float
    unit: str = "ratio"
    source: str | None = None
    stage: int | None = None
    """Pipeline stage of the figure; ``None``: the figure is of the whole job."""


Figures = Mapping[str, Figure]

SHARDING: Final = ("all_gather", "reduce_scatter")
"""Parts of the names of operations on sharded parameters."""


def figures_of_collectives(collectives: Sequence[Sequence[CollectiveRecord]], source: PartSource) -> dict[str, Figure]:
    """Return the size of messages, and the share of their time that sharding and all-reduce take. ``collectives``: per rank.

    ``median_bytes``: half of all bytes are in messages of at most this size, so numbers sent beside the gradients (a loss, a
    norm) do not count. ``messages``: number of messages of this size that the bytes of a step would fill.
    """
    found: dict[str, Figure] = {}
    rows = [row for one in collectives for row in one if not row.p2p]
    sizes = np.sort([float(row.bytes) for row in rows if row.bytes is not None and row.bytes > 0])
    if len(sizes):
        sums = np.cumsum(sizes)
        median = float(sizes[np.searchsorted(sums, sums[-1] / 2)])
        steps = len({(rank, row.step) for rank, one in enumerate(collectives) for row in one if not row.p2p})
        found["collectives.median_bytes"] = Figure(median, "bytes", source)
        found["collectives.messages"] = Figure(float(sums[-1]) / steps / median, "per step", source)
    times: Counter[str] = Counter()
    for row in rows:
        times[row.op] += row.end_unix_ns - row.start_unix_ns
    if (total := times.total()) > 0:
        sharding = sum(time for op, time in times.items() if any(name in op for name in SHARDING))
        reducing = sum(time for op, time in times.items() if "all_reduce" in op)
        found["collectives.sharding_share"] = Figure(sharding / total, source=source)
        found["collectives.all_reduce_share"] = Figure(reducing / total, source=source)
    return found
