"""Heat maps: values, holes, colour scale, and the names of rows with their hosts."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from numpy.typing import NDArray
from tests.dashboards.blocks import notes

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.dashboards.charts.cells import bin_worst
from rankscope.dashboards.charts.frame import GRAPH_CONFIG
from rankscope.dashboards.charts.heatmap import MapRows, step_heatmap
from rankscope.dashboards.charts.palette import PALETTES, palette
from rankscope.dashboards.data import metrics
from rankscope.dashboards.data.hardware import SampledGpu
from rankscope.dashboards.delays.data import WaitGroup
from rankscope.dashboards.delays.figures import NO_WAIT_IN_GROUP, wait_matrix
from rankscope.dashboards.hardware.figures import gpu_cells

LIGHT = PALETTES["light"]


def group_of(names: list[str], *, by_host: bool = False, cells: list[tuple[int, int, float]] | None = None) -> WaitGroup:
    """Return a wait group; ``cells`` are victim, origin, and waiting time in microseconds."""
    cells = [(0, 1, 5_000.0), (2, 1, 8_000.0)] if cells is None else cells
    return WaitGroup(
        key="dp", label="dp", ranks=len(names), imposed_us=sum(cell[2] for cell in cells), by_host=by_host, names=names,
        members=[[at] for at in range(len(names))], victims=[cell[0] for cell in cells], origins=[cell[1] for cell in cells],
        waited_us=[cell[2] for cell in cells],
    )  # fmt: skip


def test_heatmap_shows_values_and_gaps_for_missing_records(table: StepTable) -> None:
    own = table.matrix("own_us")
    figure = step_heatmap(own, table.ranks, table.steps, LIGHT, label="own time", unit="us", blamed=[2])
    np.testing.assert_allclose(np.asarray(figure.data[0].z), own / 1e3, rtol=1e-6)
    assert np.isnan(np.asarray(figure.data[0].z)[1, 30:40]).all()
    assert figure.layout.plot_bgcolor == LIGHT.missing
    assert figure.layout.plot_bgcolor not in LIGHT.sequential
    assert list(figure.layout.yaxis.ticktext)[2] == "<b>⚑ 2</b>"
    assert "own time" in figure.data[0].hovertemplate
    assert "ms" in figure.data[0].hovertemplate


def test_rank_without_records_is_a_gap_in_the_heatmap() -> None:
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
    ("matrix", "ranks", "steps", "message"),
    [
        (np.empty((0, 0)), [], [], "No step has been recorded yet"),
        (np.empty((4, 0)), [0, 1, 2, 3], [], "No step has been recorded yet"),
        (np.full((2, 3), np.nan), [0, 1], [1, 2, 3], "no signal"),
        (np.ones((2, 2)), [0, 10**9], [1, 2], "gaps too wide"),
        (np.ones((2, 2)), [0, 1], [1, 10**12], "gaps too wide"),
    ],
)
def test_empty_heatmap_shows_the_reason(matrix: NDArray[np.float64], ranks: list[int], steps: list[int], message: str) -> None:
    figure = step_heatmap(
        matrix, np.array(ranks, dtype=np.int64), np.array(steps, dtype=np.int64), LIGHT, label="own time", unit="us"
    )
    assert message in notes(figure)[0]


@pytest.mark.parametrize(("steps", "tick"), [(3, 1), (60, None)])
def test_few_steps_are_labelled_individually(steps: int, tick: int | None) -> None:
    figure = step_heatmap(np.full((1, steps), 9_000.0), [0], range(steps), LIGHT, label="own time", unit="us")
    assert figure.layout.xaxis.dtick == tick


def test_small_noise_does_not_fill_the_colour_scale() -> None:
    matrix = 100_000.0 + np.arange(20.0).reshape(2, 10)
    heat = step_heatmap(matrix, [0, 1], range(10), LIGHT, label="step time", unit="us").data[0]
    assert (np.asarray(heat.z).max() - heat.zmin) / (heat.zmax - heat.zmin) < 0.01


def test_one_outlier_does_not_flatten_the_colour_scale() -> None:
    matrix = np.tile(np.linspace(10_000.0, 20_000.0, 100), (10, 1))
    matrix[3, 50] = 5_000_000.0
    heat = step_heatmap(matrix, range(10), range(100), LIGHT, label="own time", unit="us").data[0]
    assert heat.zmax < 100
    assert np.nanmax(np.asarray(heat.z)) == pytest.approx(5_000.0)


def test_heatmap_of_1000_ranks_fits_in_2_mb_and_keeps_the_slow_rank() -> None:
    matrix = np.random.default_rng(1).normal(40_000, 1_000, (1024, 1000))
    matrix[611] += 30_000
    matrix[200:208, 300:340] = np.nan
    figure = step_heatmap(matrix, np.arange(1024), np.arange(1000), LIGHT, label="own time", unit="us", blamed=[611])
    assert len(figure.to_json()) < 2_000_000
    shown = np.asarray(figure.data[0].z)
    slow_row = int(np.nanmedian(shown, axis=1).argmax())
    assert figure.data[0].y[slow_row] == "ranks 608 to 611"
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
            finite = block[np.isfinite(block)]
            shown = binned.values[row, column]
            assert shown == np.float32(finite.max()) if finite.size else np.isnan(shown)


def test_missing_values_are_valid_json(table: StepTable) -> None:
    """Plotly draws NaN in a typed array as a gap; a literal NaN in JSON would break the page."""
    figure = step_heatmap(table.matrix("own_us"), table.ranks, table.steps, LIGHT, label="own time", unit="us")
    json.loads(figure.to_json(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_host_names_are_escaped_and_1000_hosts_fit() -> None:
    hosts = [f"<b>n{at}</b>" for at in range(1000)]
    figure = step_heatmap(
        np.arange(4000.0).reshape(1000, 4),
        np.arange(1000),
        range(4),
        LIGHT,
        label="own time",
        unit="us",
        rows=MapRows("host", names=hosts),
        blamed=[999],
    )
    heat: Any = figure.data[0]
    assert len(heat.y) == 250
    assert "<b>n0" not in heat.y[0]
    assert "⚑" in figure.layout.yaxis.ticktext[-1]
    assert len(figure.to_json()) < 100_000


def test_heatmap_rows_follow_the_order_with_missing_ranks_last() -> None:
    matrix = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]) * 1000
    figure = step_heatmap(matrix, [0, 1, 3], [0, 1], LIGHT, label="own time", unit="us", order=[2, 0, 1], blamed=[1])
    heat: Any = figure.data[0]
    assert list(heat.y) == ["rank 3", "rank 0", "rank 1", "rank 2"]
    np.testing.assert_allclose(np.asarray(heat.z)[:3], [[5, 6], [1, 2], [3, 4]])
    assert np.isnan(np.asarray(heat.z)[3]).all(), "rank 2 left nothing"
    assert list(figure.layout.yaxis.tickvals) == list(heat.y)
    assert list(figure.layout.yaxis.ticktext) == ["3", "0", "<b>⚑ 1</b>", "2"]
    assert [(shape.y0, shape.y1) for shape in figure.layout.shapes] == [(1.5, 2.5)]


def test_binned_rows_list_their_ranks() -> None:
    order = list(range(1024))[::-1]
    matrix = np.ones((1024, 4)) * np.arange(1024)[:, None]
    figure = step_heatmap(matrix, range(1024), range(4), LIGHT, label="tokens", unit="tokens", order=order, picked=1023)
    heat: Any = figure.data[0]
    assert heat.y[0] == "ranks 1023, 1022, 1021, 1020"
    assert np.asarray(heat.z)[0, 0] == 1023
    assert figure.layout.yaxis.ticktext[0] == "<b>▸ 1023</b>"
    assert len(figure.to_json()) < 100_000


def test_clock_heatmap_keeps_and_labels_the_lowest_value() -> None:
    clock = np.full((600, 1000), 1.98e9, np.float32)
    clock[413, 700] = 0.345e9
    metric = metrics.METRICS["sm_clock_hertz"]
    figure = step_heatmap(clock, np.arange(600), np.arange(1000), LIGHT, label=metric.label, unit=metric.unit, worst=metric.worst)
    heat: Any = figure.data[0]
    assert np.nanmin(np.asarray(heat.z)) == pytest.approx(345)
    assert "lowest SM clock" in heat.hovertemplate
    assert "MHz" in heat.hovertemplate
    assert heat.reversescale is True, "what is bad looks bad"
    assert heat.zmax == pytest.approx(1980)


def test_heatmap_of_an_unknown_metric_shows_how_to_record_the_metric() -> None:
    why = metrics.why_unknown("power_watts")
    figure = step_heatmap(np.full((2, 3), np.nan), [0, 1], [1, 2, 3], LIGHT, label="GPU power", unit="watts", why_unknown=why)
    assert "rankscope exporter" in notes(figure)[0]


def test_wait_matrix_of_a_group_without_waits_has_a_note() -> None:
    assert notes(wait_matrix(group_of(["0", "1"], cells=[]), [0, 1], LIGHT)) == [NO_WAIT_IN_GROUP]


def test_long_axis_label_is_truncated_before_escaping() -> None:
    group = group_of(["&" * 40, "b"], by_host=True, cells=[(0, 1, 5.0)])
    assert wait_matrix(group, [0, 1], LIGHT).layout.yaxis.ticktext[0] == "&amp;" * 27 + "…"


def test_hover_text_of_rank_rows_has_the_host() -> None:
    rows = MapRows("rank", hosts={rank: f"<i>node-{rank // 8}" for rank in range(1016)})
    few = step_heatmap(np.ones((12, 3)), range(12), range(3), LIGHT, label="own time", unit="us", rows=rows)
    assert few.data[0].y[9] == "rank 9 on &lt;i&gt;node-1"
    many = step_heatmap(np.ones((1024, 3)), range(1024), range(3), LIGHT, label="own time", unit="us", rows=rows)
    assert many.data[0].y[1] == "ranks 4 to 7 on &lt;i&gt;node-0"
    assert many.data[0].y[255] == "ranks 1020 to 1023", "their host is not known"
    matrix = wait_matrix(group_of(["4", "9", "11"]), [4, 9, 11], LIGHT, hosts={9: "node-1", 4: "node-0"}).data[0]
    assert list(matrix.y) == list(matrix.x) == ["rank 4 on node-0", "rank 9 on node-1", "rank 11"]


def test_rows_with_equal_labels_stay_separate() -> None:
    rows = MapRows("host", names=["n" * 500 + "a", "n" * 500 + "b"])
    figure = step_heatmap(np.ones((2, 3)), range(2), range(3), LIGHT, label="own time", unit="us", rows=rows)
    assert len(set(figure.data[0].y)) == 2


def test_gpu_heatmap_has_a_row_per_host_that_expands_into_gpus() -> None:
    gpus = [SampledGpu(gpu_uuid=f"GPU-{at}", host=f"<b>n{at // 4}", index=at % 4) for at in range(8)]
    values = np.arange(16, dtype=np.float32).reshape(8, 2)
    hosts = gpu_cells(values, gpus, "highest", by_host=True, opened=6)
    assert hosts.rows.positions()[:3] == ["&lt;b&gt;n0", "&lt;b&gt;n1", "GPU 0 on &lt;b&gt;n1"]
    np.testing.assert_array_equal(hosts.values, values[[3, 7, 4, 5, 6, 7]])
    assert hosts.members == [[0, 1, 2, 3], [4, 5, 6, 7], [4], [5], [6], [7]]
    each = gpu_cells(values, gpus, "highest")
    assert each.rows.positions()[5] == "&lt;b&gt;n1 · GPU 1"
    assert each.members == [[at] for at in range(8)]


def test_graphs_have_no_upload_button() -> None:
    assert GRAPH_CONFIG["showSendToCloud"] is False
    assert GRAPH_CONFIG["displaylogo"] is False


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sequential_colours_change_monotonically_in_lightness(scheme: str) -> None:
    def lightness(color: str) -> float:
        red, green, blue = (math.pow(int(color[at : at + 2], 16) / 255, 2.2) for at in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    values = [lightness(color) for color in palette(scheme).sequential]
    steps = np.diff(values)
    assert (steps < 0).all() if scheme == "light" else (steps > 0).all()


def test_unknown_colour_scheme_falls_back_to_light() -> None:
    values: list[Any] = [None, "", "nonsense", "light"]
    assert all(palette(value) is LIGHT for value in values)
