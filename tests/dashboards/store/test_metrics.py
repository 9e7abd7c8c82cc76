"""Every metric of a run, per rank and step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.analysis.evidence.step_table.steps import METRICS as RECORDED
from rankscope.analysis.run_analysis import read_evidence
from rankscope.dashboards.charts.cells import bin_worst
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data import metrics
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.store.derive import DerivedData, derive
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.matrices import RunMatrices, imposed_values, window_values
from rankscope.dashboards.store.tiles import LEVELS, Tiles, TileWriter
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import StepBreakdown
from rankscope.runs.segment_writer import JsonLinesWriter

WriteRun = Callable[..., Path]
SLOW = 2
LIGHT = PALETTES["light"]
DOCUMENT = Path(__file__).parents[3] / "docs" / "dashboard-reference.md"


def silent(_progress: Progress) -> None:
    pass


def derived(run: Path, folder: Path) -> DerivedData:
    folder.mkdir()
    derive(run, folder, silent)
    return DerivedData(folder)


def test_recorded_and_derived_metrics_have_different_labels() -> None:
    assert len(metrics.METRICS) > len(RECORDED)
    assert all(metrics.METRICS[name].label == metric.label for name, metric in RECORDED.items())
    labels = [metric.label for metric in metrics.METRICS.values()]
    assert len(labels) == len(set(labels)), "nobody could tell them apart"


def test_every_metric_is_documented_with_its_worst_direction() -> None:
    rows = [line.split("|") for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    by_key = {name.strip(" `"): row[3].strip() for row in rows if len(row) == 6 for name in row[1].split(",")}
    assert by_key == {name: metric.worst for name, metric in metrics.METRICS.items()}


def test_only_profiled_steps_have_a_breakdown(tmp_path: Path, write_run: WriteRun) -> None:
    steps = derived(write_run(tmp_path / "run"), tmp_path / "out").part("steps")
    exposed, idle = (steps.part(name).values for name in ("exposed_communication_us", "idle_us"))
    profiled = np.isin(steps.steps, range(20, 23))
    assert np.isfinite(exposed[:, profiled]).all()
    assert np.isnan(exposed[:, ~profiled]).all()
    assert idle[SLOW, profiled].min() > 5 * idle[[0, 1, 3]][:, profiled].max(), "it waits for its data"
    ratio = steps.part("overlap_ratio").values[0, profiled]
    hidden, communication = (steps.part(name).values[0, profiled] for name in ("overlap_us", "communication_us"))
    np.testing.assert_allclose(ratio, hidden / communication, rtol=1e-6)


def test_overlap_ratio_without_communication_is_unknown(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", windows=False)
    nothing = StepBreakdown(
        step=7, start_unix_ns=1, device_kind="cpu", window_us=9, compute_us=9, communication_us=0, overlap_us=0,
        exposed_communication_us=0, memcpy_us=0, exposed_memcpy_us=0, idle_us=0, events=1,
    )  # fmt: skip
    writer = JsonLinesWriter(rank_dir(run, 0, 0), "windows")
    writer.append(nothing)
    writer.close()
    steps = derived(run, tmp_path / "out").part("steps")
    assert "overlap_ratio" not in steps.metrics
    assert "recompute_us" not in steps.metrics
    assert steps.part("communication_us").values[0, 7] == 0, "which is known"
    assert np.isnan(steps.part("communication_us").values[1:]).all()


def test_imposed_wait_blames_the_slow_rank_in_every_judged_step(tmp_path: Path, write_run: WriteRun) -> None:
    run = read_evidence(write_run(tmp_path / "run"))
    judged = np.isfinite(imposed_values(run)).all(axis=0)
    values = imposed_values(run)[:, judged]
    assert (values.argmax(axis=0) == SLOW).all()
    assert (values[[0, 1, 3]] == 0).all(), "known to be nothing"
    assert not set(run.table.steps[judged].tolist()) & set(range(20, 23)), "the profiler's cost is in profiled steps"
    waited = float(values[SLOW].mean()) / 3
    assert waited == pytest.approx(40_000, rel=0.1), "of each victim, as long as the data is late"


def test_profiled_imposed_wait_sums_to_that_of_the_analysis(tmp_path: Path, write_run: WriteRun) -> None:
    run = read_evidence(write_run(tmp_path / "run"))
    values = window_values(run)
    assert list(values.steps) == [20, 21, 22]
    imposed = values.metrics["profiled_imposed_wait_us"]
    for row, rank in enumerate(run.ranks):
        assert imposed[row].sum() == pytest.approx(run.blame.imposed_us[rank], rel=1e-5)
    assert (imposed.argmax(axis=0) == SLOW).all()


def test_missing_metrics_are_disabled_with_the_command_to_record_them(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "run", windows=False)
    result = DiskRuns(tmp_path / "run").part("run-1", "steps").metrics
    options = {str(option["value"]): option for option in metrics.choices(result)}
    assert next(iter(options)) == "wall_us", "those that there are come first"
    assert options["imposed_wait_us"]["disabled"] is False
    for name, how in (("exposed_communication_us", "rankscope capture"), ("temperature_celsius", "rankscope exporter")):
        assert options[name]["disabled"] is True
        assert how in str(options[name]["label"])
    assert set(options) == set(metrics.METRICS)


def test_binned_clocks_and_ratios_keep_the_lowest_value(tmp_path: Path) -> None:
    values = np.full((2, 40), 1.5e9, np.float32)
    values[1, 17] = 0.3e9
    writer = TileWriter(tmp_path / "fill")
    writer.fill([0, 1], np.arange(40), [("sm_clock_hertz", values), ("power_watts", values)])
    writer.publish()
    clock, power = (Tiles(tmp_path / "fill").part(name, most_columns=3) for name in ("sm_clock_hertz", "power_watts"))
    assert clock.steps_per_column == LEVELS[1]
    np.testing.assert_array_equal(clock.values, np.array([[1.5e9] * 3, [1.5e9, 0.3e9, 1.5e9]], np.float32))
    assert power.values.min() == np.float32(1.5e9)
    assert bin_worst(values, worst="lowest", max_columns=4).values.min() == np.float32(0.3e9)
    assert bin_worst(values, max_columns=4).values.min() == np.float32(1.5e9)


@pytest.mark.parametrize("newer", [np.nan, 5.0])
def test_nan_in_a_later_write_keeps_the_earlier_value(tmp_path: Path, newer: float) -> None:
    writer = TileWriter(tmp_path)
    writer.add_ranks([0, 1])
    writer.put("gc_us", np.arange(300), np.full((2, 300), np.nan, np.float32))
    writer.put("gc_us", np.array([3, 290]), np.array([[1, 2], [3, 4]], np.float32))
    writer.put("gc_us", np.array([290]), np.array([[newer], [np.nan]], np.float32))
    writer.publish()
    tiles = Tiles(tmp_path)
    values = tiles.part("gc_us").values
    expected = 2.0 if np.isnan(newer) else newer
    assert [values[0, 3], values[1, 3], values[0, 290], values[1, 290]] == [1, 3, expected, 4]
    assert np.isfinite(values).sum() == 4
    coarse = tiles.part("gc_us", most_columns=20).values
    assert coarse[0, 290 // LEVELS[1]] == expected
    assert np.isfinite(coarse).sum() == 4


def test_profiled_steps_are_at_the_right_position_at_every_zoom(tmp_path: Path) -> None:
    every, few = TileWriter(tmp_path / "every"), TileWriter(tmp_path / "few")
    steps = np.arange(100, 200)
    every.fill([0, 3], steps, [("wall_us", np.ones((2, 100)))])
    few.fill([0, 3], np.array([105, 106, 180]), [("idle_us", np.array([[5.0, 9.0, 1.0], [np.nan, 2.0, np.nan]]))])
    for writer in (every, few):
        writer.publish()
    both = RunMatrices(Tiles(tmp_path / "every"), Tiles(tmp_path / "few"))
    fine = both.part("idle_us", 5, 90)
    assert (fine.first, fine.steps_per_column, fine.values.shape) == (5, 1, (2, 85))
    assert [fine.values[0, 0], fine.values[0, 1], fine.values[0, 75], fine.values[1, 1]] == [5, 9, 1, 2]
    assert np.isfinite(fine.values).sum() == 4
    coarse = both.part("idle_us", most_columns=10)
    assert (coarse.steps_per_column, coarse.values.shape) == (LEVELS[1], both.part("wall_us", most_columns=10).values.shape)
    assert (coarse.values[0, 0], coarse.values[0, 5], coarse.values[1, 0]) == (9, 1, 2)
    assert np.isfinite(coarse.values).sum() == 3
    assert set(both.metrics) == {"wall_us", "idle_us"}


def test_rank_without_windows_has_unknown_window_metrics(tmp_path: Path) -> None:
    """A follower replaces the matrices one after the other."""
    every, few = TileWriter(tmp_path / "every"), TileWriter(tmp_path / "few")
    every.fill([0, 2, 3], np.arange(100, 200), [("wall_us", np.ones((3, 100)))])
    few.fill([0, 3], np.array([105]), [("idle_us", np.array([[5.0], [2.0]]))])
    for writer in (every, few):
        writer.publish()
    values = RunMatrices(Tiles(tmp_path / "every"), Tiles(tmp_path / "few")).part("idle_us").values
    np.testing.assert_array_equal(values[:, 5], [5, np.nan, 2])
