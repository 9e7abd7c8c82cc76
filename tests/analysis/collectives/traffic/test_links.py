"""Rates of links, the link that carries a collective, and the reason where it is unknown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.collectives.traffic.links import (
    BY_NAME,
    GPU_LINKS,
    LINKS,
    ExpectedBandwidth,
    Fabric,
    LinkKind,
    expect,
    link_of_gpu,
    parse_link,
    run_fabric,
)
from rankscope.runs.records import RankInfo

ROOT = Path(__file__).resolve().parents[4]


def fabric(hosts: int, ranks_per_host: int, *links: str, gpu: str | None = None) -> Fabric:
    places = {rank: f"n{rank // ranks_per_host}" for rank in range(hosts * ranks_per_host)}
    return Fabric(
        places,
        {} if gpu is None else dict.fromkeys(places, gpu),
        {f"n{host}": ranks_per_host for host in range(hosts)},
        [parse_link(text) for text in links],
    )


def gb_s(op: str, ranks: list[int], where: Fabric, *, on_cpu: bool = False) -> float | None:
    return expect(op, ranks, where, on_cpu=on_cpu).bus_gb_s


@pytest.mark.parametrize(
    ("gpu", "link"),
    [
        ("NVIDIA H100 80GB HBM3", "nvlink4"),
        ("NVIDIA H200", "nvlink4"),
        ("NVIDIA H800", "nvlink4-h800"),
        ("NVIDIA A100-SXM4-80GB", "nvlink3"),
        ("Tesla V100-SXM2-32GB", "nvlink2"),
        ("NVIDIA H20", "nvlink4"),
        ("Tesla P100-SXM2-16GB", "nvlink1"),
        ("Tesla V100-SXM3-32GB", "nvlink2-switch"),
        ("NVIDIA A800-SXM4-80GB", "nvlink3-a800"),
        ("NVIDIA B200", "nvlink5"),
        ("NVIDIA B300 SXM6 AC", "nvlink5"),
        ("AMD Instinct MI300X", "xgmi-mi300x"),
        ("AMD Instinct MI300X VF", "xgmi-mi300x"),
        ("AMD Instinct MI355X", "xgmi-mi350x"),
        ("Tesla V100S-PCIE-32GB", "pcie3"),
        ("Tesla T4", "pcie3"),
        ("NVIDIA L40S", "pcie4"),
        ("NVIDIA A10G", "pcie4"),
        ("NVIDIA GeForce RTX 4090", "pcie4"),
    ],
)
def test_gpu_name_determines_the_link(gpu: str, link: str) -> None:
    result = link_of_gpu(gpu)
    assert result is not None
    assert result.name == link


@pytest.mark.parametrize(
    "gpu",
    [
        "NVIDIA A100 80GB PCIe",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA GB200",
        "NVIDIA GH200 480GB",
        "NVIDIA H200 NVL",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A40",
        "NVIDIA RTX A6000",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA B300 SXM6 AC MIG 1g.34gb",
        "AMD Instinct MI308X",
        "NVIDIA A100-PG509-200",
        "",
        "H1000",
    ],
)
def test_gpu_name_without_an_entry_has_no_link(gpu: str) -> None:
    assert link_of_gpu(gpu) is None
    link = expect("all_reduce", range(8), fabric(1, 8, gpu=gpu), on_cpu=False)
    assert (link.link, link.bus_gb_s) == (None, None)
    assert link.unknown is not None
    assert "no entry for" in link.unknown


def test_gpu_names_map_to_links_inside_a_host_and_links_have_sources() -> None:
    scopes = {link.name: link.scope for link in LINKS}
    assert len(scopes) == len(LINKS)
    assert {scopes[link] for _, link in GPU_LINKS} == {"host"}
    assert all(link.source.startswith("https://") and link.gb_s > 0 for link in LINKS)


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_link_rate_equals_the_product_in_its_description(link: LinkKind) -> None:
    links = re.search(r"(\d+) links of ([\d.]+) GB/s", link.description)
    lanes = re.search(r"x16, (\d+) GT/s, 128b/130b", link.description)
    bits = re.search(r"([\d.]+) Gb/s", link.description)
    if links:
        assert link.gb_s == int(links[1]) * float(links[2])
    elif lanes:
        assert link.gb_s == pytest.approx(16 * int(lanes[1]) * 128 / 130 / 8, abs=0.005)
    elif bits:
        assert link.gb_s == pytest.approx(float(bits[1]) / 8, rel=0.002)
    else:
        # The link rate is the same with and without a switch.
        assert link.gb_s == BY_NAME[link.name.removesuffix("-switch")].gb_s
    assert link.pair_gb_s is None or (links is not None and link.pair_gb_s == float(links[2]))


def test_documented_link_table_equals_the_code() -> None:
    page = (ROOT / "docs" / "bandwidth.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\w[\w ]*) \| ([\d.]+) \| (.+?) \| \[[^\]]+\]\((\S+)\) \|$", page, re.MULTILINE)
    where = {"inside a host": "host", "between hosts": "network"}
    result = [LinkKind(name, where[place], float(rate), what, source) for name, place, rate, what, source in rows]  # type: ignore[arg-type]
    assert result == [LinkKind(link.name, link.scope, link.gb_s, link.description, link.source) for link in LINKS]


def test_stated_link_outweighs_the_gpu_name() -> None:
    assert gb_s("all_reduce", [0, 1], fabric(1, 2, gpu="NVIDIA H100 PCIe")) is None
    link = expect("all_reduce", [0, 1], fabric(1, 2, "pcie5", gpu="NVIDIA H100 80GB HBM3"), on_cpu=False)
    assert link == ExpectedBandwidth("pcie5", "told", 63.02)


def test_topology_of_pcie_cards_is_not_guessed() -> None:
    link = expect("all_reduce", range(4), fabric(1, 4, gpu="NVIDIA L40S"), on_cpu=False)
    assert (link.link, link.source, link.bus_gb_s) == ("pcie4", "gpu_name", None)
    assert link.unknown == "which way its PCIe cards have to each other is not known"
    # Nor does it limit the expected rate of the network
    assert gb_s("all_reduce", list(range(8)), fabric(2, 4, "ib-ndr:4", gpu="NVIDIA L40S")) == 200
    # A user who knows that every card has its own way names the link
    assert gb_s("all_reduce", list(range(4)), fabric(1, 4, "pcie4", gpu="NVIDIA L40S")) == 31.51


@pytest.mark.parametrize(
    ("gpu", "ranks", "on_host", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 8, 8, 300.0),
        ("NVIDIA A100-SXM4-80GB", 2, 8, 300.0),  # eight GPUs: there is a switch
        ("NVIDIA A100-SXM4-80GB", 4, 4, 300.0),
        ("NVIDIA A100-SXM4-80GB", 2, 4, None),  # two of four may share a third of their links
        ("Tesla V100-SXM2-32GB", 8, 8, 150.0),
        ("Tesla V100-SXM2-32GB", 2, 8, None),
        ("Tesla V100-SXM3-32GB", 2, 8, 150.0),
        ("AMD Instinct MI300X", 8, 8, 448.0),
        ("AMD Instinct MI300X", 2, 8, 64.0),  # every two of a full mesh have one link
        ("AMD Instinct MI355X", 8, 8, 535.5),
    ],
)
def test_partial_board_without_a_switch_has_part_of_its_links(gpu: str, ranks: int, on_host: int, expected: float | None) -> None:
    link = expect("all_reduce", range(ranks), fabric(1, on_host, gpu=gpu), on_cpu=False)
    assert link.bus_gb_s == expected
    assert (link.unknown is None) == (expected is not None)


def test_bandwidth_between_hosts_is_unknown_until_a_network_is_stated() -> None:
    link = expect("all_reduce", range(16), fabric(2, 8, gpu="NVIDIA H100 80GB HBM3"), on_cpu=False)
    assert (link.bus_gb_s, link.unknown) == (None, "it crosses hosts, over a network that --link does not name")


def test_ports_of_a_host_add_up_for_its_participating_ranks() -> None:
    where = fabric(2, 8, "ib-ndr:8", gpu="NVIDIA H100 80GB HBM3")
    assert gb_s("all_reduce", list(range(16)), where) == 400
    assert gb_s("all_reduce", [0, 8], where) == 50
    assert gb_s("all_reduce", [0, 1, 8, 9], where) == 100
    # Ports beyond the rate of NVLink inside the hosts do not help.
    assert gb_s("all_reduce", list(range(16)), fabric(2, 8, "ib-xdr:8", gpu="NVIDIA H100 80GB HBM3")) == 450
    # A lone port may be quiet except for this group.
    assert gb_s("all_reduce", [0, 8], fabric(2, 8, "eth-100:1")) == 12.5


def test_all_to_all_between_hosts_uses_all_ports_and_a_send_one_port() -> None:
    where = fabric(2, 8, "ib-ndr:8")
    # 15 parts leave each rank, 8 of them the host, at 50 GB/s.
    assert gb_s("all_to_all", list(range(16)), where) == pytest.approx(50 * 15 / 8)
    assert gb_s("send", [0, 8], where) == 50
    assert gb_s("gather", list(range(16)), where) == 50


def test_cpu_threads_do_not_use_gpu_links() -> None:
    where = fabric(2, 2, "nvlink4", "eth-25", gpu="NVIDIA H100 80GB HBM3")
    assert gb_s("all_reduce", [0, 1], where, on_cpu=True) is None
    assert gb_s("all_reduce", [0, 2], where, on_cpu=True) == 3.125


def test_unknown_hosts_get_a_figure_only_from_a_single_stated_link() -> None:
    collected = [parse_link("nvlink2"), parse_link("ib-edr")]
    assert expect("all_reduce", [0, 1], Fabric(stated_links=collected[:1]), on_cpu=False) == ExpectedBandwidth(
        "nvlink2", "told", 150
    )
    for unclear in (Fabric(stated_links=collected), Fabric(), Fabric(stated_links=[parse_link("ib-edr:4")])):
        link = expect("all_reduce", [0, 1], unclear, on_cpu=False)
        assert link.bus_gb_s is None
        assert link.unknown is not None
        assert "hosts" in link.unknown


@given(st.text(max_size=20))
def test_unknown_link_is_a_one_line_error(text: str) -> None:
    name = text.strip().lower()
    if name in BY_NAME:
        assert parse_link(text).link.name == name
    elif ":" not in text:
        with pytest.raises(ValueError, match=r"^.* is no link that is known; there are nvlink1, .*$"):
            parse_link(text)


@pytest.mark.parametrize(
    "text", ["ib-ndr:0", "ib-ndr:-1", "ib-ndr:", "ib-ndr:two", "ib-ndr:8:8", "ib-ndr:99999", "nvlink4:8", "nvlink9", ""]
)
def test_invalid_link_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"link|ports|known"):
        parse_link(text)


@given(
    st.sampled_from(["all_reduce", "all_to_all", "send", "broadcast", "gather"]),
    st.integers(1, 4),
    st.integers(1, 8),
    st.lists(st.sampled_from([link.name for link in LINKS]), max_size=2),
    st.booleans(),
)
def test_expected_bandwidth_is_either_a_figure_or_a_reason(
    op: str, hosts: int, ranks_per_host: int, links: list[str], on_cpu: bool
) -> None:
    ranks = list(range(hosts * ranks_per_host))
    result = expect(op, ranks, fabric(hosts, ranks_per_host, *links, gpu="NVIDIA H800"), on_cpu=on_cpu)
    assert (result.bus_gb_s is None) != (result.unknown is None)
    assert result.bus_gb_s is None or result.bus_gb_s > 0


def test_machines_that_share_a_host_name_are_not_one_host() -> None:
    def infos(local_ranks: list[int | None]) -> dict[int, RankInfo]:
        return {
            rank: RankInfo(
                rank=rank,
                world_size=2,
                host="localhost",
                pid=1,
                local_rank=local_rank,
                device_kind="cuda",
                gpu_name="NVIDIA H800",
                start_unix_ns=1,
            )
            for rank, local_rank in enumerate(local_ranks)
        }

    assert gb_s("all_reduce", [0, 1], run_fabric(infos([0, 0]), ())) is None
    assert run_fabric(infos([0, 1]), ()).hosts == {0: "localhost", 1: "localhost"}
    assert run_fabric(infos([None, None]), ()).gpus_on_host == {"localhost": 2}
