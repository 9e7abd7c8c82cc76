"""Type of the named figures that advice rests on, and the figures of collectives. Unknown figures are missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec
import numpy as np

from rankscope.analysis.collectives.transferred import Coordinates, Transfer, exposed_us, transfers_of
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


def figures_of_collectives(
    collectives: Sequence[Sequence[CollectiveRecord]],
    source: PartSource,
    coordinates: Coordinates | None = None,
    staged: Sequence[bool] | None = None,
) -> dict[str, Figure]:
    """Return the size of messages, and the shares of what they transfer. ``collectives`` and ``staged``: as of ``transfers_of``.

    ``collectives.…_share``: of the time in collectives. ``exposed.…``: of the time in collectives, sends and receives that no
    compute covers.
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
    times: dict[Transfer | None, float] = defaultdict(float)
    bare: dict[Transfer | None, float] = defaultdict(float)
    for one, transfers in zip(collectives, transfers_of(collectives, coordinates or {}, staged), strict=True):
        for row, transfer in zip(one, transfers, strict=True):
            bare[transfer] += exposed_us(row)
            if not row.p2p:
                times[transfer] += row.end_unix_ns - row.start_unix_ns
    if (total := sum(times.values())) > 0:
        found["collectives.sharding_share"] = Figure(times["shards"] / total, source=source)
        found["collectives.all_reduce_share"] = Figure(times["gradients"] / total, source=source)
    if (total := sum(bare.values())) > 0:
        found |= {f"exposed.{name}": Figure(bare[name] / total, source=source) for name in get_args(Transfer)}
    return found
