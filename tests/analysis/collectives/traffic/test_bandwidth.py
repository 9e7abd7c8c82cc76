"""Planted bandwidths are recovered and compared with the rates of the links."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.collectives_by_hand import ByRank, judged, numbered, record

from rankscope.analysis.collectives.traffic.bandwidth import bandwidths, directed_rows, samples, size_bucket
from rankscope.analysis.collectives.traffic.links import Fabric, parse_link
from rankscope.analysis.collectives.windows import reduce_file
from rankscope.analysis.engine import analyze
from rankscope.analysis.operations import OPERATIONS, bus_factor
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.collectives import CollectiveBandwidth
from rankscope.analysis.trace.columns import read_trace

H100 = "NVIDIA H100 80GB HBM3"
ALL_WAIT = sorted(op for op, row in OPERATIONS.items() if row.rule == "everybody" and row.factor is not None)


def rows_of(by_rank: ByRank, fabric: Fabric | None = None) -> list[CollectiveBandwidth]:
    matching, waits = judged(by_rank)
    return bandwidths(samples(matching, waits), fabric or Fabric())


def one_host(ranks: int, gpu: str = H100) -> Fabric:
    return Fabric(dict.fromkeys(range(ranks), "n0"), dict.fromkeys(range(ranks), gpu), {"n0": ranks})


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather_base", 0.75),
        ("reduce_scatter_base", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("gather", 0.75),
        ("send", 1.0),
    ],
)
def test_bus_factors_of_four_ranks_equal_those_of_nccl_tests(op: str, factor: float) -> None:
    assert bus_factor(op, 4) == factor


def test_operations_without_a_meaningful_size_have_no_bus_bandwidth() -> None:
    assert [bus_factor(op, 4) for op in ("barrier", "all_to_allv", "dispatch", "unheard_of")] == [None] * 4
    assert bus_factor("all_reduce", 1) is None


@given(
    st.sampled_from(ALL_WAIT),
    st.integers(2, 9),
    st.integers(1 << 20, 1 << 32),
    st.floats(1.0, 900.0),
    st.lists(st.integers(0, 10_000), min_size=9, max_size=9),
)
def test_planted_bus_bandwidth_is_recovered_despite_waiting(op: str, ranks: int, size: int, bus: float, waits: list[int]) -> None:
    factor = bus_factor(op, ranks)
    assert factor is not None
    transfer = size * factor / bus / 1000
    last = max(waits[:ranks])
    by_rank = {rank: [record(waits[rank], last + transfer, op=op, bytes=size)] for rank in range(ranks)}
    (row,) = rows_of(by_rank, one_host(ranks))
    assert row.bus_gb_s == pytest.approx(bus, rel=1e-3)
    assert row.algorithm_gb_s == pytest.approx(bus / factor, rel=1e-3)
    assert row.wait_us == pytest.approx(sum(last - wait for wait in waits[:ranks]) / ranks, abs=0.01)
    assert (row.group_size, row.bytes, row.count, row.matched) == (ranks, size, 1, 1)


@given(st.integers(1 << 22, 1 << 30), st.floats(0.5, 60.0), st.integers(0, 50_000), st.integers(0, 50_000))
def test_planted_bandwidth_between_two_ranks_is_recovered(size: int, rate: float, send_at: int, receive_at: int) -> None:
    transfer = size / rate / 1000
    end = max(send_at, receive_at) + transfer
    by_rank = {
        0: numbered([record(0, 0.001), record(send_at, end, op="send", peer=1, bytes=size)]),
        1: numbered([record(0, 0.001), record(receive_at, end, op="recv", peer=0, bytes=size)]),
    }
    (row,) = [row for row in rows_of(by_rank) if row.op == "send"]
    assert row.bus_gb_s == row.algorithm_gb_s == pytest.approx(rate, rel=1e-2)


def test_broadcast_is_timed_with_a_late_root_and_reduce_at_its_root() -> None:
    def transfer(op: str, arrivals: tuple[int, int], ends: tuple[int, int]) -> float | None:
        by_rank = {rank: [record(arrivals[rank], ends[rank], op=op, root=0, bytes=8 << 20)] for rank in (0, 1)}
        return rows_of(by_rank)[0].transfer_us

    assert transfer("broadcast", (9000, 0), (13_000, 14_000)) == 5000
    # The root may have sent most of it before the receiver came.
    assert transfer("broadcast", (0, 9000), (13_000, 14_000)) is None
    assert transfer("reduce", (0, 9000), (13_000, 20_000)) == 4000


def test_sizes_between_two_powers_of_two_share_a_row_with_their_spread() -> None:
    times = [100, 200, 300, 400, 1000]
    by_rank = {
        rank: numbered([record(at * 10_000, at * 10_000 + time, bytes=(1 << 20) + at) for at, time in enumerate(times)])
        for rank in (0, 1)
    }
    by_rank[0].append(record(90_000, 90_100, bytes=1 << 21, index=9))
    by_rank[1].append(record(90_000, 90_100, bytes=1 << 21, index=9))
    costly, other = rows_of(by_rank)
    assert (costly.size_bucket_bytes, costly.bytes, costly.count) == (1 << 20, (1 << 20) + 2, 5)
    assert (costly.transfer_p10_us, costly.transfer_us, costly.transfer_p90_us) == (140, 300, 760)
    assert costly.bus_p10_gb_s is not None
    assert costly.bus_gb_s is not None
    assert costly.bus_p90_gb_s is not None
    assert costly.bus_p10_gb_s < costly.bus_gb_s < costly.bus_p90_gb_s
    assert (other.size_bucket_bytes, other.count) == (1 << 21, 1)


@given(st.integers(1, 2**60))
def test_size_lies_in_its_bucket(size: int) -> None:
    bucket = size_bucket(size)
    assert bucket is not None
    assert bucket <= size < 2 * bucket


@given(st.permutations(range(4)))
def test_permuting_ranks_permutes_waits_and_keeps_bandwidths(names: list[int]) -> None:
    def numbers(order: list[int]) -> tuple[list[Any], set[tuple[int, int, float]]]:
        by_rank = {
            name: numbered(
                [
                    record(at * 100, 1000, bytes=1 << 20, group_ranks=sorted(order)),
                    record(10_000 + at * 2000, 30_000, op="broadcast", root=order[3], bytes=1 << 20),
                ]
            )
            for at, name in enumerate(order)
        }
        matching, waits = judged(by_rank)
        kept = [(row.op, row.transfer_us, row.bus_gb_s, row.wait_us) for row in bandwidths(samples(matching, waits), Fabric())]
        return kept, {(names.index(row.waiter), names.index(row.origin), row.wait_us) for row in directed_rows(waits)}

    plain, pairs = numbers(names)
    again, _ = numbers([0, 1, 2, 3])
    assert plain == again
    assert pairs == {(0, 3, 6000.0), (1, 3, 4000.0), (2, 3, 2000.0)}


def test_trace_of_one_rank_gives_a_lower_bound_of_the_bandwidth() -> None:
    (row,) = rows_of({0: [record(0, 1000, bytes=1 << 20, group_ranks=[0, 1], group_size=2)]})
    assert (row.count, row.matched, row.transfer_us, row.bus_gb_s) == (1, 0, None, None)
    assert row.bus_at_least_gb_s == pytest.approx(1.048576)


def test_collectives_without_a_size_have_times_and_no_bandwidth() -> None:
    (row,) = rows_of({rank: [record(0, 1000, stream=None)] for rank in (0, 1)}, one_host(2))
    assert (row.transfer_us, row.bytes, row.size_bucket_bytes) == (1000, None, None)
    assert (row.algorithm_gb_s, row.bus_gb_s, row.share, row.bound_by) == (None, None, None, None)
    assert (row.expected_gb_s, row.expected_unknown) == (None, "CPU threads move it through the host's memory")


@pytest.mark.parametrize(("size", "bound"), [(1 << 30, "bandwidth"), (1 << 20, "latency")])
def test_small_transfers_are_bound_by_latency(size: int, bound: str) -> None:
    (row,) = rows_of({rank: [record(0, 10_000, bytes=size)] for rank in range(8)}, one_host(8))
    assert (row.link, row.link_source, row.expected_gb_s) == ("nvlink4", "gpu_name", 450)
    assert row.share == pytest.approx(size * 1.75 / 10_000 / 1000 / 450)
    assert row.bound_by == bound


def test_group_name_over_several_links_has_no_expected_bandwidth() -> None:
    fabric = Fabric({0: "a", 1: "a", 2: "a", 3: "b"}, dict.fromkeys(range(4), "Tesla T4"))
    by_rank = {
        rank: [record(0, 1000, bytes=1 << 20, group="tp", group_ranks=[0, 1] if rank < 2 else [2, 3])] for rank in range(4)
    }
    (row,) = rows_of(by_rank, fabric)
    assert (row.expected_gb_s, row.expected_unknown) == (None, "its instances go over different links")


def rows_of_op(analysis: Analysis, op: str) -> list[CollectiveBandwidth]:
    return [row for row in analysis.collectives.by_op if row.op == op]


def test_sizes_of_a_trace_without_metadata_come_from_recorded_shapes(traces: Path) -> None:
    analysis = analyze([traces / "dlrm_8ranks_v100"], links=[parse_link("nvlink2")])
    # 394241, 226960 and 112 floats are in the trace; transfers are the shortest durations: 69, 86 and 20 us.
    by_key = {row.bytes: (row.transfer_us, row.bus_gb_s) for row in rows_of_op(analysis, "all_reduce")}
    assert set(by_key) == {394_241 * 4, 226_960 * 4, 112 * 4}
    for size, (transfer, bus) in by_key.items():
        assert size is not None
        assert transfer is not None
        assert bus == pytest.approx(size / transfer / 1000 * 1.75)
    assert sum(row.transfer_us * row.matched for row in analysis.collectives.by_op if row.transfer_us is not None) == 217
    assert {row.expected_gb_s for row in rows_of_op(analysis, "all_reduce")} == {150}
    assert {row.bound_by for row in analysis.collectives.by_op} == {"latency"}
    assert all(finding.kind != "communication_bound" for finding in analysis.findings)


def test_metadata_gives_sizes_and_a_lone_trace_gives_lower_bounds(traces: Path) -> None:
    rows = rows_of_op(analyze([traces / "ddp_2ranks_nccl_metadata"]), "all_reduce")
    assert {(row.bytes, row.count, row.matched) for row in rows} == {
        (6_637_568 * 4, 9, 0),
        (2_049_000 * 4, 3, 0),
        (2_431_040 * 4, 3, 0),
    }
    # With two ranks the factor is 1: the largest buckets move at least 10 GB/s, and NVLink would give 300.
    assert all(row.bus_at_least_gb_s is not None and 1 < row.bus_at_least_gb_s < 300 for row in rows)
    assert {(row.link, row.expected_gb_s, row.share, row.expected_unknown) for row in rows} == {
        (None, None, None, "the hosts of its ranks are not known")
    }


def test_roots_come_from_the_calls_linked_to_kernels(traces: Path) -> None:
    collectives = reduce_file(read_trace(traces / "resnet_8ranks_mi300/rank-0.json.gz")).collectives
    roots = [row.root for row in collectives if row.op == "broadcast"]
    assert roots == [0] * 6
    assert {row.root for row in collectives if row.op == "all_reduce"} == {None}


scribbles = st.one_of(st.none(), st.integers(-5, 5), st.integers(-(2**80), 2**80))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*OPERATIONS, "unheard_of"]),
            scribbles,
            scribbles,
            scribbles,
            scribbles,
            st.one_of(st.none(), st.lists(st.integers(-2, 3), max_size=4)),
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_figures_are_finite_or_missing_for_any_records(rows: list[tuple[Any, ...]]) -> None:
    by_rank: ByRank = {0: [], 1: []}
    for number, (op, size, peer, root, group_size, members, start, length, p2p) in enumerate(rows):
        by_rank[number % 2].append(
            record(
                start,
                start + length,
                op=op,
                bytes=size,
                peer=peer,
                root=root,
                group_size=group_size,
                group_ranks=members,
                p2p=p2p,
                index=number // 2,
            )
        )
    matching, waits = judged(by_rank)
    assert matching.unmatched == sum(matching.unmatched_by.values())
    for row in bandwidths(samples(matching, waits), one_host(2)):
        figures = [value for value in msgspec.structs.asdict(row).values() if isinstance(value, float)]
        assert all(math.isfinite(value) and value >= 0 for value in figures)
        assert row.matched <= row.count
