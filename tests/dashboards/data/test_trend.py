"""The trend: statistics over all ranks, per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from rankscope.base.errors import InputError
from rankscope.dashboards.data.source import StepPart
from rankscope.dashboards.data.trend import HIGHEST, MEDIAN, PERCENTILES, Trend, read_trend, stretches, trend_of, write_trend
from rankscope.dashboards.store.derive import DerivedData, derive
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.follow import FollowerState
from rankscope.dashboards.store.tiles import Tiles, TileWriter
from rankscope.runs.step_columns import HEADER_BYTES, ROW_BYTES

NONE = np.array([], np.int64)


def tiles(folder: Path, **metrics: np.ndarray) -> Tiles:
    """Write tiles of ranks 0, 2, 4 …, with steps from 100."""
    matrix = next(iter(metrics.values()))
    writer = TileWriter(folder)
    writer.fill([2 * row for row in range(len(matrix))], 100 + np.arange(matrix.shape[1]), metrics.items())
    writer.publish()
    return Tiles(folder)


def same(first: Trend, other: Trend) -> bool:
    return all(
        np.array_equal(getattr(first, field.name), getattr(other, field.name), equal_nan=field.name not in {"slowest", "changes"})
        if field.name != "changes"
        else first.changes == other.changes
        for field in fields(Trend)
    )


def test_percentiles_match_numpy_and_the_slowest_rank_is_found(tmp_path: Path) -> None:
    # Given times of 20 ranks for more steps than one block, a tenth of them unknown
    rng = np.random.default_rng(0)
    wall = rng.gamma(4, 10_000, (20, 300)).astype(np.float32)
    wall[rng.random(wall.shape) < 0.1] = np.nan
    # When the trend is made
    trend = trend_of(tiles(tmp_path, wall_us=wall, own_us=wall), np.array([103]))
    # Then its percentiles are those of the known values
    assert np.allclose(trend.wall_us, np.nanpercentile(wall, PERCENTILES, axis=0), rtol=1e-5)
    assert (trend.slowest == 2 * np.nanargmax(wall, axis=0)).all()
    assert np.flatnonzero(trend.profiled).tolist() == [3]


def test_values_that_no_rank_reports_are_unknown(tmp_path: Path) -> None:
    wall = np.full((3, 4), 50_000, np.float32)
    wall[:, 2] = np.nan
    trend = trend_of(tiles(tmp_path, wall_us=wall), NONE)
    assert np.isnan(trend.wall_us[:, 2]).all()
    assert np.isnan(trend.own_us).all()
    assert (trend.slowest == -1).all()
    assert np.isnan(trend.samples).all()


def test_run_without_steps_has_an_empty_trend(tmp_path: Path) -> None:
    writer = TileWriter(tmp_path)
    writer.fill([], NONE, [])
    writer.publish()
    trend = trend_of(Tiles(tmp_path), NONE)
    assert trend.wall_us.shape == (len(PERCENTILES), 0)
    assert trend.changes == ()


class _Counted:
    """Tiles that record which columns were read."""

    def __init__(self, tiles: Tiles) -> None:
        self._held = tiles
        self.ranks, self.steps, self.metrics = tiles.ranks, tiles.steps, tiles.metrics
        self.read: list[int] = []

    def part(self, metric: str, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> StepPart:
        self.read.append(first)
        return self._held.part(metric, first, last, most_columns=most_columns)


def test_growing_run_is_read_incrementally_with_the_same_trend(tmp_path: Path) -> None:
    # Given a trend of the first 500 steps
    wall = np.random.default_rng(0).gamma(4, 10_000, (5, 700)).astype(np.float32)
    before = trend_of(tiles(tmp_path / "a", wall_us=wall[:, :500], own_us=wall[:, :500]), NONE)
    # When 200 more steps have been added
    grown = _Counted(tiles(tmp_path / "b", wall_us=wall, own_us=wall))
    after = trend_of(grown, NONE, before=before, since=600)
    # Then the first 500 steps were not read again
    assert min(grown.read) == 500
    assert same(after, trend_of(grown, NONE))


def test_trend_file_round_trips_and_damage_is_an_error(tmp_path: Path) -> None:
    wall = np.concatenate([np.full((2, 60), 30_000), np.full((2, 60), 60_000)], axis=1).astype(np.float32)
    wall += np.random.default_rng(0).normal(0, 500, wall.shape).astype(np.float32)
    trend = trend_of(tiles(tmp_path, wall_us=wall, own_us=wall), NONE)
    assert len(trend.changes) == 1
    write_trend(trend, tmp_path / "trend.npz")
    assert same(read_trend(tmp_path / "trend.npz"), trend)
    (tmp_path / "trend.npz").write_bytes(b"PK no zip")
    with pytest.raises(InputError, match="cached trend cannot be read"):
        read_trend(tmp_path / "trend.npz")


def test_trend_of_a_stored_run_marks_profiled_steps(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    write_run(tmp_path / "run")
    trend = DiskRuns(tmp_path).part("run-1", "trend")
    assert trend.steps[trend.profiled].tolist() == [20, 21, 22]
    assert (trend.slowest == 2).all()
    assert trend.wall_us[MEDIAN, 10] == pytest.approx(77_000, rel=0.02)
    assert (trend.wall_us[HIGHEST] >= trend.wall_us[MEDIAN]).all()
    assert (trend.samples == 32).all()


def test_stretches_are_the_ranges_of_true_values() -> None:
    assert list(stretches(np.array([True, True, False, True]))) == [(0, 2), (3, 4)]
    assert list(stretches(np.array([], bool))) == []


def test_live_trend_includes_late_records_of_one_rank(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = write_run(tmp_path / "run", steps=60, finished=False)
    whole = {file: file.read_bytes() for file in sorted(run.rglob("steps-*.npy"))}
    (tmp_path / "live").mkdir()
    followed = FollowerState(run, tmp_path / "live")
    for of_first, of_others in ((20, 40), (60, 60)):
        for number, (file, content) in enumerate(whole.items()):
            file.write_bytes(content[: HEADER_BYTES + ROW_BYTES * (of_others if number else of_first)])
        followed.update()

    (tmp_path / "once").mkdir()
    derive(run, tmp_path / "once", lambda _progress: None)
    assert same(*(DerivedData(tmp_path / name).part("trend") for name in ("live", "once")))
