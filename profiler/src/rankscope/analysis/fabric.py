"""Which link carries a collective, and what bus bandwidth it should give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from rankscope.analysis.links import Link, ToldLink, link_of_gpu
from rankscope.analysis.operations import operation
from rankscope.runs.records import RankInfo


class Fabric(msgspec.Struct, frozen=True):
    """Where the ranks are, what they run on, and what was said of their links."""

    hosts: Mapping[int, str] = msgspec.field(default_factory=dict)
    gpu_names: Mapping[int, str] = msgspec.field(default_factory=dict)
    gpus_on_host: Mapping[str, int] = msgspec.field(default_factory=dict)
    """GPUs that are known to be on a host; it may have more."""
    told: Sequence[ToldLink] = ()


def run_fabric(infos: Mapping[int, RankInfo], told: Sequence[ToldLink]) -> Fabric:
    """Of the ranks of a run. Where two ranks of one host's name have the same place on it, several machines have that name."""
    accelerated = {rank: info for rank, info in infos.items() if info.device_kind != "cpu"}
    places = Counter((info.host, info.local_rank) for info in infos.values() if info.local_rank is not None)
    shared = {host for (host, _), count in places.items() if count > 1}
    return Fabric(
        hosts={rank: info.host for rank, info in infos.items() if info.host not in shared},
        gpu_names={rank: info.gpu_name for rank, info in accelerated.items() if info.gpu_name is not None},
        gpus_on_host=Counter(info.host for info in accelerated.values()),
        told=told,
    )


class Expectation(msgspec.Struct, frozen=True):
    """What a collective's link should give. Without a figure, ``unknown`` says why."""

    link: str | None = None
    source: Literal["gpu_name", "told"] | None = None
    bus_gb_s: float | None = None
    unknown: str | None = None


_HOSTS_UNKNOWN: Final = "the hosts of its ranks are not known"
_BEYOND_CARDS: Final = "which way its PCIe cards have to each other is not known"
_ON_CPU: Final = "CPU threads move it through the host's memory"


def expect(op: str, ranks: Sequence[int], fabric: Fabric, *, on_cpu: bool) -> Expectation:
    """Bus bandwidth that ``op`` over ``ranks`` should reach: the bare rate of the narrowest link that all its data must cross.

    ``on_cpu``: CPU threads do it, as gloo's, so links between GPUs say nothing about it.
    """
    per_host = Counter(fabric.hosts.get(rank) for rank in ranks)
    if None in per_host:
        if len(fabric.told) != 1:
            return Expectation(unknown=_HOSTS_UNKNOWN)
        told = fabric.told[0]
        return _of_told_alone(told, on_cpu=on_cpu)
    if len(per_host) == 1:
        return Expectation(unknown=_ON_CPU) if on_cpu else _inside(ranks, fabric)
    return _between(op, ranks, fabric, max(per_host.values()), on_cpu=on_cpu)


def _of_told_alone(told: ToldLink, *, on_cpu: bool) -> Expectation:
    """Nothing is known but one link: the person who named it says that it carries everything."""
    if told.link.scope == "host" and on_cpu:
        return Expectation(unknown=_ON_CPU)
    if told.ports > 1:
        return Expectation(told.link.name, "told", unknown=f"{_HOSTS_UNKNOWN}, so neither is the share of each in the ports")
    return Expectation(told.link.name, "told", told.link.gb_s)


def _inside(ranks: Sequence[int], fabric: Fabric) -> Expectation:
    for told in fabric.told:
        if told.link.scope == "host":
            return Expectation(told.link.name, "told", told.link.gb_s)
    names = {fabric.gpu_names.get(rank) for rank in ranks}
    if None in names:
        return Expectation(unknown="the names of its GPUs are not known")
    links = {link_of_gpu(name) for name in names if name is not None}
    link = links.pop() if len(links) == 1 else None
    if link is None:
        return Expectation(unknown=f"the table of links does not tell that of {', '.join(sorted(map(str, names)))}")
    if link.to_host:
        return Expectation(link.name, "gpu_name", unknown=_BEYOND_CARDS)
    rate = _of_mesh(link, len(ranks), fabric.gpus_on_host.get(fabric.hosts[ranks[0]], 0))
    if rate is None:
        why = f"how {len(ranks)} GPUs are wired on a board of {link.mesh} is not known"
        return Expectation(link.name, "gpu_name", unknown=why)
    return Expectation(link.name, "gpu_name", rate)


def _of_mesh(link: Link, ranks: int, gpus: int) -> float | None:
    """Rate of ``link`` among ``ranks`` GPUs of a host with at least ``gpus``; ``None`` where their wiring decides."""
    if link.pair_gb_s is not None:
        return min(link.gb_s, (ranks - 1) * link.pair_gb_s)
    return link.gb_s if ranks >= link.mesh or gpus > link.mesh else None


def _between(op: str, ranks: Sequence[int], fabric: Fabric, together: int, *, on_cpu: bool) -> Expectation:
    """Between hosts; ``together``: the most ranks of the group on one host.

    A host's ports are shared by its ranks in equal parts, and no part is smaller than a port, for the others may be quiet. In a
    ring what enters a host goes through all its ranks of the group, so their parts add up; where everybody sends to everybody
    each rank has its own part, for what goes to other hosts.
    """
    told = next((one for one in fabric.told if one.link.scope == "network"), None)
    if told is None:
        return Expectation(unknown="it goes between hosts, over a network that nobody named")
    crowd = max(Counter(fabric.hosts.values()).values())
    part = told.link.gb_s * max(1.0, told.ports * together / crowd)
    if op == "all_to_all":
        rate = part / together * (len(ranks) - 1) / (len(ranks) - together)
    elif operation(op).rule == "pair" or op in ("gather", "scatter"):
        rate = told.link.gb_s
    else:
        rate = min([part, *([] if on_cpu else _inside_each(ranks, fabric))])
    return Expectation(told.link.name, "told", rate)


def _inside_each(ranks: Sequence[int], fabric: Fabric) -> Iterator[float]:
    """What is known of the links inside the hosts that have several of the ranks."""
    for host in sorted({fabric.hosts[rank] for rank in ranks}):
        here = [rank for rank in ranks if fabric.hosts[rank] == host]
        inside = _inside(here, fabric).bus_gb_s if len(here) > 1 else None
        if inside is not None:
            yield inside
