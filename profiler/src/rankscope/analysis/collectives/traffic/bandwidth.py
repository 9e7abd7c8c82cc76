"""Algorithm and bus bandwidth of collectives' transfers (without the waiting), compared with the rates of their links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import PAIR, Arrivals, Flags, Floats, Numbers, numbered, sums
from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.collectives.matching import Matching
from rankscope.analysis.collectives.traffic.links import ExpectedBandwidth, Fabric, expect
from rankscope.analysis.collectives.waits.waiting import Waits
from rankscope.analysis.operations import bus_factor
from rankscope.analysis.result.collectives import CollectiveBandwidth, DirectedWait
from rankscope.analysis.trace.intervals import by_key
from rankscope.analysis.trace.possible import MOST_BYTES

LONG_US: Final = 200.0
"""Shortest expected transfer that is bound by bandwidth. Shorter ones are bound by latency, for which there is no table."""


class BandwidthSamples(msgspec.Struct, frozen=True):
    """Instances that are matched, partly matched or directed (between two ranks, or with a root), [instances]. NaN: not known."""

    parts: list[Arrivals]
    op: list[str]
    group: list[str]
    size: Numbers
    """Number of ranks; ``NONE`` where unknown."""
    bytes: Numbers
    on_cpu: Flags
    transfer_us: Floats
    """Not known where it cannot be separated from waiting."""
    inside_us: Floats
    """Shortest time that any rank spent in it, waiting included; not known where ranks may leave before the end."""
    wait_us: Floats
    """Mean over its ranks; not known without a transfer."""

    def ranks(self, number: int) -> tuple[int, ...]:
        """Return the ranks of an instance."""
        for part in self.parts:
            if number < len(part):
                records, leader = part.records, int(part.leader[number])
                if records.team[leader] != NONE and part.rule[number] != PAIR:
                    return records.members[int(records.team[leader])]
                return tuple(part.rank[part.first[number] : part.first[number + 1]].tolist())
            number -= len(part)
        raise IndexError(number)


def samples(matching: Matching, waits: Waits) -> BandwidthSamples:
    """Return one sample per instance."""
    matches, partial, judged = parts = [matching.matches, matching.partial, waits.judged]
    shortest = matches.shortest_ns / 1000
    waited = sums(waits.instance, (waits.end - waits.start) / 1000, len(judged))
    none = np.full(len(partial), np.nan)
    transfer = _positive([shortest, none, waits.transfer_ns / 1000])
    sizes = []
    for part, timed in zip(parts, (True, False, waits.transfer_ns > 0), strict=True):
        records, leader = part.records, part.leader
        lengths = np.array([NONE, *map(len, records.members)])
        size = np.where(records.size[leader] == 0, NONE, records.size[leader])
        size = np.where(size == NONE, lengths[np.where(records.team[leader] == NONE, 0, records.team[leader] + 1)], size)
        size = np.where((size == NONE) & timed, part.count, size)
        sizes.append(np.where(part.rule == PAIR, 2, size))
    return BandwidthSamples(
        parts=parts,
        op=[part.records.ops[op] for part in parts for op in part.op.tolist()],
        group=[part.group_names[group] for part in parts for group in part.group.tolist()],
        size=np.concatenate(sizes),
        bytes=np.concatenate([_bytes(part) for part in parts]),
        on_cpu=np.concatenate([part.records.on_cpu[part.leader] for part in parts]),
        transfer_us=transfer,
        inside_us=_positive([shortest, partial.shortest_ns / 1000, np.full(len(judged), np.nan)]),
        wait_us=np.concatenate([matches.sum(matches.inside_ns) / matches.count / 1000 - shortest, none, waited / judged.count]),
    )


def _positive(parts: Sequence[Floats]) -> Floats:
    values = np.concatenate(parts)
    return np.where(values > 0, values, np.nan)


def _bytes(part: Arrivals) -> Numbers:
    """Return the size that the first rank with a possible one recorded."""
    byte_counts = part.records.bytes[part.row]
    place = part.least(np.where((byte_counts > 0) & (byte_counts < MOST_BYTES), np.arange(len(byte_counts)), len(byte_counts)))
    return np.asarray(np.append(byte_counts, NONE)[place])


def size_bucket(size: int | None) -> int | None:
    """Return the largest power of two that is not above ``size``."""
    return None if size is None else 1 << (size.bit_length() - 1)


def bandwidths(instances: BandwidthSamples, fabric: Fabric) -> list[CollectiveBandwidth]:
    """Return a row per (operation, group, number of ranks, size bucket), most transfer time first, unknown transfers last."""
    bucket = np.where(instances.bytes == NONE, -1, np.frexp(instances.bytes.astype(np.float64))[1])
    names = [np.unique(names, return_inverse=True)[1] for names in (instances.op, instances.group)]
    number = numbered(*names, instances.size, bucket)[1]
    bandwidth_rows = [_row(instances, rows, fabric) for rows in by_key(number)]
    return sorted(bandwidth_rows, key=lambda row: (-(row.transfer_us or 0.0) * row.matched, -row.count, row.op, row.group))


def _row(samples: BandwidthSamples, rows: NDArray[np.intp], fabric: Fabric) -> CollectiveBandwidth:
    first = int(rows[0])
    op, size = samples.op[first], int(samples.size[first])
    group_size = None if size == NONE else size
    timed = rows[~np.isnan(samples.transfer_us[rows])]
    sized = samples.bytes[rows] != NONE
    sizes = samples.bytes[rows][sized]
    transfers = samples.transfer_us[timed]
    factor = None if group_size is None else bus_factor(op, group_size)
    algorithm = _gb_s(samples.bytes[timed], transfers)
    bus = algorithm[:0] if factor is None else algorithm * factor
    at_least = algorithm[:0] if factor is None else _gb_s(samples.bytes[rows], samples.inside_us[rows]) * factor
    expected = _expected(samples, rows, group_size, fabric)
    bus_gb_s = _quantile(bus, 0.5)
    share = None if bus_gb_s is None or expected.bus_gb_s is None else bus_gb_s / expected.bus_gb_s
    transfer_us = _quantile(transfers, 0.5)
    waits = samples.wait_us[timed]
    return CollectiveBandwidth(
        op=op,
        group=samples.group[first],
        group_size=group_size,
        size_bucket_bytes=size_bucket(int(sizes[0]) if sized[0] else None),
        bytes=int(np.median(sizes)) if len(sizes) else None,
        count=len(rows),
        matched=len(timed),
        transfer_us=transfer_us,
        transfer_p10_us=_quantile(transfers, 0.1),
        transfer_p90_us=_quantile(transfers, 0.9),
        wait_us=float(np.mean(waits)) if len(waits) else None,
        algorithm_gb_s=_quantile(algorithm, 0.5),
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


def _expected(samples: BandwidthSamples, rows: NDArray[np.intp], group_size: int | None, fabric: Fabric) -> ExpectedBandwidth:
    """Return the expected bandwidth of a row. It is unknown where groups of the same name are placed on different links."""
    op = samples.op[int(rows[0])]
    if group_size is None or len(samples.ranks(int(rows[0]))) != group_size:
        return ExpectedBandwidth(unknown="the ranks of its group are not known")
    if bus_factor(op, group_size) is None:
        return ExpectedBandwidth(unknown="the operation has no bus bandwidth")
    placements = {(samples.ranks(row), bool(samples.on_cpu[row])) for row in rows.tolist()}
    expectations = {expect(op, ranks, fabric, on_cpu=on_cpu) for ranks, on_cpu in placements}
    return expectations.pop() if len(expectations) == 1 else ExpectedBandwidth(unknown="its instances go over different links")


def _gb_s(size: Numbers, us: Floats) -> Floats:
    """Return the rates where both are known."""
    measured = (size != NONE) & ~np.isnan(us)
    return np.asarray(size[measured] / us[measured] / 1000)


def _quantile(values: Sequence[float] | Floats, at: float) -> float | None:
    return float(np.quantile(values, at)) if len(values) else None


def directed_rows(waits: Waits) -> list[DirectedWait]:
    """Sum waits per (operation, group, waiter, origin), longest first."""
    judged, instance, waiter = waits.judged, waits.instance, waits.waiter
    first, number = numbered(judged.op[instance], judged.group[instance], waiter, waits.origin)
    count, total = np.bincount(number), sums(number, waits.end - waits.start, len(first)) / 1000
    at = instance[first]
    columns = (judged.op[at], judged.group[at], waiter[first], waits.origin[first], count, total)
    rows = [
        DirectedWait(op=judged.records.ops[op], group=judged.group_names[group], waiter=by, origin=of, count=times, wait_us=us)
        for op, group, by, of, times, us in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.wait_us, row.waiter, row.origin))
