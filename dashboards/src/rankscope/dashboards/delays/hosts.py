"""Imposed wait summed up per host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.dashboards.data.hosts import UNKNOWN_HOST
from rankscope.dashboards.delays.data import RankDelay, WaitGroup

Row = TypeVar("Row", ImposedWait, RankDelay)


def imposed_by_host(rows: Iterable[ImposedWait], hosts: Mapping[int, str], worst: Mapping[str, int]) -> list[ImposedWait]:
    """Return a row per host, most imposed first. ``worst``: rank that stands for each host."""
    host_rows = [
        ImposedWait(
            rank=worst[host],
            imposed_us=sum(row.imposed_us for row in of_host),
            imposed_exposed_us=sum(row.imposed_exposed_us for row in of_host),
            share=_sum([row.share for row in of_host]),
        )
        for host, of_host in _grouped(rows, hosts).items()
    ]
    return sorted(host_rows, key=lambda row: -row.imposed_us)


def delays_by_host(rows: Iterable[RankDelay], hosts: Mapping[int, str], worst: Mapping[str, int]) -> list[RankDelay]:
    """Return a row per host, most imposed first. ``worst``: rank that stands for each host."""
    host_rows = [
        RankDelay(
            rank=worst[host],
            direct_us=_sum([row.direct_us for row in of_host]),
            knock_on_us=_sum([row.knock_on_us for row in of_host]),
            exposed_us=_sum([row.exposed_us for row in of_host]),
            steps_us=_sum([row.steps_us for row in of_host]),
            last_in=None if (last_in := _sum([row.last_in for row in of_host])) is None else int(last_in),
            causes_us=_causes(of_host),
        )
        for host, of_host in _grouped(rows, hosts).items()
    ]
    return sorted(host_rows, key=lambda row: (-(row.steps_us or 0.0), -(row.direct_us or 0.0), row.rank))


def group_by_host(group: WaitGroup, hosts: Mapping[int, str]) -> WaitGroup:
    """Return the matrix of a group host by host; that of ranks on one host, and one that is so already, as it is."""
    if group.by_host:
        return group
    of = [hosts.get(int(name), UNKNOWN_HOST) for name in group.names]
    names = list(dict.fromkeys(of))
    if len(names) < 2:
        return group
    place = {host: at for at, host in enumerate(names)}
    cells: dict[tuple[int, int], float] = {}
    for origin, victim, waited in zip(group.origins, group.victims, group.waited_us, strict=True):
        key = (place[of[origin]], place[of[victim]])
        cells[key] = cells.get(key, 0.0) + waited
    return msgspec.structs.replace(
        group,
        by_host=True,
        names=names,
        members=[[rank for row in range(len(of)) if of[row] == host for rank in group.members[row]] for host in names],
        origins=[origin for origin, _ in cells],
        victims=[victim for _, victim in cells],
        waited_us=list(cells.values()),
    )


def _grouped(rows: Iterable[Row], hosts: Mapping[int, str]) -> dict[str, list[Row]]:
    by_host: dict[str, list[Row]] = {}
    for row in rows:
        by_host.setdefault(hosts.get(row.rank, UNKNOWN_HOST), []).append(row)
    return by_host


def _causes(rows: Sequence[RankDelay]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for row in rows:
        for cause, us in row.causes_us.items():
            totals[cause] = totals.get(cause, 0.0) + us
    return totals


def _sum(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values else None
