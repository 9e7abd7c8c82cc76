"""Bandwidth of collectives at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.command_line import Cli

from rankscope.analysis.report.terminal_costs import SHOWN_ROWS, bandwidth_table
from rankscope.analysis.result.analysis import CollectiveMatching
from rankscope.analysis.result.collectives import CollectiveBandwidth, DirectedWait
from rankscope.analysis.result.text import reasons_text, size


def row(**fields: object) -> CollectiveBandwidth:
    unknown = dict.fromkeys(CollectiveBandwidth.__struct_fields__)
    by_key = {"op": "all_reduce", "group": "dp", "group_size": 4, "count": 3, "matched": 3, "bytes": 3 << 20}
    times = {"transfer_us": 1500.0, "wait_us": 20.0, "bus_gb_s": 2.5}
    return CollectiveBandwidth(**{**unknown, **by_key, **times, **fields})  # type: ignore[arg-type]


def table(*rows: CollectiveBandwidth, width: int = 100, **fields: object) -> str:
    empty = {"matched": 0, "unmatched": 0, "excluded": {}, "method": None, "clock_residual_us": None}
    return bandwidth_table(CollectiveMatching(**{**empty, "by_op": list(rows), **fields}), width)  # type: ignore[arg-type]


def test_the_table_shows_transfer_bandwidth_and_share() -> None:
    text = table(
        row(expected_gb_s=450.0, share=0.25, bound_by="bandwidth"),
        row(bytes=384, expected_gb_s=450.0, share=0.001, bound_by="latency"),
        row(transfer_us=None, wait_us=None, bus_gb_s=None, matched=0, bus_at_least_gb_s=1.25, expected_unknown="nobody knows"),
    )
    assert text.splitlines() == [
        "collectives: the transfer alone, without waiting; medians",
        "collective     ranks     size  count  transfer   wait  bus GB/s  expected  share",
        "all_reduce dp      4  3.0 MiB      3    1.5 ms  20 µs       2.5       450    25%",
        "all_reduce dp      4    384 B      3    1.5 ms  20 µs       2.5       450  short",
        "all_reduce dp      4  3.0 MiB      3         -      -    ≥ 1.25         -      -",
        "≥: waiting counted as transfer, for other ranks' side is not at hand",
        "short: over before the rate of its link matters",
        "nothing to expect: nobody knows",
    ]


def test_rows_without_any_figure_have_no_table() -> None:
    assert not table(row(transfer_us=None, bus_gb_s=None))
    assert not table()


def test_table_shows_the_costliest_rows_and_longest_waits() -> None:
    waits = [DirectedWait(op="send", group="pp", waiter=n + 1, origin=n, count=n + 1, wait_us=5000.0) for n in range(6)]
    lines = table(*[row()] * (SHOWN_ROWS + 1), waits=waits, excluded={"p2p": 3}, unmatched_by={"rank_missing": 2}).splitlines()
    assert "1 more row not shown; --format json has all" in lines
    assert "send: rank 1 waited 5.0 ms for rank 0, once" in lines
    assert "send: rank 2 waited 5.0 ms for rank 1, 2 times" in lines
    assert lines[-3] == "and 2 more pairs of ranks"
    assert lines[-2:] == [
        "left out: 3 operations between two ranks",
        "not matched: 2 operations with a rank that is not recorded",
    ]


def test_reason_counts_are_worded_in_singular_and_plural() -> None:
    assert reasons_text({"call_missing": 10}) == "10 operations without a call in the trace"
    assert reasons_text({"incomplete": 1, "p2p": 1200}) == "1 operation missing on some ranks, 1,200 between two ranks"
    assert reasons_text({"of_a_later_version": 2}) == "2 operations (of a later version)"


def test_table_fits_80_columns_with_a_long_group_name() -> None:
    text = table(row(group="mesh_" * 20, expected_gb_s=62.5, share=0.5), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "wait  bus" in table(row(group="mesh_" * 20, expected_gb_s=62.5, share=0.5), width=100)
    assert "all_reduce mesh_mesh_…" in text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (25 << 20, "25 MiB"), (1 << 62, "4096 PiB")]
)
def test_byte_sizes_are_formatted_readably(number: int, text: str) -> None:
    assert size(number) == text


def test_command_compares_with_the_stated_link(cli: Cli, shared_data: Path) -> None:
    completed = cli("analyze", shared_data / "traces" / "dlrm_8ranks_v100", "--link", "nvlink2", "--format", "json")
    assert completed.returncode == 0, completed.stderr
    rows = json.loads(completed.stdout)["collectives"]["by_op"]
    assert {(row["link"], row["link_source"], row["expected_gb_s"]) for row in rows} == {("nvlink2", "told", 150.0)}
    assert [row["bytes"] for row in rows if row["op"] == "all_reduce"] == [394_241 * 4, 226_960 * 4, 112 * 4]


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (["nvlink9"], "is no link that is known"),
        (["ib-ndr:0"], "whole number from 1"),
        (["nvlink4", "pcie4"], "a second link inside a host"),
        (["eth-100:2", "ib-ndr"], "a second link between hosts"),
    ],
)
def test_invalid_link_is_a_usage_error(cli: Cli, tmp_path: Path, links: list[str], message: str) -> None:
    completed = cli("analyze", tmp_path, *[part for link in links for part in ("--link", link)])
    assert completed.returncode == 2
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr
