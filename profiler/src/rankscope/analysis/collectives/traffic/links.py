"""Table of link rates with their sources, of the links of GPUs, and the link that carries a collective. To add a link, add a row.

Rates are those of the bare link in one direction, in units of 1e9 bytes per second, per GPU (inside a host) or per port (between
hosts). They are after line encoding and before protocol overhead; long messages reach 70 to 95 % of them. Makers state the rates
of NVLink and Infinity Fabric for both directions together, which are halved here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from rankscope.analysis.operations import operation
from rankscope.runs.records import RankInfo

Scope = Literal["host", "network"]

_NVLINK: Final = "https://www.nvidia.com/en-us/data-center/nvlink/"
_V100: Final = "https://images.nvidia.com/content/volta-architecture/pdf/volta-architecture-whitepaper.pdf"
_P100: Final = "https://images.nvidia.com/content/pdf/tesla/whitepaper/pascal-architecture-whitepaper.pdf"
_A800: Final = (
    "https://tweakers.net/nieuws/203182/nvidia-introduceert-a800-gpu-voor-china-die-niet-onder-exportrestricties-vs-valt.html"
)
_H800: Final = "https://arxiv.org/abs/2505.09343"
_MI300X: Final = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
_MI350X: Final = "https://www.amd.com/en/products/accelerators/instinct/mi350/mi350x.html"
_PCIE: Final = "https://pcisig.com/specifications"
_INFINIBAND: Final = "https://www.infinibandta.org/infiniband-roadmap/"
_ETHERNET: Final = "https://www.ieee802.org/3/"


class LinkKind(msgspec.Struct, frozen=True):
    """One kind of link.

    ``mesh``: boards with up to this many GPUs have no switch, so a group of fewer GPUs has only a part of their links; 0 where
    there is always a switch. ``pair_gb_s``: rate between every two GPUs of a uniform mesh. ``to_host``: the link leads to the
    host. The name of the GPU does not show the path from there to the other GPUs: the one uplink of a switch, another socket or
    the host's memory.
    """

    name: str
    scope: Scope
    gb_s: float
    description: str
    source: str
    mesh: int = 0
    pair_gb_s: float | None = None
    to_host: bool = False


LINKS: Final[tuple[LinkKind, ...]] = (
    LinkKind("nvlink1", "host", 80.0, "NVLink 1, 4 links of 20 GB/s (P100 SXM2)", _P100, mesh=8),
    LinkKind("nvlink2", "host", 150.0, "NVLink 2, 6 links of 25 GB/s (V100 SXM2)", _V100, mesh=8),
    LinkKind("nvlink2-switch", "host", 150.0, "NVLink 2 with NVSwitch (V100 SXM3)", _V100),
    LinkKind("nvlink3", "host", 300.0, "NVLink 3, 12 links of 25 GB/s (A100 SXM4)", _NVLINK, mesh=4),
    LinkKind("nvlink3-a800", "host", 200.0, "NVLink 3, 8 links of 25 GB/s (A800 SXM4)", _A800, mesh=4),
    LinkKind("nvlink4", "host", 450.0, "NVLink 4, 18 links of 25 GB/s (H100, H200 and H20 SXM5)", _NVLINK, mesh=4),
    LinkKind("nvlink4-h800", "host", 200.0, "NVLink 4, 8 links of 25 GB/s (H800 SXM5)", _H800, mesh=4),
    LinkKind("nvlink5", "host", 900.0, "NVLink 5, 18 links of 50 GB/s (B200, B300)", _NVLINK, mesh=4),
    LinkKind(
        "xgmi-mi300x", "host", 448.0, "Infinity Fabric, 7 links of 64 GB/s (MI300X, MI325X)", _MI300X, mesh=8, pair_gb_s=64.0
    ),
    LinkKind(
        "xgmi-mi350x", "host", 535.5, "Infinity Fabric, 7 links of 76.5 GB/s (MI350X, MI355X)", _MI350X, mesh=8, pair_gb_s=76.5
    ),
    LinkKind("pcie3", "host", 15.75, "PCIe 3.0 x16, 8 GT/s, 128b/130b", _PCIE, to_host=True),
    LinkKind("pcie4", "host", 31.51, "PCIe 4.0 x16, 16 GT/s, 128b/130b", _PCIE, to_host=True),
    LinkKind("pcie5", "host", 63.02, "PCIe 5.0 x16, 32 GT/s, 128b/130b", _PCIE, to_host=True),
    LinkKind("ib-fdr", "network", 6.82, "InfiniBand FDR 4x, 54.5 Gb/s of data", _INFINIBAND),
    LinkKind("ib-edr", "network", 12.5, "InfiniBand EDR 4x, 100 Gb/s", _INFINIBAND),
    LinkKind("ib-hdr", "network", 25.0, "InfiniBand HDR 4x, 200 Gb/s", _INFINIBAND),
    LinkKind("ib-ndr", "network", 50.0, "InfiniBand NDR 4x, 400 Gb/s", _INFINIBAND),
    LinkKind("ib-xdr", "network", 100.0, "InfiniBand XDR 4x, 800 Gb/s", _INFINIBAND),
    *(
        LinkKind(f"eth-{rate}", "network", rate / 8, f"Ethernet, {rate} Gb/s", _ETHERNET)
        for rate in (1, 10, 25, 40, 50, 100, 200, 400, 800)
    ),
)
BY_NAME: Final[dict[str, LinkKind]] = {link.name: link for link in LINKS}

GPU_LINKS: Final[tuple[tuple[str, str], ...]] = (
    # (case-insensitive pattern of the driver's whole GPU name, link). Left out as unknown: cards that may have a bridge (A100 and
    # H100 PCIe, H100 NVL, A40, RTX A6000), GPUs whose NVLink reaches other hosts (GB200), and parts of GPUs (MIG, virtual ones),
    # which cannot reach each other over NVLink.
    (r"(NVIDIA |Tesla )?P100-SXM2-\d+GB", "nvlink1"),
    (r"(NVIDIA |Tesla )?V100-SXM2-\d+GB", "nvlink2"),
    (r"(NVIDIA |Tesla )?V100-SXM3-\d+GB", "nvlink2-switch"),
    (r"(NVIDIA )?A100-SXM4?-[48]0GB", "nvlink3"),
    (r"(NVIDIA )?A800-SXM4?-80GB", "nvlink3-a800"),
    (r"(NVIDIA )?H100 80GB HBM3", "nvlink4"),
    (r"(NVIDIA )?H200", "nvlink4"),
    (r"(NVIDIA )?H20(-3e)?", "nvlink4"),
    (r"(NVIDIA )?H800", "nvlink4-h800"),
    (r"(NVIDIA )?(B200|B300( SXM6 AC)?)", "nvlink5"),
    (r"(AMD Instinct )?MI3(00|25)X( VF| HF)?", "xgmi-mi300x"),
    (r"(AMD Instinct )?MI35[05]X( VF)?", "xgmi-mi350x"),
    (r"(NVIDIA |Tesla )?(T4|V100S?-PCIE-\d+GB)", "pcie3"),
    (r"(NVIDIA )?(A10|A10G|L4|L40|L40S|GeForce RTX 4090)", "pcie4"),
)


class StatedLink(msgspec.Struct, frozen=True):
    """Link that the user named."""

    link: LinkKind
    ports: int = 1
    """Number of ports of each host, for networks."""


def parse_link(text: str) -> StatedLink:
    """Parse ``NAME`` or ``NAME:PORTS``. Raises ``ValueError`` whose message states the valid values."""
    name, colon, count = text.partition(":")
    link = BY_NAME.get(name.strip().lower())
    if link is None:
        raise ValueError(f"{name!r} is no link that is known; there are {', '.join(BY_NAME)}")
    if not colon:
        return StatedLink(link)
    if link.scope != "network":
        raise ValueError(f"{text!r}: only networks have ports; {link.name} is inside a host")
    if not count.isascii() or not count.isdigit() or not 1 <= len(count) <= 4 or int(count) == 0:
        raise ValueError(f"{text!r}: the number of ports of each host is a whole number from 1 to 9999, as in {link.name}:8")
    return StatedLink(link, int(count))


def link_of_gpu(name: str) -> LinkKind | None:
    """Return the link between GPUs of this name; ``None`` where the name does not determine it."""
    for pattern, link in GPU_LINKS:
        if re.fullmatch(pattern, name.strip(), re.IGNORECASE):
            return BY_NAME[link]
    return None


class Fabric(msgspec.Struct, frozen=True):
    """Hosts and GPUs of the ranks, and the links named by the user."""

    hosts: Mapping[int, str] = msgspec.field(default_factory=dict)
    gpu_names: Mapping[int, str] = msgspec.field(default_factory=dict)
    gpus_on_host: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Number of GPUs known to be on each host; a host may have more."""
    stated_links: Sequence[StatedLink] = ()


