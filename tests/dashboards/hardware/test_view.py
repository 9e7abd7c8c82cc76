"""The view of a run's GPUs: figures, table and notes about missing data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.dashboards.blocks import draw, figure_names, notes, pick, pick_row, run_at, table_rows, text_of, write, zoom
from tests.dashboards.gpu_samples import STEP_NS, STEPS, hot, rows_of, samples_of, uuid, write_samples
from tests.dashboards.recorded_run import START_NS

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.events import HardwareEvents, StepClock
from rankscope.dashboards.data.hardware import ORIGIN, ROW, GaugeRange, Hardware, HardwareIndex, LinkState, SampledGpu
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.hardware.data import MOST_COLUMNS, statistics_of, time_columns, worst_in
from rankscope.dashboards.hardware.hints import gpu_hints
from rankscope.dashboards.hardware.table import gpu_rows
from rankscope.dashboards.hardware.view import VIEW
from rankscope.dashboards.model.state import PageState
from rankscope.profiler.helper.sampling.exporter_page import read_page

LIGHT = PALETTES["light"]
WriteRun = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, write_run: WriteRun) -> RunData:
    """Run with samples of the two simulated GPUs of node-1, and none of the two GPUs of node-0."""
    path = write_run(tmp_path / "run", simulated=True)
    write_samples(path, "node-1", samples_of(2, simulated=True), samples_of(3, simulated=True))
    return run_at(path)


def test_heatmap_has_a_row_per_gpu_and_a_value_per_step(run: RunData) -> None:
    drawn = draw(VIEW, "gpu-map", run, PageState(rank=3), LIGHT)
    (heat,) = drawn.figure.data
    assert list(heat.y) == ["node-1 · GPU 0", "node-1 · GPU 1"]
    np.testing.assert_array_equal(heat.x, range(STEPS))
    np.testing.assert_array_equal(heat.z[1], [88 if hot(step) else 63 for step in range(STEPS)])
    assert "▸ node-1 · GPU 1" in drawn.figure.layout.yaxis.ticktext[1]
    assert "SIMULATED" in drawn.figure.layout.title.text
    assert "SIMULATED" in drawn.sentence
    assert "highest is on node-1 · GPU 1" in drawn.sentence
    assert drawn.table.columns[-1] == "GPU temperature, highest [celsius]"
    assert drawn.table.rows[STEPS + 20] == ("node-1 · GPU 1", 20.0, START_NS + 20 * STEP_NS, 88.0)


def test_selected_gpu_is_marked_unless_a_rank_is_selected(run: RunData) -> None:
    for state, row in (
        (PageState(gpu=uuid(3).removeprefix("GPU-")), 1),
        (PageState(gpu=uuid(3), rank=3), 1),
        (PageState(gpu=uuid(3), rank=2), 0),
    ):
        figure = draw(VIEW, "gpu-map", run, state, LIGHT).figure
        assert ["▸" in text for text in figure.layout.yaxis.ticktext] == [row == 0, row == 1], state
        assert f"node-1 · GPU {row}," in draw(VIEW, "gpu-lines", run, state, LIGHT).sentence


def test_lowest_clock_counts_as_the_worst(run: RunData) -> None:
    drawn = draw(VIEW, "gpu-map", run, PageState(gauge="sm_clock_hertz"), LIGHT)
    assert drawn.figure.data[0].reversescale
    assert drawn.figure.data[0].z.min() == 1200
    assert "lowest is on node-1 · GPU 1" in drawn.sentence


def test_gauge_without_readings_has_a_note_and_unknown_gauge_the_default(run: RunData) -> None:
    drawn = draw(VIEW, "gpu-map", run, PageState(gauge="memory_used_bytes"), LIGHT)
    assert "No GPU memory used is known" in notes(drawn.figure)[0]
    other = draw(VIEW, "gpu-map", run, PageState(gauge="own_us"), LIGHT)
    assert "GPU temperature" in other.sentence


def test_gpu_lines_show_clock_drops_and_own_time_on_one_axis(run: RunData) -> None:
    figure = draw(VIEW, "gpu-lines", run, PageState(rank=3), LIGHT).figure
    lines = {trace.name: trace for trace in figure.data}
    assert {"heat (hardware)", "clock dropped", "Xid error", "SM clock", "Own time of rank 3"} <= set(lines)
    heat = lines["heat (hardware)"]
    assert list(heat.x[:2]) == [20.5, 39.5], "samples lie in the middle of their steps"
    assert "SIMULATED" in heat.hovertext[0]
    assert {(shape.x0, shape.x1) for shape in figure.layout.shapes} == {(20.5, 39.5)}
    assert lines["SM clock"].y[25] == 1200
    assert list(lines["Own time of rank 3"].x) == list(range(STEPS))
    assert {trace.xaxis for trace in figure.data} == {None}, "one axis for all"


def test_steps_in_the_url_select_the_shown_range(run: RunData) -> None:
    state = PageState(rank=3, steps=(30, 34))
    heat = draw(VIEW, "gpu-map", run, state, LIGHT).figure.data[0]
    np.testing.assert_array_equal(heat.x, range(30, 35))
    lines = draw(VIEW, "gpu-lines", run, state, LIGHT)
    assert len(lines.table.rows) == 5
    (row,) = [row for row in table_rows(VIEW, "gpu-table", run, state) if row["ranks"] == "3"]
    assert row["temperature_median"] == 88
    assert zoom(VIEW, "gpu-lines", run, state, (30.4, 33.2)).steps == (31, 33)
    with pytest.raises(RankscopeError, match="None of these steps has a time"):
        draw(VIEW, "gpu-map", run, PageState(steps=(900, 901)), LIGHT)


def test_table_shows_reported_values_and_none_for_unreported_ones(run: RunData) -> None:
    calm, throttled = table_rows(VIEW, "gpu-table", run, PageState())
    assert throttled["throttled"] == pytest.approx(100 / 3)
    assert throttled["throttled_by"] == "heat (hardware) 33.3 %"
    assert throttled["clock_low"] == pytest.approx(100 * 1.2 / 1.98)
    assert (throttled["thermal_headroom"], throttled["power_headroom"]) == (2, 197)
    assert (throttled["xid"], calm["xid"], calm["throttled"], calm["throttled_by"]) == (1, 0, 0, "nothing")
    assert (calm["links"], calm["simulated"]) == ("PCIe x16", "SIMULATED")
    for unknown in ("ecc", "link_errors", "memory", "memory_total", "name"):
        assert calm[unknown] is None


def test_click_selects_the_gpu_and_its_rank(run: RunData) -> None:
    cell = pick(VIEW, "gpu-map", run, PageState(), {"x": 30, "y": "node-1 · GPU 1"})
    row = pick_row(VIEW, "gpu-table", run, PageState(), uuid(3))
    assert cell == row == PageState(gpu=uuid(3), rank=3)


def test_gpu_without_samples_is_a_one_line_error(run: RunData) -> None:
    with pytest.raises(RankscopeError, match="no samples of GPU GPU-x"):
        draw(VIEW, "gpu-lines", run, PageState(gpu="GPU-x"), LIGHT)
    with pytest.raises(RankscopeError, match="GPU of rank 0"):
        draw(VIEW, "gpu-lines", run, PageState(rank=0), LIGHT)


def test_hints_name_the_source_and_ranks_without_gpu_samples(run: RunData) -> None:
    text = text_of(write(VIEW, "gpu-hints", run, PageState()))
    assert f"Source: {ORIGIN}. 2 GPUs on 1 host" in text
    assert "No samples of the GPUs of ranks 0, 1" in text
    assert "Simulated GPUs" in text


def test_run_without_samples_names_the_options_to_record_samples(tmp_path: Path, write_run: WriteRun) -> None:
    run = run_at(write_run(tmp_path / "run"))
    text = text_of(VIEW.blocks(run, PageState()))
    for part in ("rankscope exporter", "--exporter-url URL", "--no-hardware"):
        assert part in text
    assert text.count("This run has no GPU readings") == 1, "once, not beside every figure"
    assert figure_names(VIEW, run, PageState()) == []


# Without a disk ---------------------------------------------------------------------------------------------------------------


def in_memory(rows: dict[str, Any], clock: StepClock | None = None, **about: dict[str, Any]) -> Hardware:
    gpus = [
        SampledGpu(
            gpu_uuid=name,
            host="a",
            samples=len(own),
            first_unix_ns=int(own["unix_ns"][0]),
            last_unix_ns=int(own["unix_ns"][-1]),
            gauges={
                gauge: GaugeRange(0, 0, 0) for gauge in ROW.names or () if gauge != "unix_ns" and np.isfinite(own[gauge]).any()
            },
            **about.get(name, {}),
        )
        for name, own in rows.items()
    ]
    return Hardware(HardwareIndex(gpus), lambda gpu: rows[gpu.gpu_uuid], clock)


def test_long_run_is_binned_and_keeps_the_worst_sample() -> None:
    steps = 5_000
    clock = StepClock(np.arange(steps), 1000 + np.arange(steps) * 100)
    watts = [500.0] * steps
    watts[3_333] = 900.0
    hardware = in_memory({"one": rows_of((clock.starts_ns + 50).tolist(), power_watts=watts)}, clock)
    columns = time_columns(hardware, None)
    assert len(columns.at) <= MOST_COLUMNS
    worst = worst_in(hardware, "power_watts", columns)[0]
    assert columns.at[int(np.argmax(worst))] <= 3_333 < columns.at[int(np.argmax(worst)) + 1]
    assert worst.max() == 900
    assert columns.along(np.array([1000, 1050, 10**9])).tolist() == [0, 0.5, pytest.approx(columns.at[-1] + columns.steps_each)]


def test_axis_without_steps_is_time() -> None:
    second = 10**9
    hardware = in_memory({"one": rows_of([second, 2 * second, 3 * second], power_watts=[1, 2, 3])})
    columns = time_columns(hardware, (5, 6))
    assert columns.steps_each == 0
    assert worst_in(hardware, "power_watts", columns)[0].tolist() == [1, 2, 3]
    assert "No step has a time" in text_of(gpu_hints(hardware, HardwareEvents(), None))


def test_clocks_of_an_idle_gpu_do_not_count_as_low() -> None:
    rows = rows_of(list(range(10)), sm_clock_hertz=[3e8] * 5 + [2e9] * 5, utilization_ratio=[0.0] * 5 + [0.9] * 5)
    hardware = in_memory({"one": rows}, StepClock(np.arange(10), np.arange(10) + 1))
    (statistics,) = statistics_of(hardware, time_columns(hardware, None))
    assert statistics.usual_clock_hertz == statistics.low_clock_hertz == pytest.approx(2e9)


def test_mig_device_has_the_temperature_of_its_gpu() -> None:
    times = list(range(100, 1100, 100))
    rows = {
        "GPU-parent": rows_of(times, temperature_celsius=[70.0] * 10, power_watts=[300.0] * 10),
        "MIG-part": rows_of(times, memory_used_bytes=[2.0**30] * 10),
    }
    hardware = in_memory(rows, StepClock(np.arange(10), np.array(times)), **{"MIG-part": {"parent_uuid": "GPU-parent"}})
    columns = time_columns(hardware, None)
    assert worst_in(hardware, "temperature_celsius", columns)[1].tolist() == [70.0] * 10
    parent, part = statistics_of(hardware, columns)
    row = gpu_rows(hardware.gpus, [parent, part], {"MIG-part": parent})[1]
    assert (row["temperature_highest"], row["memory"], row["gpu"]) == (70, 1, "MIG of GPU-parent")
    assert "1 MIG device" in text_of(gpu_hints(hardware, HardwareEvents(), None))


def test_gpu_with_old_samples_is_reported_as_stale() -> None:
    second = 10**9
    rows = {"old": rows_of([second, 2 * second], power_watts=[1, 1]), "new": rows_of([second, 200 * second], power_watts=[1, 1])}
    text = text_of(gpu_hints(in_memory(rows, StepClock(np.array([0]), np.array([900 * second]))), HardwareEvents(), None))
    assert "newest sample of a GPU old is more than a minute older" in text
    assert "the last step began" in text
    assert "Reasons for reduced clocks are not known" in text


def test_degraded_links_show_their_former_state() -> None:
    gpu = SampledGpu(
        gpu_uuid="one",
        host="a",
        links={"pcie_link_width": LinkState(8, 8, 16), "nvlinks_down": LinkState(0, 0, 2)},
        rises={"pcie_replays": 3},
    )
    (statistics,) = statistics_of(
        in_memory({"one": rows_of([1, 2], power_watts=[1, 1])}),
        time_columns(in_memory({"one": rows_of([1, 2], power_watts=[1, 1])}), None),
    )
    (row,) = gpu_rows([gpu], [statistics], {})
    assert row["links"] == "PCIe x8 (had 16), 0 NVLinks down (was 2)"
    assert row["link_errors"] == 3


def test_sample_has_the_temperature_margin_of_the_exporter() -> None:
    (sample,) = read_page(b'gpu_temperature_margin_celsius{uuid="GPU-1"} 12.5\n', 1)
    assert sample.temperature_margin_celsius == 12.5
