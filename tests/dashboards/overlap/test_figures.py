"""Figures of collectives, and their texts for unknown values."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.dashboards.blocks import draw, joined, notes, page_text, run_of, text_of, write

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.collectives import CollectiveBandwidth
from rankscope.dashboards.charts.bar_names import BarNames, bar_names
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.overlap.figures import (
    ALL_UP_TO,
    NO_COLLECTIVE,
    NO_SIZE,
    NO_TRANSFER,
    NOTABLE,
    PARTS,
    SHOWN,
    bandwidth_bars,
    bandwidth_text,
    breakdown_bars,
    by_cost,
    collective_name,
    means_by_host,
    wait_bars,
)
from rankscope.dashboards.overlap.view import VIEW

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


def test_transfer_and_wait_bars_are_stacked_and_sorted_by_cost() -> None:
    # Given two collectives, of which the second costs more, and one without known times
    cheap = msgspec.structs.replace(GRADIENTS, op="barrier", bytes=None, wait_us=0.0, matched=1)
    rows = by_cost([cheap, UNKNOWN, GRADIENTS], None)
    assert [row.op for row in rows] == ["all_reduce", "barrier", "all_gather"]
    # When they are drawn
    figure = wait_bars(rows, LIGHT)
    # Then each bar is instances × transfer time plus instances × waiting time
    assert [(bar.name, list(bar.x)) for bar in figure.data] == [("Transfer", [20, 2]), ("Waiting for later ranks", [60, 0])]
    assert notes(figure) == [
        "80 ms · 75% waiting", "2 ms · 0% waiting", "all_reduce · dp (8 ranks) · 4.0 MiB",
        "barrier · dp (8 ranks) · size not known",
    ]  # fmt: skip


def test_collectives_can_be_filtered_by_process_group() -> None:
    assert by_cost([GRADIENTS, UNKNOWN], "tp") == [UNKNOWN]


def test_only_the_costliest_collectives_are_drawn() -> None:
    rows = [msgspec.structs.replace(GRADIENTS, op=f"op{number}") for number in range(SHOWN + 5)]
    assert len(wait_bars(rows, LIGHT).data[0].x) == SHOWN


def test_bandwidth_bar_shows_deciles_and_the_expected_value() -> None:
    figure = bandwidth_bars([GRADIENTS], LIGHT)
    (bar,) = figure.data
    assert list(bar.x) == [38]
    assert (list(bar.error_x.array), list(bar.error_x.arrayminus)) == ([2], [8])
    assert [shape.x0 for shape in figure.layout.shapes] == [50]
    assert notes(figure)[0] == "38 of 50 GB/s · 76%"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"expected_gb_s": None, "share": None}, "38 GB/s · expected not known"),
        ({"bus_gb_s": None, "bus_at_least_gb_s": 12.0, "share": None}, "at least 12 of 50 GB/s"),
        ({"bound_by": "latency"}, "38 of 50 GB/s · 76%, bound by latency"),
    ],
)
def test_bandwidth_label_names_expected_value_and_bounds(change: dict[str, Any], sentence: str) -> None:
    row = msgspec.structs.replace(GRADIENTS, **change)
    assert bandwidth_text(row) == sentence
    marks = bandwidth_bars([row], LIGHT).layout.shapes
    assert len(marks) == (0 if row.expected_gb_s is None else 1)


def test_missing_collectives_transfers_and_sizes_have_notes() -> None:
    sizeless = msgspec.structs.replace(GRADIENTS, bus_gb_s=None, bytes=None)
    assert notes(wait_bars([], LIGHT)) == notes(bandwidth_bars([], LIGHT)) == [joined(NO_COLLECTIVE)]
    assert notes(wait_bars([UNKNOWN], LIGHT)) == notes(bandwidth_bars([UNKNOWN], LIGHT)) == [joined(NO_TRANSFER)]
    assert notes(bandwidth_bars([sizeless], LIGHT)) == [joined(NO_SIZE)]
    assert collective_name(sizeless) == "all_reduce · dp (8 ranks) · size not known"


def test_page_states_the_hidden_share_of_communication(memory_runs: Any, analysis: Analysis) -> None:
    usual = np.median([rank.overlap_ratio for rank in analysis.ranks])
    assert f"{100 * usual:.0f}% of the communication" in page_text(memory_runs, "/run/run-1/overlap")


def test_breakdown_bars_are_means_that_sum_to_the_profiled_step(analysis: Analysis) -> None:
    figure = breakdown_bars(analysis.ranks, LIGHT)
    assert [bar.name for bar in figure.data] == [part.label for part in PARTS]
    values = np.array([bar.x for bar in figure.data])  # [parts, ranks], ms
    for row, rank in enumerate(analysis.ranks):
        assert rank.compute_us is not None
        assert rank.overlap_us is not None
        assert rank.window_us is not None
        assert rank.profiled_steps == 3
        values[:, row] *= 3
        assert values[0, row] == pytest.approx((rank.compute_us - rank.overlap_us) / 1e3)
        assert values[1, row] == pytest.approx(rank.overlap_us / 1e3)
        assert values[2, row] * 1e3 == pytest.approx(rank.exposed_communication_us)
        assert values[3, row] * 1e3 == pytest.approx(rank.exposed_memcpy_us)
        assert values[4, row] * 1e3 == pytest.approx(rank.idle_us)
        assert values[:, row].sum() * 1e3 == pytest.approx(rank.window_us)


def test_blamed_and_selected_ranks_are_marked_without_colour(analysis: Analysis) -> None:
    figure = breakdown_bars(analysis.ranks, LIGHT, names=BarNames(blamed=[2], picked=0))
    assert list(figure.layout.yaxis.ticktext) == ["<b>▸ rank 0</b>", "rank 1", "<b>⚑ rank 2</b>", "rank 3"]
    assert len(figure.layout.shapes) == 2


def test_ranks_without_a_window_keep_an_empty_row(analysis: Analysis) -> None:
    missing = msgspec.structs.replace(analysis.ranks[1], window_us=None, compute_us=None)
    figure = breakdown_bars([analysis.ranks[0], missing, *analysis.ranks[2:]], LIGHT)
    assert list(figure.data[0].y) == [0, 2, 3]
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1", "rank 2", "rank 3"]


def test_figure_without_windows_names_the_option_to_record_one(analysis: Analysis) -> None:
    ranks = [msgspec.structs.replace(rank, window_us=None) for rank in analysis.ranks]
    assert "--window-first" in notes(breakdown_bars(ranks, LIGHT))[0]


def test_breakdown_of_many_ranks_shows_the_mean_and_outliers(analysis: Analysis) -> None:
    usual, odd = analysis.ranks[0], analysis.ranks[2]
    many = [msgspec.structs.replace(odd if rank == 611 else usual, rank=rank) for rank in range(1024)]
    assert len(many) > ALL_UP_TO
    figure = breakdown_bars(many, LIGHT, names=BarNames(picked=7))
    labels = list(figure.layout.yaxis.ticktext)
    assert labels[0] == "<i>mean of 1,024</i>"
    assert {"<b>▸ rank 7</b>", "rank 611"} <= set(labels)
    assert len(labels) == NOTABLE + 1
    sums = np.array([bar.x for bar in figure.data]).sum(axis=0)
    mean_window = sum((rank.window_us or 0) / (rank.profiled_steps or 1) for rank in many) / len(many)
    assert sums[0] * 1e3 == pytest.approx(mean_window)


def test_idle_time_explained_by_the_verdict_has_the_style_of_its_cause(analysis: Analysis) -> None:
    figure = breakdown_bars(analysis.ranks, LIGHT, names=BarNames(blamed=[2]), cause="input")
    explained = figure.data[-1]
    assert (explained.name, explained.marker.color) == ("Idle: slow input", LIGHT.input)
    assert [round(value, 1) for value in explained.x] == [0, 0, pytest.approx(39.3, abs=0.1), 0]
    plain = breakdown_bars(analysis.ranks, LIGHT, names=BarNames(blamed=[2]), cause="compute")
    assert [bar.name for bar in plain.data] == [part.label for part in PARTS]


def test_host_row_has_the_mean_of_its_ranks(analysis: Analysis) -> None:
    names = bar_names(analysis, "host", 3)
    rows = means_by_host(analysis, names.hosts)
    figure = breakdown_bars(rows, LIGHT, names=names)
    assert list(figure.data[0].hovertext) == ["host node-0", "host node-1"]
    by_rank = np.array([bar.x for bar in breakdown_bars(analysis.ranks, LIGHT).data])
    np.testing.assert_allclose(np.array([bar.x for bar in figure.data]), by_rank.reshape(len(PARTS), 2, 2).mean(axis=2))
    assert list(figure.layout.yaxis.ticktext) == ["node-0", "<b>⚑ node-1</b>"]
    ranks = breakdown_bars(analysis.ranks, LIGHT, names=bar_names(analysis, "rank", None))
    assert ranks.data[0].hovertext[2] == "rank 2 on node-1"
    nothing = [msgspec.structs.replace(rank, window_us=None, host="<b>") for rank in analysis.ranks]
    assert means_by_host(msgspec.structs.replace(analysis, ranks=nothing), {})[0].window_us is None


def test_unknown_process_group_in_the_url_is_ignored(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    rows = [msgspec.structs.replace(UNKNOWN, group=group, expected_unknown="the GPU is not known") for group in ("dp", "tp")]
    rows = [msgspec.structs.replace(row, matched=5, transfer_us=100.0, wait_us=50.0) for row in rows]
    result = msgspec.structs.replace(analysis.collectives, by_op=rows)
    memory_runs.put(msgspec.structs.replace(analysis, collectives=result), table)
    run = run_of(memory_runs)
    for group, count in (("tp", 1), ("pp", 2), (None, 2)):
        assert len(draw(VIEW, "collective-waits", run, PageState(group=group)).figure.data[0].x) == count
    assert "the GPU is not known" in text_of(write(VIEW, "about-collectives", run, PageState()))