def run_fabric(infos: Mapping[int, RankInfo], stated_links: Sequence[StatedLink]) -> Fabric:
    """Return the fabric of a run. A host name with two ranks of the same local rank is left out: several machines have it."""
    accelerated = {rank: info for rank, info in infos.items() if info.device_kind != "cpu"}
    places = Counter((info.host, info.local_rank) for info in infos.values() if info.local_rank is not None)
    shared = {host for (host, _), count in places.items() if count > 1}
    return Fabric(
        hosts={rank: info.host for rank, info in infos.items() if info.host not in shared},
        gpu_names={rank: info.gpu_name for rank, info in accelerated.items() if info.gpu_name is not None},
        gpus_on_host=Counter(info.host for info in accelerated.values()),
        stated_links=stated_links,
    )


class ExpectedBandwidth(msgspec.Struct, frozen=True):
    """Expected bandwidth of a collective's link. Without a figure, ``unknown`` has the reason."""

    link: str | None = None
    source: Literal["gpu_name", "told"] | None = None
    bus_gb_s: float | None = None
    unknown: str | None = None


_HOSTS_UNKNOWN: Final = "the hosts of its ranks are not known"
_BEYOND_CARDS: Final = "which way its PCIe cards have to each other is not known"
_ON_CPU: Final = "CPU threads move it through the host's memory"


