"""The view of wait attribution: its data, its figures, and the selection by a click."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.dashboards.blocks import draw, figure_names, joined, notes, pick, run_at, table_rows, text_of, write

from rankscope.analysis.result.analysis import Analysis, ImposedWait
from rankscope.analysis.result.hosts import worst_ranks
from rankscope.dashboards.charts.bar_names import BarNames
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.delays.data import CauseTimeline
from rankscope.dashboards.delays.figures import MOST_BARS, NO_STEPS, cause_bars, cause_timeline, imposed_bars, wait_cells
from rankscope.dashboards.delays.view import VIEW
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.ranks.tables import rank_table

COLORS = palette("light")
SLOW = 2


def test_pairs_come_from_windows_and_causes_from_step_records(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    delays = run_at(write_run(tmp_path / "run")).delays

    assert delays.matrix_source == "windows"
    cells = wait_cells(delays.groups[0])
    assert np.nansum(cells[SLOW]) > 0.9 * np.nansum(cells)
    assert np.isnan(np.diag(cells)).all()
    worst = delays.ranks[0]
    assert worst.rank == SLOW
    assert worst.steps_us is not None
    assert worst.causes_us["input"] > 0.9 * worst.steps_us
    assert worst.direct_us == pytest.approx(delays.groups[0].imposed_us, rel=0.1)
    assert worst.knock_on_us == 0


def test_causes_of_step_records_add_up_to_the_imposed_wait(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run", windows=False))
    delays = run.delays

    imposed = {row.rank: row.imposed_us for row in run.analysis.imposed_wait}
    assert {rank.rank: sum(rank.causes_us.values()) for rank in delays.ranks} == pytest.approx(
        {rank.rank: imposed[rank.rank] for rank in delays.ranks}, rel=1e-4
    )
    assert delays.timeline is not None
    assert sum(map(sum, delays.timeline.causes_us.values())) == pytest.approx(sum(imposed.values()), rel=1e-4)
    assert delays.matrix_source == "steps"
    assert delays.groups[0].imposed_us == pytest.approx(sum(imposed.values()), rel=1e-4)
    worst = table_rows(VIEW, "rank-costs", run, PageState())[0]
    assert (worst["rank"], worst["host"], worst["direct_s"]) == (SLOW, "node-1", None), "not known, and not 0"
    assert worst["input_s"] > 0
    assert "profile a window" in text_of(write(VIEW, "about-matrix", run, PageState()))


def test_large_groups_are_shown_per_host(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run", ranks=70, steps=12, windows=False))
    group = run.delays.groups[0]

    assert group.by_host
    assert len(group.names) == 35
    assert sum(group.waited_us) == pytest.approx(group.imposed_us, rel=1e-4)
    assert worst_ranks(run.analysis, group.members)[group.names.index("node-1")] == SLOW
    assert "host by host" in text_of(write(VIEW, "about-matrix", run, PageState()))


def test_run_of_one_rank_has_a_note_instead_of_empty_panels(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run", ranks=1, windows=False, slow_rank=None))

    assert figure_names(VIEW, run, PageState()) == []
    assert "one rank" in text_of(VIEW.blocks(run, PageState()))


def test_figures_have_a_caption_and_a_data_table(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run"))
    drawn = {name: draw(VIEW, name, run, PageState(), COLORS) for name in figure_names(VIEW, run, PageState())}

    assert drawn["wait-matrix"].table.columns == ("rank that waited", "rank waited for", "wait [us]")
    assert {row[1] for row in drawn["wait-matrix"].table.rows[:3]} == {str(SLOW)}
    assert f"Rank {SLOW}" in drawn["cause-bars"].sentence
    assert "slow input" in drawn["cause-bars"].sentence
    assert f"rank {SLOW}" in drawn["cause-timeline"].sentence
    assert all(len(row) == len(figure.table.columns) for figure in drawn.values() for row in figure.table.rows)


def test_no_table_charges_a_rank_when_the_verdict_names_none(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run", slow_rank=None))
    assert run.analysis.verdict.ranks == []
    assert run.analysis.imposed_wait
    assert figure_names(VIEW, run, PageState()) == ["wait-matrix", "cause-timeline"]
    assert "names no rank or host" in text_of(VIEW.blocks(run, PageState()))
    assert {row["imposed_percent"] for row in rank_table(run.analysis)} == {None}


def test_click_on_a_cell_selects_the_rank_that_was_waited_for(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run"))
    for state, picked in ((PageState(rows="rank"), 1), (PageState(rows="host"), SLOW)):
        row = list(draw(VIEW, "wait-matrix", run, state, COLORS).figure.data[0].y)[1]
        assert pick(VIEW, "wait-matrix", run, state, {"y": row}).rank == picked


def test_unknown_group_in_the_url_falls_back_to_the_first(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run"))
    first = draw(VIEW, "wait-matrix", run, PageState(), COLORS)

    assert draw(VIEW, "wait-matrix", run, PageState(group="gone"), COLORS).sentence == first.sentence


def test_timeline_is_per_step_and_names_the_charged_rank() -> None:
    timeline = CauseTimeline(
        first=[0, 10], last=[9, 14], steps=[10, 5], causes_us={"input": [50_000.0, 50_000.0], "gc": [0.0, 10_000.0]},
        worst=[3, 1], worst_share=[1.0, 0.6],
    )  # fmt: skip

    figure = cause_timeline(timeline, COLORS)

    assert [trace.name for trace in figure.data] == ["slow input", "garbage collection"]
    assert figure.data[0].y == pytest.approx([5.0, 10.0])
    assert figure.data[0].hovertext[1] == "steps 10 to 14<br>most of it: rank 1 (60%)"


def test_causes_without_step_records_have_a_note() -> None:
    assert notes(cause_bars([], COLORS)) == [joined(NO_STEPS)]


def test_host_names_are_escaped(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    path = write_run(tmp_path / "run", ranks=70, steps=12, windows=False)
    for about in path.rglob("rank.json"):
        about.write_text(json.dumps({**json.loads(about.read_text()), "host": f"n\u202e{about.parent.name}"}))
    groups = run_at(path).delays.groups
    assert all(name.isprintable() for group in groups for name in group.names)
    assert any("u202e" in name for group in groups for name in group.names)


def test_imposed_wait_lists_the_costliest_rank_first(analysis: Analysis) -> None:
    figure = imposed_bars(analysis.imposed_wait, COLORS, names=BarNames(blamed=[2]))
    cost, hidden = figure.data
    assert list(cost.hovertext) == ["rank 2", "rank 0"], "ranks that imposed nothing are left out"
    assert list(cost.x) == pytest.approx([340, 7])
    assert list(np.add(cost.x, hidden.x)) == pytest.approx([360, 7])
    assert list(figure.layout.yaxis.ticktext) == ["<b>⚑ rank 2</b><br>360 ms · 98%", "rank 0<br>7 ms · 2%"]


def test_imposed_wait_distinguishes_zero_from_unknown() -> None:
    nobody = [ImposedWait(rank=0, imposed_us=0.0, imposed_exposed_us=0.0, share=None)]
    assert "No rank was found waiting" in notes(imposed_bars(nobody, COLORS))[0]
    assert "not known" in notes(imposed_bars([], COLORS))[0]


def test_imposed_wait_shows_only_the_costliest_of_many_ranks() -> None:
    rows = [ImposedWait(rank=rank, imposed_us=1e3 + rank, imposed_exposed_us=1e3, share=None) for rank in range(100)]
    figure = imposed_bars(rows, COLORS)
    assert list(figure.data[0].hovertext) == [f"rank {rank}" for rank in range(99, 99 - MOST_BARS, -1)]
