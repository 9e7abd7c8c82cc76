"""Link that carries a collective, and its expected bus bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from rankscope.analysis.links import Link, ToldLink, link_of_gpu
from rankscope.analysis.operations import operation
from rankscope.runs.records import RankInfo


class Fabric(msgspec.Struct, frozen=True):
    """Hosts and GPUs of the ranks, and the links named by the user."""

    hosts: Mapping[int, str] = msgspec.field(default_factory=dict)
    gpu_names: Mapping[int, str] = msgspec.field(default_factory=dict)
    gpus_on_host: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Number of GPUs known to be on each host; a host may have more."""
    told: Sequence[ToldLink] = ()


def run_fabric(infos: Mapping[int, RankInfo], told: Sequence[ToldLink]) -> Fabric:
    """Return the fabric of a run. A host name with two ranks of the same local rank is left out: several machines have it."""
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
    """Expected bandwidth of a collective's link. Without a figure, ``unknown`` has the reason."""

    link: str | None = None
    source: Literal["gpu_name", "told"] | None = None
    bus_gb_s: float | None = None
    unknown: str | None = None


_HOSTS_UNKNOWN: Final = "the hosts of its ranks are not known"
_BEYOND_CARDS: Final = "which way its PCIe cards have to each other is not known"
_ON_CPU: Final = "CPU threads move it through the host's memory"


def expect(op: str, ranks: Sequence[int], fabric: Fabric, *, on_cpu: bool) -> Expectation:
    """Return the expected bus bandwidth of ``op`` over ``ranks``: the bare rate of the narrowest link that all its data crosses.

    ``on_cpu``: CPU threads carry it out, as gloo's, so links between GPUs do not apply.
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
    """Return the expectation where only one named link is known. By naming it, the user states that it carries everything."""
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
    """Return the rate of ``link`` among ``ranks`` GPUs of a host with at least ``gpus``; ``None`` if it depends on the wiring."""
    if link.pair_gb_s is not None:
        return min(link.gb_s, (ranks - 1) * link.pair_gb_s)
    return link.gb_s if ranks >= link.mesh or gpus > link.mesh else None


def _between(op: str, ranks: Sequence[int], fabric: Fabric, together: int, *, on_cpu: bool) -> Expectation:
    """Return the expectation between hosts; ``together``: the largest number of the group's ranks on one host.

    The ranks of a host share its ports equally. No rank's share is below one port, because the other ranks may be idle. In a
    ring, data that enters a host passes through all its ranks of the group, so their shares add up. In an all-to-all, each rank
    has only its own share, for the data to other hosts.
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
    """Yield the known rates inside the hosts that have several of the ranks."""
    for host in sorted({fabric.hosts[rank] for rank in ranks}):
        here = [rank for rank in ranks if fabric.hosts[rank] == host]
        inside = _inside(here, fabric).bus_gb_s if len(here) > 1 else None
        if inside is not None:
            yield inside
