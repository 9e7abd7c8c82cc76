"""Figures contain exactly the values of the records."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from numpy.typing import NDArray

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis, ImposedWait
from rankscope.dashboards.charts.cells import bin_worst
from rankscope.dashboards.charts.frame import GRAPH_CONFIG
from rankscope.dashboards.charts.heatmap import step_heatmap
from rankscope.dashboards.charts.palette import PALETTES, palette
from rankscope.dashboards.overlap.figures import ALL_UP_TO, NOTABLE, PARTS, breakdown_bars
from rankscope.dashboards.stragglers.figures import MOST_BARS as SHOWN
from rankscope.dashboards.stragglers.figures import imposed_bars
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
    figure = breakdown_bars(analysis.ranks, LIGHT, blamed=[2], picked=0)
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
    figure = breakdown_bars(many, LIGHT, picked=7)
    labels = list(figure.layout.yaxis.ticktext)
    assert labels[0] == "<i>mean of 1,024</i>"
    assert {"<b>▸ rank 7</b>", "rank 611"} <= set(labels)
    assert len(labels) == NOTABLE + 1
    sums = np.array([bar.x for bar in figure.data]).sum(axis=0)
    mean_window = sum((rank.window_us or 0) / (rank.profiled_steps or 1) for rank in many) / len(many)
    assert sums[0] * 1e3 == pytest.approx(mean_window)


def test_heatmap_shows_the_values_and_leaves_holes_where_there_is_no_record(table: StepTable) -> None:
    own = table.matrix("own_us")
    figure = step_heatmap(own, table.ranks, table.steps, LIGHT, label="own time", unit="us", blamed=[2])
    np.testing.assert_allclose(np.asarray(figure.data[0].z), own / 1e3, rtol=1e-6)
    assert np.isnan(np.asarray(figure.data[0].z)[1, 30:40]).all()
    assert figure.layout.plot_bgcolor == LIGHT.missing
    assert figure.layout.plot_bgcolor not in LIGHT.sequential
    assert list(figure.layout.yaxis.ticktext)[2] == "<b>⚑ 2</b>"
    assert "own time" in figure.data[0].hovertemplate
    assert "ms" in figure.data[0].hovertemplate


def test_a_rank_that_left_nothing_is_a_hole_too() -> None:
    matrix = np.array([[10_000.0, 20_000.0], [30_000.0, 40_000.0]])
    figure = step_heatmap(matrix, [0, 2], [5, 8], LIGHT, label="own time", unit="us")
    shown = np.asarray(figure.data[0].z)
    assert shown.shape == (3, 4)
    assert shown[0, 0] == pytest.approx(10)
    assert shown[2, 3] == pytest.approx(40)
    assert np.isnan(shown[1]).all()
    assert np.isnan(shown[:, 1:3]).all()
    assert list(figure.data[0].x) == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("matrix", "ranks", "steps", "said"),
    [
        (np.empty((0, 0)), [], [], "No step has been recorded yet"),
        (np.empty((4, 0)), [0, 1, 2, 3], [], "No step has been recorded yet"),
        (np.full((2, 3), np.nan), [0, 1], [1, 2, 3], "no signal"),
        (np.ones((2, 2)), [0, 10**9], [1, 2], "gaps too wide"),
        (np.ones((2, 2)), [0, 1], [1, 10**12], "gaps too wide"),
    ],
)
def test_heatmap_without_anything_to_draw_says_why(
    matrix: NDArray[np.float64], ranks: list[int], steps: list[int], said: str
) -> None:
    figure = step_heatmap(
        matrix, np.array(ranks, dtype=np.int64), np.array(steps, dtype=np.int64), LIGHT, label="own time", unit="us"
    )
    assert said in note_of(figure)


@pytest.mark.parametrize(("steps", "tick"), [(3, 1), (60, None)])
def test_few_steps_are_labelled_one_by_one(steps: int, tick: int | None) -> None:
    figure = step_heatmap(np.full((1, steps), 9_000.0), [0], range(steps), LIGHT, label="own time", unit="us")
    assert figure.layout.xaxis.dtick == tick


def test_noise_does_not_fill_the_colour_scale() -> None:
    matrix = 100_000.0 + np.arange(20.0).reshape(2, 10)
    heat = step_heatmap(matrix, [0, 1], range(10), LIGHT, label="step time", unit="us").data[0]
    assert (np.asarray(heat.z).max() - heat.zmin) / (heat.zmax - heat.zmin) < 0.01


def test_one_outlier_does_not_flatten_the_colour_scale() -> None:
    matrix = np.tile(np.linspace(10_000.0, 20_000.0, 100), (10, 1))
    matrix[3, 50] = 5_000_000.0
    heat = step_heatmap(matrix, range(10), range(100), LIGHT, label="own time", unit="us").data[0]
    assert heat.zmax < 100
    assert np.nanmax(np.asarray(heat.z)) == pytest.approx(5_000.0)


def test_a_thousand_ranks_by_a_thousand_steps_fit_in_two_megabytes_and_keep_the_slow_one() -> None:
    matrix = np.random.default_rng(1).normal(40_000, 1_000, (1024, 1000))
    matrix[611] += 30_000
    matrix[200:208, 300:340] = np.nan
    figure = step_heatmap(matrix, np.arange(1024), np.arange(1000), LIGHT, label="own time", unit="us", blamed=[611])
    assert len(figure.to_json()) < 2_000_000
    shown = np.asarray(figure.data[0].z)
    slow_row = int(np.nanmedian(shown, axis=1).argmax())
    first = figure.data[0].y[slow_row]
    assert first <= 611 < first + 4
    assert np.isnan(shown).any(), "the hole is still there"


@given(
    st_numpy.arrays(
        np.float64,
        st_numpy.array_shapes(min_dims=2, max_dims=2, max_side=40),
        elements=st.one_of(st.floats(0, 1e6, width=32), st.just(math.nan)),
    ),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_binning_keeps_the_highest_value_of_every_block(matrix: NDArray[np.float64], max_rows: int, max_columns: int) -> None:
    binned = bin_worst(matrix, max_rows=max_rows, max_columns=max_columns)
    high, wide = binned.rows_per_bin, binned.columns_per_bin
    assert binned.values.shape[0] <= max_rows
    assert binned.values.shape[1] <= max_columns
    for row in range(binned.values.shape[0]):
        for column in range(binned.values.shape[1]):
            block = matrix[row * high : (row + 1) * high, column * wide : (column + 1) * wide]
            known = block[np.isfinite(block)]
            shown = binned.values[row, column]
            assert shown == np.float32(known.max()) if known.size else np.isnan(shown)


def test_missing_values_are_null_on_the_wire(table: StepTable) -> None:
    """Plotly draws NaN in a typed array as a gap; a literal NaN in JSON would break the page."""
    figure = step_heatmap(table.matrix("own_us"), table.ranks, table.steps, LIGHT, label="own time", unit="us")
    json.loads(figure.to_json(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_imposed_wait_shows_who_cost_most(analysis: Analysis) -> None:
    figure = imposed_bars(analysis.imposed_wait, LIGHT, blamed=[2])
    cost, hidden = figure.data
    assert list(cost.hovertext) == ["2", "0"], "ranks that imposed nothing are left out"
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
    assert list(figure.data[0].hovertext) == [str(rank) for rank in range(99, 99 - SHOWN, -1)]


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
    figure = breakdown_bars(analysis.ranks, LIGHT, blamed=[2], cause="input")
    explained = figure.data[-1]
    assert (explained.name, explained.marker.color) == ("Idle: slow input", LIGHT.input)
    assert [round(value, 1) for value in explained.x] == [0, 0, pytest.approx(39.3, abs=0.1), 0]
    plain = breakdown_bars(analysis.ranks, LIGHT, blamed=[2], cause="compute")
    assert [bar.name for bar in plain.data] == [one.label for one in PARTS]
