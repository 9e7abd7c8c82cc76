"""Figures of collectives, and their texts for unknown values."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.dashboards.blocks import page_text

from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.collectives import CollectiveBandwidth
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.overlap.figures import (
    NO_COLLECTIVE,
    NO_SIZE,
    NO_TRANSFER,
    SHOWN,
    against,
    bandwidth_bars,
    by_cost,
    name_of,
    wait_bars,
)

LIGHT = PALETTES["light"]

GRADIENTS = CollectiveBandwidth(
    op="all_reduce", group="dp", group_size=8, size_bucket_bytes=4 << 20, bytes=4 << 20, count=12, matched=10,
    transfer_us=2_000.0, transfer_p10_us=1_900.0, transfer_p90_us=2_500.0, wait_us=6_000.0,
    algorithm_gb_s=2.1, bus_gb_s=38.0, bus_p10_gb_s=30.0,
    bus_p90_gb_s=40.0, bus_at_least_gb_s=None, link="NVLink", link_source="told", expected_gb_s=50.0, expected_unknown=None,
    share=0.76, bound_by="bandwidth",
)  # fmt: skip
UNKNOWN = msgspec.structs.replace(
    GRADIENTS, op="all_gather", group="tp", transfer_us=None, wait_us=None, bus_gb_s=None, bus_p10_gb_s=None, bus_p90_gb_s=None,
    expected_gb_s=None, share=None, matched=0,
)  # fmt: skip


def texts(figure: Any) -> list[str]:
    return [annotation.text for annotation in figure.layout.annotations]


def test_transfer_and_waiting_are_stacked_and_the_costliest_is_first() -> None:
    # Given two collectives, of which the second costs more, and one without known times
    cheap = msgspec.structs.replace(GRADIENTS, op="barrier", bytes=None, wait_us=0.0, matched=1)
    rows = by_cost([cheap, UNKNOWN, GRADIENTS], None)
    assert [row.op for row in rows] == ["all_reduce", "barrier", "all_gather"]
    # When they are drawn
    figure = wait_bars(rows, LIGHT)
    # Then each bar is instances × transfer time plus instances × waiting time
    assert [(bar.name, list(bar.x)) for bar in figure.data] == [("Transfer", [20, 2]), ("Waiting for later ranks", [60, 0])]
    assert texts(figure) == [
        "80 ms · 75% waiting", "2 ms · 0% waiting", "all_reduce · dp (8 ranks) · 4.0 MiB",
        "barrier · dp (8 ranks) · size not known",
    ]  # fmt: skip


def test_a_process_group_can_be_picked_out() -> None:
    assert by_cost([GRADIENTS, UNKNOWN], "tp") == [UNKNOWN]


def test_only_the_costliest_are_drawn() -> None:
    rows = [msgspec.structs.replace(GRADIENTS, op=f"op{number}") for number in range(SHOWN + 5)]
    assert len(wait_bars(rows, LIGHT).data[0].x) == SHOWN


def test_bandwidth_is_drawn_with_its_deciles_against_a_mark() -> None:
    figure = bandwidth_bars([GRADIENTS], LIGHT)
    (bar,) = figure.data
    assert list(bar.x) == [38]
    assert (list(bar.error_x.array), list(bar.error_x.arrayminus)) == ([2], [8])
    assert [shape.x0 for shape in figure.layout.shapes] == [50]
    assert texts(figure)[0] == "38 of 50 GB/s · 76%"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"expected_gb_s": None, "share": None}, "38 GB/s · expected not known"),
        ({"bus_gb_s": None, "bus_at_least_gb_s": 12.0, "share": None}, "at least 12 of 50 GB/s"),
        ({"bound_by": "latency"}, "38 of 50 GB/s · 76%, bound by latency"),
    ],
)
def test_what_must_be_known_of_a_bandwidth_is_said(change: dict[str, Any], sentence: str) -> None:
    row = msgspec.structs.replace(GRADIENTS, **change)
    assert against(row) == sentence
    marks = bandwidth_bars([row], LIGHT).layout.shapes
    assert len(marks) == (0 if row.expected_gb_s is None else 1)


def test_what_is_missing_is_said_with_how_to_get_it() -> None:
    sizeless = msgspec.structs.replace(GRADIENTS, bus_gb_s=None, bytes=None)
    assert texts(wait_bars([], LIGHT)) == texts(bandwidth_bars([], LIGHT)) == [NO_COLLECTIVE]
    assert texts(wait_bars([UNKNOWN], LIGHT)) == texts(bandwidth_bars([UNKNOWN], LIGHT)) == [NO_TRANSFER]
    assert texts(bandwidth_bars([sizeless], LIGHT)) == [NO_SIZE]
    assert name_of(sizeless) == "all_reduce · dp (8 ranks) · size not known"


def test_how_much_communication_is_hidden_is_a_sentence(memory_runs: Any, analysis: Analysis) -> None:
    usual = np.median([rank.overlap_ratio for rank in analysis.ranks])
    assert f"{100 * usual:.0f}% of the communication" in page_text(memory_runs, "/run/run-1/overlap")
