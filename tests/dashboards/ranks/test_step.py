"""Clicks on the map of ranks and steps, the card with the numbers of one step, and the table of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.dashboards.blocks import draw, pick, pick_row, run_of, table_rows, text_of, write

from rankscope.dashboards.charts.heatmap import step_cells
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.ranks.data import rank_step
from rankscope.dashboards.ranks.view import VIEW
from rankscope.dashboards.store.disk import DiskRuns

LIGHT = PALETTES["light"]
WriteRun = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, write_run: WriteRun) -> RunData:
    source = DiskRuns(write_run(tmp_path / "run"))
    return RunData(source, source.summary("run-1"))


def test_a_step_of_a_rank_stands_beside_the_median_of_all(run: RunData) -> None:
    card = rank_step(run.steps, 2, 30)
    assert card is not None
    assert card.window is None
    values = {value.metric: value for value in card.values}
    column = run.steps.part("own_us", 30, 31).values[:, 0]
    assert values["own_us"].value == column[2]
    assert values["own_us"].median == np.median(column)
    assert values["own_us"].ranks == 4
    assert values["data_us"].value > 40_000
    assert "gc_us" not in values, "nobody told it"


def test_a_profiled_step_leads_to_the_timeline_of_its_window(run: RunData) -> None:
    result = rank_step(run.steps, 1, 22)
    assert result is not None
    assert result.window == 20
    card = write(VIEW, "step-card", run, PageState(rank=1, step=22))
    assert "Timeline of the window from step 20" in text_of(card, "|")
    assert "/run/run-1/timeline?rank=1&window=20&step=22" in text_of(card, "|")


def test_what_was_not_recorded_is_said(run: RunData) -> None:
    assert rank_step(run.steps, 9, 1) is None
    assert rank_step(run.steps, 0, 900) is None
    assert "no record of rank 9 in step 1" in text_of(write(VIEW, "step-card", run, PageState(rank=9, step=1)))
    assert write(VIEW, "step-card", run, PageState(rank=1)) == []
    assert "not profiled" in text_of(write(VIEW, "step-card", run, PageState(rank=1, step=1)))


def test_a_click_on_a_cell_picks_its_rank_and_step(run: RunData) -> None:
    assert pick(VIEW, "step-heatmap", run, PageState(), {"x": 7, "y": "rank 2 on node-1", "z": 1.0}) == PageState(rank=2, step=7)
    by_host = PageState(sort="host")
    assert pick(VIEW, "step-heatmap", run, by_host, {"x": 7, "y": "rank 3 on node-1", "z": 1.0}).rank == 3
    mark = {"x": 12, "y": 0, "customdata": 1}
    assert pick(VIEW, "step-heatmap", run, PageState(), mark) == PageState(rank=1, step=12)
    assert pick(VIEW, "step-heatmap", run, PageState(rank=1), {**mark, "customdata": None}) == PageState(step=12)
    assert pick_row(VIEW, "rank-table", run, PageState(), "2").rank == 2


def test_of_many_in_a_cell_the_one_that_it_shows_is_picked(monkeypatch: pytest.MonkeyPatch, run: RunData) -> None:
    monkeypatch.setattr("rankscope.dashboards.charts.cells.MAX_ROWS", 2)
    monkeypatch.setattr("rankscope.dashboards.charts.cells.bin_worst.__kwdefaults__", {
        "worst": "highest", "max_rows": 2, "max_columns": 6,
    })  # fmt: skip
    cells = step_cells(run.steps.part("own_us").values, run.steps.ranks, run.steps.steps)
    assert (cells.values.shape, cells.rows.per_row, cells.steps_per_cell) == ((2, 6), 2, 10)
    picked = pick(VIEW, "step-heatmap", run, PageState(), {"x": 20, "y": "ranks 2, 3 on node-1"})
    assert picked.rank == 2
    assert picked.step is not None
    own = run.steps.part("own_us").values
    assert own[2, picked.step] == cells.values[1, 2] == own[2:, 20:30].max()


def test_the_numbers_of_the_map_are_its_cells(run: RunData) -> None:
    table = draw(VIEW, "step-heatmap", run, PageState(), LIGHT).table
    assert table.columns == ("ranks", "first step", "steps", "own time, highest [us]")
    assert len(table.rows) == 4 * 60
    assert table.rows[2 * 60 + 7] == ("2", 7, 1, float(run.steps.part("own_us").values[2, 7]))
    assert list(table.rows[:2]) == [table.rows[0], table.rows[1]]


def test_the_table_has_every_rank_and_keeps_unknown_apart_from_zero(memory_runs: Any) -> None:
    rows = table_rows(VIEW, "rank-table", run_of(memory_runs), PageState())
    assert [row["rank"] for row in rows] == [0, 1, 2, 3]
    assert [row["imposed_percent"] for row in rows] == [2.0, 0.0, 98.0, None]
    assert (rows[0]["profiled_ms"], rows[0]["compute_ms"]) == (80.0, pytest.approx(100 / 3)), "per profiled step"
    assert rows[2]["own_ms"] == pytest.approx(76.5)
    assert rows[2]["overlap_percent"] == pytest.approx(50)
