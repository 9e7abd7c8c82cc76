"""Algorithm and bus bandwidth of collectives' transfers (without the waiting), compared with the rates of their links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.links import Expectation, Fabric, expect
from rankscope.analysis.collectives.matching import Match, Matching
from rankscope.analysis.collectives.waiting import Wait, Waits
from rankscope.analysis.operations import bus_factor
from rankscope.analysis.result.collectives import CollectiveBandwidth, DirectedWait
from rankscope.analysis.trace.possible import MOST_BYTES

LONG_US: Final = 200.0
"""Shortest expected transfer that is bound by bandwidth. Shorter ones are bound by latency, for which there is no table."""


class Sample(msgspec.Struct, frozen=True):
    """One instance of a collective."""

    op: str
    group: str
    ranks: tuple[int, ...]
    group_size: int | None
    bytes: int | None
    on_cpu: bool
    transfer_us: float | None
    """``None`` where it cannot be separated from waiting."""
    inside_us: float | None
    """Shortest time that any rank spent in it, waiting included; ``None`` where ranks may leave before the end."""
    wait_us: float | None
    """Mean over its ranks; ``None`` without ``transfer_us``."""


def samples(matching: Matching, waits: Waits) -> Iterator[Sample]:
    """Yield one sample per instance that is matched, partly matched or directed (between two ranks, or with a root)."""
    for match in matching.matches:
        inside = match.inside_ns
        shortest = min(inside) / 1000
        yield _sample(match, shortest, shortest, sum(inside) / len(inside) / 1000 - shortest)
    for match in matching.partial:
        yield _sample(match, None, min(match.inside_ns) / 1000, None)
    waited: dict[int, float] = {}
    for wait in waits.waits:
        waited[id(wait.match)] = waited.get(id(wait.match), 0.0) + (wait.end - wait.start) / 1000
    for match, transfer in waits.transfers_ns:
        known = None if transfer is None else transfer / 1000
        yield _sample(match, known, None, waited.get(id(match), 0.0) / len(match.ranks))


def _sample(match: Match, transfer_us: float | None, inside_us: float | None, wait_us: float | None) -> Sample:
    record = match.records[0]
    size = 2 if match.rule == "pair" else record.group_size or (len(record.group_ranks) if record.group_ranks else None)
    if size is None and transfer_us is not None:
        size = len(match.ranks)
    members = tuple(record.group_ranks) if record.group_ranks and match.rule != "pair" else tuple(match.ranks)
    return Sample(
        op=match.op,
        group=match.group,
        ranks=members,
        group_size=size,
        bytes=next((one.bytes for one in match.records if one.bytes is not None and 0 < one.bytes < MOST_BYTES), None),
        on_cpu=record.stream is None,
        transfer_us=transfer_us if transfer_us is not None and transfer_us > 0 else None,
        inside_us=inside_us if inside_us is not None and inside_us > 0 else None,
        wait_us=wait_us,
    )


def size_bucket(size: int | None) -> int | None:
    """Return the largest power of two that is not above ``size``."""
    return None if size is None else 1 << (size.bit_length() - 1)


def bandwidths(instances: Iterable[Sample], fabric: Fabric) -> list[CollectiveBandwidth]:
    """Return a row per (operation, group, number of ranks, size bucket), most transfer time first, unknown transfers last."""
    rows: dict[tuple[str, str, int | None, int | None], list[Sample]] = {}
    for sample in instances:
        key = (sample.op, sample.group, sample.group_size, size_bucket(sample.bytes))
        rows.setdefault(key, []).append(sample)
    found = [_row(group, fabric) for group in rows.values()]
    return sorted(found, key=lambda row: (-(row.transfer_us or 0.0) * row.matched, -row.count, row.op, row.group))


def _row(group: Sequence[Sample], fabric: Fabric) -> CollectiveBandwidth:
    first = group[0]
    timed = [sample for sample in group if sample.transfer_us is not None]
    sizes = [sample.bytes for sample in group if sample.bytes is not None]
    transfers = [sample.transfer_us for sample in timed if sample.transfer_us is not None]
    algorithm = [_gb_s(sample.bytes, sample.transfer_us) for sample in timed]
    factor = None if first.group_size is None else bus_factor(first.op, first.group_size)
    bus = _times(algorithm, factor)
    at_least = _times([_gb_s(sample.bytes, sample.inside_us) for sample in group], factor)
    expected = _expected(group, fabric)
    bus_gb_s = _quantile(bus, 0.5)
    share = None if bus_gb_s is None or expected.bus_gb_s is None else bus_gb_s / expected.bus_gb_s
    transfer_us = _quantile(transfers, 0.5)
    waits = [sample.wait_us for sample in timed if sample.wait_us is not None]
    return CollectiveBandwidth(
        op=first.op,
        group=first.group,
        group_size=first.group_size,
        size_bucket_bytes=size_bucket(first.bytes),
        bytes=int(np.median(sizes)) if sizes else None,
        count=len(group),
        matched=len(timed),
        transfer_us=transfer_us,
        transfer_p10_us=_quantile(transfers, 0.1),
        transfer_p90_us=_quantile(transfers, 0.9),
        wait_us=float(np.mean(waits)) if waits else None,
        algorithm_gb_s=_quantile([one for one in algorithm if one is not None], 0.5),
        bus_gb_s=bus_gb_s,
        bus_p10_gb_s=_quantile(bus, 0.1),
        bus_p90_gb_s=_quantile(bus, 0.9),
        bus_at_least_gb_s=_quantile(at_least, 0.5),
        link=expected.link,
        link_source=expected.source,
        expected_gb_s=expected.bus_gb_s,
        expected_unknown=expected.unknown,
        share=share,
        bound_by=None if share is None or transfer_us is None else "bandwidth" if transfer_us * share >= LONG_US else "latency",
    )


def _expected(group: Sequence[Sample], fabric: Fabric) -> Expectation:
    """Return the expected bandwidth of a row. It is unknown where groups of the same name are placed on different links."""
    first = group[0]
    if first.group_size is None or len(first.ranks) != first.group_size:
        return Expectation(unknown="the ranks of its group are not known")
    if bus_factor(first.op, first.group_size) is None:
        return Expectation(unknown="the operation has no bus bandwidth")
    placements = {(sample.ranks, sample.on_cpu) for sample in group}
    found = {expect(first.op, ranks, fabric, on_cpu=on_cpu) for ranks, on_cpu in placements}
    return found.pop() if len(found) == 1 else Expectation(unknown="its instances go over different links")


def _gb_s(size: int | None, us: float | None) -> float | None:
    return None if size is None or us is None else size / us / 1000


def _times(values: Iterable[float | None], factor: float | None) -> list[float]:
    return [] if factor is None else [value * factor for value in values if value is not None]


def _quantile(values: Sequence[float], at: float) -> float | None:
    return float(np.quantile(values, at)) if values else None


def directed_rows(waits: Iterable[Wait]) -> list[DirectedWait]:
    """Sum waits per (operation, group, waiter, origin), longest first."""
    sums: dict[tuple[str, str, int, int], tuple[int, float]] = {}
    for wait in waits:
        key = (wait.match.op, wait.match.group, wait.waiter, wait.origin)
        count, total = sums.get(key, (0, 0.0))
        sums[key] = (count + 1, total + (wait.end - wait.start) / 1000)
    rows = [
        DirectedWait(op=op, group=group, waiter=waiter, origin=origin, count=count, wait_us=total)
        for (op, group, waiter, origin), (count, total) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.wait_us, row.waiter, row.origin))