def expect(op: str, ranks: Sequence[int], fabric: Fabric, *, on_cpu: bool) -> ExpectedBandwidth:
    """Return the expected bus bandwidth of ``op`` over ``ranks``: the bare rate of the narrowest link that all its data crosses.

    ``on_cpu``: CPU threads carry it out, as gloo's, so links between GPUs do not apply.
    """
    per_host = Counter(fabric.hosts.get(rank) for rank in ranks)
    if None in per_host:
        if len(fabric.stated_links) != 1:
            return ExpectedBandwidth(unknown=_HOSTS_UNKNOWN)
        stated_link = fabric.stated_links[0]
        return _of_stated_alone(stated_link, on_cpu=on_cpu)
    if len(per_host) == 1:
        return ExpectedBandwidth(unknown=_ON_CPU) if on_cpu else _inside(ranks, fabric)
    return _between(op, ranks, fabric, max(per_host.values()), on_cpu=on_cpu)


def _of_stated_alone(stated_link: StatedLink, *, on_cpu: bool) -> ExpectedBandwidth:
    """Return the expectation where only one named link is known. By naming it, the user states that it carries everything."""
    if stated_link.link.scope == "host" and on_cpu:
        return ExpectedBandwidth(unknown=_ON_CPU)
    if stated_link.ports > 1:
        return ExpectedBandwidth(
            stated_link.link.name, "told", unknown=f"{_HOSTS_UNKNOWN}, so neither is the share of each in the ports"
        )
    return ExpectedBandwidth(stated_link.link.name, "told", stated_link.link.gb_s)


def _inside(ranks: Sequence[int], fabric: Fabric) -> ExpectedBandwidth:
    for stated_link in fabric.stated_links:
        if stated_link.link.scope == "host":
            return ExpectedBandwidth(stated_link.link.name, "told", stated_link.link.gb_s)
    names = {fabric.gpu_names.get(rank) for rank in ranks}
    if None in names:
        return ExpectedBandwidth(unknown="the names of its GPUs are not known")
    links = {link_of_gpu(name) for name in names if name is not None}
    link = links.pop() if len(links) == 1 else None
    if link is None:
        return ExpectedBandwidth(unknown=f"the table of links has no entry for {', '.join(sorted(map(str, names)))}")
    if link.to_host:
        return ExpectedBandwidth(link.name, "gpu_name", unknown=_BEYOND_CARDS)
    rate = _of_mesh(link, len(ranks), fabric.gpus_on_host.get(fabric.hosts[ranks[0]], 0))
    if rate is None:
        why = f"how {len(ranks)} GPUs are wired on a board of {link.mesh} is not known"
        return ExpectedBandwidth(link.name, "gpu_name", unknown=why)
    return ExpectedBandwidth(link.name, "gpu_name", rate)


def _of_mesh(link: LinkKind, ranks: int, gpus: int) -> float | None:
    """Return the rate of ``link`` among ``ranks`` GPUs of a host with at least ``gpus``; ``None`` if it depends on the wiring."""
    if link.pair_gb_s is not None:
        return min(link.gb_s, (ranks - 1) * link.pair_gb_s)
    return link.gb_s if ranks >= link.mesh or gpus > link.mesh else None


def _between(op: str, ranks: Sequence[int], fabric: Fabric, ranks_on_host: int, *, on_cpu: bool) -> ExpectedBandwidth:
    """Return the expectation between hosts; ``ranks_on_host``: the largest number of the group's ranks on one host.

    The ranks of a host share its ports equally. No rank's share is below one port, because the other ranks may be idle. In a
    ring, data that enters a host passes through all its ranks of the group, so their shares add up. In an all-to-all, each rank
    has only its own share, for the data to other hosts.
    """
    stated_link = next((candidate for candidate in fabric.stated_links if candidate.link.scope == "network"), None)
    if stated_link is None:
        return ExpectedBandwidth(unknown="it crosses hosts, over a network that --link does not name")
    crowd = max(Counter(fabric.hosts.values()).values())
    part = stated_link.link.gb_s * max(1.0, stated_link.ports * ranks_on_host / crowd)
    if op == "all_to_all":
        rate = part / ranks_on_host * (len(ranks) - 1) / (len(ranks) - ranks_on_host)
    elif operation(op).rule == "pair" or op in ("gather", "scatter"):
        rate = stated_link.link.gb_s
    else:
        rate = min([part, *([] if on_cpu else _inside_each(ranks, fabric))])
    return ExpectedBandwidth(stated_link.link.name, "told", rate)


def _inside_each(ranks: Sequence[int], fabric: Fabric) -> Iterator[float]:
    """Yield the known rates inside the hosts that have several of the ranks."""
    for host in sorted({fabric.hosts[rank] for rank in ranks}):
        ranks_on_host = [rank for rank in ranks if fabric.hosts[rank] == host]
        inside = _inside(ranks_on_host, fabric).bus_gb_s if len(ranks_on_host) > 1 else None
        if inside is not None:
            yield inside
