"""Type of the named figures that advice rests on, and the figures of collectives. Unknown figures are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from rankscope.analysis.collectives.arrivals import CollectiveColumns, Floats, Numbers, combined, sums
from rankscope.analysis.collectives.traffic.payload import PAYLOADS, UNKNOWN, Coordinates, exposed_ns, payloads_of
from rankscope.analysis.result.costs import PartSource


class Figure(msgspec.Struct, frozen=True):
    """One number, its unit, and its source."""

    value: float
    unit: str = "ratio"
    source: str | None = None
    stage: int | None = None
    """Pipeline stage of the figure; ``None``: the figure is of the whole job."""


Figures = Mapping[str, Figure]


def figures_of_collectives(
    records: CollectiveColumns, source: PartSource, coordinates: Coordinates | None = None, unstaged: Collection[int] = ()
) -> dict[str, Figure]:
    """Return the size of messages, and the shares of what they carry. ``coordinates`` and ``unstaged``: as of ``payloads_of``.

    ``collectives.…_share``: of the time in collectives. ``exposed.…``: of the time in collectives, sends and receives that no
    compute covers.
    ``median_bytes``: half of all bytes are in messages of at most this size, so numbers sent beside the gradients (a loss, a
    norm) do not count. ``messages``: number of messages of this size that the bytes of a step would fill.
    """
    figures: dict[str, Figure] = {}
    sizes = np.sort(records.bytes[~records.p2p & (records.bytes > 0)]).astype(np.float64)
    if len(sizes):
        total = np.cumsum(sizes)
        median = float(sizes[np.searchsorted(total, total[-1] / 2)])
        steps = len(np.unique(combined(records.rank[~records.p2p], records.step[~records.p2p])))
        figures["collectives.median_bytes"] = Figure(median, "bytes", source)
        figures["collectives.messages"] = Figure(float(total[-1]) / steps / median, "per step", source)
    payload = payloads_of(records, coordinates or {}, unstaged)
    times, bare = (
        dict(zip(PAYLOADS, shares.tolist(), strict=False)) if (shares := _shares(payload[chosen], ns[chosen])) is not None else {}
        for ns, chosen in ((records.end - records.start, ~records.p2p), (exposed_ns(records), np.ones(len(payload), np.bool_)))
    )
    if times:
        figures["collectives.sharding_share"] = Figure(times["shards"], source=source)
        figures["collectives.all_reduce_share"] = Figure(times["gradients"], source=source)
    return figures | {f"exposed.{name}": Figure(share, source=source) for name, share in bare.items()}


def _shares(payload: Numbers, ns: Numbers) -> Floats | None:
    """Return the share of each payload in the time of operations; ``None`` where these take none."""
    total = sums(payload, ns, UNKNOWN + 1)
    return total / total.sum() if total.sum() > 0 else None
