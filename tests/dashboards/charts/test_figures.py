"""Figures contain exactly the values of the records."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.result.analysis import Analysis, ImposedWait
from rankscope.dashboards.charts.bar_names import BarNames, bar_names
from rankscope.dashboards.charts.frame import GRAPH_CONFIG
from rankscope.dashboards.charts.palette import PALETTES, palette
from rankscope.dashboards.delays.figures import MOST_BARS as SHOWN
from rankscope.dashboards.delays.figures import imposed_bars
from rankscope.dashboards.overlap.figures import ALL_UP_TO, NOTABLE, PARTS, breakdown_bars, means_by_host
from rankscope.dashboards.words.units import duration, time_unit

LIGHT = PALETTES["light"]


def note_of(figure: go.Figure) -> str:
    assert not figure.data, "a note has no data"
    return str(figure.layout.annotations[0].text)


def test_bars_are_the_means_of_the_records_and_sum_to_the_profiled_step(analysis: Analysis) -> None:
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


def test_blamed_and_picked_ranks_are_marked_without_colour(analysis: Analysis) -> None:
    figure = breakdown_bars(analysis.ranks, LIGHT, names=BarNames(blamed=[2], picked=0))
    assert list(figure.layout.yaxis.ticktext) == ["<b>▸ rank 0</b>", "rank 1", "<b>⚑ rank 2</b>", "rank 3"]
    assert len(figure.layout.shapes) == 2


def test_ranks_without_a_window_have_no_bar_but_keep_their_row(analysis: Analysis) -> None:
    missing = msgspec.structs.replace(analysis.ranks[1], window_us=None, compute_us=None)
    figure = breakdown_bars([analysis.ranks[0], missing, *analysis.ranks[2:]], LIGHT)
    assert list(figure.data[0].y) == [0, 2, 3]
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1", "rank 2", "rank 3"]


def test_without_any_window_the_figure_says_how_to_get_one(analysis: Analysis) -> None:
    ranks = [msgspec.structs.replace(rank, window_us=None) for rank in analysis.ranks]
    assert "--window-first" in note_of(breakdown_bars(ranks, LIGHT))


def test_of_many_ranks_the_mean_and_the_odd_ones_are_shown(analysis: Analysis) -> None:
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


def test_imposed_wait_shows_who_cost_most(analysis: Analysis) -> None:
    figure = imposed_bars(analysis.imposed_wait, LIGHT, names=BarNames(blamed=[2]))
    cost, hidden = figure.data
    assert list(cost.hovertext) == ["rank 2", "rank 0"], "ranks that imposed nothing are left out"
    assert list(cost.x) == pytest.approx([340, 7])
    assert list(np.add(cost.x, hidden.x)) == pytest.approx([360, 7])
    assert list(figure.layout.yaxis.ticktext) == ["<b>⚑ rank 2</b><br>360 ms · 98%", "rank 0<br>7 ms · 2%"]


def test_imposed_wait_tells_nobody_waited_from_not_known() -> None:
    nobody = [ImposedWait(rank=0, imposed_us=0.0, imposed_exposed_us=0.0, share=None)]
    assert "No rank was found waiting" in note_of(imposed_bars(nobody, LIGHT))
    assert "not known" in note_of(imposed_bars([], LIGHT))


def test_imposed_wait_of_many_ranks_is_cut_to_the_costliest() -> None:
    rows = [ImposedWait(rank=rank, imposed_us=1e3 + rank, imposed_exposed_us=1e3, share=None) for rank in range(100)]
    figure = imposed_bars(rows, LIGHT)
    assert list(figure.data[0].hovertext) == [f"rank {rank}" for rank in range(99, 99 - SHOWN, -1)]


def test_no_graph_offers_to_upload_the_data() -> None:
    assert GRAPH_CONFIG["showSendToCloud"] is False
    assert GRAPH_CONFIG["displaylogo"] is False


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sequential_colours_are_even_in_lightness(scheme: str) -> None:
    def lightness(color: str) -> float:
        red, green, blue = (math.pow(int(color[at : at + 2], 16) / 255, 2.2) for at in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    values = [lightness(color) for color in palette(scheme).sequential]
    steps = np.diff(values)
    assert (steps < 0).all() if scheme == "light" else (steps > 0).all()


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.5, "0.5 µs"), (788.4, "788 µs"), (7_000, "7 ms"), (360_407, "360 ms"), (2.5 * 3_600e6, "2.5 h"), (61e6, "1.02 min")],
)
def test_durations_read_well(us: float, text: str) -> None:
    assert duration(us) == text


@given(st.floats(1, 1e15))
def test_axes_never_reach_absurd_numbers(longest_us: float) -> None:
    size, _unit = time_unit(longest_us)
    assert longest_us / size < 10_001 or size == 3_600e6


def test_unknown_scheme_is_drawn_light() -> None:
    values: list[Any] = [None, "", "nonsense", "light"]
    assert all(palette(value) is LIGHT for value in values)


def test_idle_time_that_the_verdict_explains_has_the_look_of_its_cause(analysis: Analysis) -> None:
    figure = breakdown_bars(analysis.ranks, LIGHT, names=BarNames(blamed=[2]), cause="input")
    explained = figure.data[-1]
    assert (explained.name, explained.marker.color) == ("Idle: slow input", LIGHT.input)
    assert [round(value, 1) for value in explained.x] == [0, 0, pytest.approx(39.3, abs=0.1), 0]
    plain = breakdown_bars(analysis.ranks, LIGHT, names=BarNames(blamed=[2]), cause="compute")
    assert [bar.name for bar in plain.data] == [part.label for part in PARTS]


def test_a_row_per_host_has_the_mean_of_its_ranks_and_names_the_host(analysis: Analysis) -> None:
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
