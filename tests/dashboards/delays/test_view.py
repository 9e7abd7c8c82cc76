"""The view of wait attribution: its data, its figures, and the selection by a click."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.dashboards.blocks import draw, figure_names, pick, table_rows, text_of, write

from rankscope.analysis.result.hosts import worst_ranks
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.delays.data import CauseTimeline, Delays
from rankscope.dashboards.delays.figures import NO_STEPS, cause_bars, cause_timeline, wait_cells
from rankscope.dashboards.delays.view import VIEW
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.ranks.tables import rank_table
from rankscope.dashboards.store.disk import DiskRuns

COLORS = palette("light")
SLOW = 2


def opened(path: Path) -> RunData:
    source = DiskRuns(path)
    return RunData(source, source.runs()[0])


def test_windows_tell_pairs_and_step_records_tell_causes(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given a run with a slow data loader on rank 2, when waits are attributed, then all waited for rank 2's input."""
    delays = opened(write_run(tmp_path / "run")).delays

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


def test_causes_add_up_to_the_imposed_wait_of_the_analysis(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given step records only, when causes are separated, then they add up to the imposed wait, by rank and over the steps."""
    run = opened(write_run(tmp_path / "run", windows=False))
    delays = run.delays

    imposed = {row.rank: row.imposed_us for row in run.analysis.imposed_wait}
    assert {rank.rank: sum(rank.causes_us.values()) for rank in delays.ranks} == pytest.approx(
        {rank.rank: imposed[rank.rank] for rank in delays.ranks}, rel=1e-4
    )
    assert delays.timeline is not None
    assert sum(map(sum, delays.timeline.causes_us.values())) == pytest.approx(sum(imposed.values()), rel=1e-4)
    assert delays.matrix_source == "steps"
    assert delays.groups[0].imposed_us == pytest.approx(sum(imposed.values()), rel=1e-4)
    assert delays.ranks[0].direct_us is None


def test_large_groups_are_shown_host_by_host(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given more ranks than fit, when the matrix is made, then its rows are hosts, and it holds all of the waiting."""
    run = opened(write_run(tmp_path / "run", ranks=70, steps=12, windows=False))
    group = run.delays.groups[0]

    assert group.by_host
    assert len(group.names) == 35
    assert sum(group.waited_us) == pytest.approx(group.imposed_us, rel=1e-4)
    assert worst_ranks(run.analysis, group.members)[group.names.index("node-1")] == SLOW
    assert "host by host" in text_of(write(VIEW, "about-matrix", run, PageState()))


def test_the_view_says_that_groups_take_a_window(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given step records only, when the matrix is shown, then it explains that groups need a profiled window."""
    run = opened(write_run(tmp_path / "run", windows=False))

    assert "profile a window" in text_of(write(VIEW, "about-matrix", run, PageState()))


def test_a_run_without_waits_has_one_note_instead_of_empty_panels(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given a run of one rank, when the view is opened, then it gives the reason once."""
    run = opened(write_run(tmp_path / "run", ranks=1, windows=False, slow_rank=None))

    assert figure_names(VIEW, run, PageState()) == []
    assert "one rank" in text_of(VIEW.blocks(run, PageState()))


def test_figures_have_their_numbers_and_a_sentence(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given a straggler, when the figures are drawn, then their tables and sentences agree."""
    run = opened(write_run(tmp_path / "run"))
    drawn = {name: draw(VIEW, name, run, PageState(), COLORS) for name in figure_names(VIEW, run, PageState())}

    assert drawn["wait-matrix"].table.columns == ("rank that waited", "rank waited for", "wait [us]")
    assert {row[1] for row in drawn["wait-matrix"].table.rows[:3]} == {str(SLOW)}
    assert f"Rank {SLOW}" in drawn["cause-bars"].sentence
    assert "slow input" in drawn["cause-bars"].sentence
    assert f"rank {SLOW}" in drawn["cause-timeline"].sentence
    assert all(len(row) == len(figure.table.columns) for figure in drawn.values() for row in figure.table.rows)


def test_the_ledger_has_dashes_for_what_is_not_known(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given step records only, when the wait attribution is filled, then direct and knock-on waits are unknown, not 0."""
    (worst, *_) = table_rows(VIEW, "rank-costs", opened(write_run(tmp_path / "run", windows=False)), PageState())

    assert worst["rank"] == SLOW
    assert worst["host"] == "node-1"
    assert worst["direct_s"] is None
    assert worst["input_s"] > 0


def test_without_a_named_rank_no_table_charges_one(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = opened(write_run(tmp_path / "run", slow_rank=None))
    assert run.analysis.verdict.ranks == []
    assert run.analysis.imposed_wait
    assert figure_names(VIEW, run, PageState()) == ["wait-matrix", "cause-timeline"]
    assert "names no rank or host" in text_of(VIEW.blocks(run, PageState()))
    assert {row["imposed_percent"] for row in rank_table(run.analysis)} == {None}


def test_a_click_on_a_cell_picks_who_was_waited_for(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given matrices of ranks and of hosts, when a cell is clicked, then the delaying rank is selected."""
    run = opened(write_run(tmp_path / "run"))
    for state, picked in ((PageState(rows="rank"), 1), (PageState(rows="host"), SLOW)):
        row = list(draw(VIEW, "wait-matrix", run, state, COLORS).figure.data[0].y)[1]
        assert pick(VIEW, "wait-matrix", run, state, {"y": row}).rank == picked


def test_an_unknown_group_in_the_address_is_the_first(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given an old link, when its group no longer exists, then the first group is drawn."""
    run = opened(write_run(tmp_path / "run"))
    first = draw(VIEW, "wait-matrix", run, PageState(), COLORS)

    assert draw(VIEW, "wait-matrix", run, PageState(group="gone"), COLORS).sentence == first.sentence


def test_the_timeline_is_per_step_and_names_who_is_charged() -> None:
    """Given bins of steps, when they are drawn, then heights are per step and hovering names the rank."""
    timeline = CauseTimeline(
        first=[0, 10], last=[9, 14], steps=[10, 5], causes_us={"input": [50_000.0, 50_000.0], "gc": [0.0, 10_000.0]},
        worst=[3, 1], worst_share=[1.0, 0.6],
    )  # fmt: skip

    figure = cause_timeline(timeline, COLORS)

    assert [trace.name for trace in figure.data] == ["slow input", "garbage collection"]
    assert figure.data[0].y == pytest.approx([5.0, 10.0])
    assert figure.data[0].hovertext[1] == "steps 10 to 14<br>most of it: rank 1 (60%)"


def test_without_step_records_causes_are_not_known() -> None:
    """Given no ranks with enough data, when causes are drawn, then a note names the required data."""
    assert cause_bars([], COLORS).layout.annotations[0].text == NO_STEPS
    assert cause_timeline(None, COLORS).layout.annotations[0].text == NO_STEPS


def test_a_book_survives_being_written(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given a run, when it is opened twice, then the second opening reads the cached result."""
    source = DiskRuns(write_run(tmp_path / "run"))

    assert isinstance(source.part("run-1", "delays"), Delays)
    assert source.part("run-1", "delays") is source.part("run-1", "delays")


def test_names_in_the_book_are_inert(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Given hosts with invisible characters in their names, when waits are attributed, then the characters are escaped."""
    path = write_run(tmp_path / "run", ranks=70, steps=12, windows=False)
    for about in path.rglob("rank.json"):
        about.write_text(json.dumps({**json.loads(about.read_text()), "host": f"n\u202e{about.parent.name}"}))
    groups = opened(path).delays.groups
    assert all(name.isprintable() for group in groups for name in group.names)
    assert any("u202e" in name for group in groups for name in group.names)
