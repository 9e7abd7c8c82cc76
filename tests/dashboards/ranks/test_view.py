"""Map and table of ranks: order of the rows, one per host, clicks, the card of one step, and marks of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.blocks import draw, pick, pick_row, run_at, run_of, table_rows, text_of, write
from tests.dashboards.hosts_at_fault import AT_FAULT, SLOW, host_runs

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.dashboards.charts.heatmap import step_cells, step_heatmap
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.events import KINDS, HardwareEvent
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.topology import RankPlace, Topology, row_order
from rankscope.dashboards.model.page import Choice, Table, find
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.ranks.data import rank_step
from rankscope.dashboards.ranks.figures import mark_events
from rankscope.dashboards.ranks.view import VIEW

BY_HOST = PageState(rows="host")
BY_RANK = PageState(rows="rank")
LIGHT = PALETTES["light"]


@pytest.fixture
def run() -> RunData:
    return run_of(host_runs())


def test_heatmap_by_host_shows_the_worst_rank_of_each_host(run: RunData) -> None:
    drawn = draw(VIEW, "step-heatmap", run, BY_HOST)
    heat: Any = drawn.figure.data[0]
    assert list(heat.y) == ["node-0", "node-1", "node-2", "node-3"]
    by_rank = np.asarray(draw(VIEW, "step-heatmap", run, BY_RANK).figure.data[0].z)
    np.testing.assert_allclose(np.asarray(heat.z), by_rank.reshape(4, 4, -1).max(axis=1))
    assert heat.hovertemplate.startswith("<b>%{y}</b>")
    assert "<b>⚑ node-2</b>" in drawn.figure.layout.yaxis.ticktext
    assert drawn.figure.layout.yaxis.title.text == "host"
    assert "16 ranks on 4 hosts" in drawn.sentence
    assert (drawn.table.columns[0], drawn.table.rows[0][0]) == ("hosts", "node-0")


def test_click_on_a_host_selects_the_rank_whose_value_is_shown(run: RunData) -> None:
    after = pick(VIEW, "step-heatmap", run, BY_HOST, {"x": 5, "y": "node-3"})
    assert (after.rank, after.step, after.rows) == (13, 5, "host")
    assert pick(VIEW, "step-heatmap", run, BY_HOST, {"x": 6, "y": AT_FAULT}).rank in SLOW


def test_hosts_are_sorted_in_the_chosen_order(run: RunData) -> None:
    drawn = draw(VIEW, "step-heatmap", run, PageState(rows="host", sort="imposed"))
    assert next(iter(drawn.figure.data[0].y)) == AT_FAULT


def test_host_at_fault_selects_rows_per_host_by_default(run: RunData) -> None:
    assert list(draw(VIEW, "step-heatmap", run, PageState()).figure.data[0].y) == ["node-0", "node-1", "node-2", "node-3"]
    assert len(table_rows(VIEW, "rank-table", run, PageState())) == 4
    choices = [
        tool
        for block in VIEW.blocks(run, PageState())
        for tool in getattr(block, "tools", ())
        if getattr(tool, "field", "") == "rows"
    ]
    assert [tool.value for tool in choices] == ["host"]
    assert len(draw(VIEW, "step-heatmap", run, BY_RANK).figure.data[0].y) == 16


def test_selected_rank_expands_the_row_of_its_host(run: RunData) -> None:
    opened = replace(BY_HOST, rank=5)
    figure = draw(VIEW, "step-heatmap", run, opened).figure
    assert list(figure.data[0].y)[1:6] == ["node-1", *(f"rank {rank} on node-1" for rank in range(4, 8))]
    assert "<b>▸ rank 5</b>" in figure.layout.yaxis.ticktext
    assert pick(VIEW, "step-heatmap", run, opened, {"x": 3, "y": "rank 6 on node-1"}).rank == 6


def test_ranks_of_a_host_at_fault_share_one_frame(run: RunData) -> None:
    layout = draw(VIEW, "step-heatmap", run, BY_RANK).figure.layout
    assert [(shape.y0, shape.y1) for shape in layout.shapes] == [(7.5, 11.5)]
    assert "<b>⚑ 8 to 11</b>" in layout.yaxis.ticktext


def test_table_by_host_has_a_row_per_host(run: RunData) -> None:
    rows = table_rows(VIEW, "rank-table", run, BY_HOST)
    assert [row["host"] for row in rows] == ["node-0", "node-1", "node-2", "node-3"]
    worst = rows[2]
    assert (worst["count"], worst["ranks"], worst["at_fault"], worst["worst"]) == (4, "8 to 11", "yes", 9)
    assert worst["imposed_percent"] == pytest.approx(100)
    assert worst["own_ms"] == pytest.approx(80.0095)
    assert pick_row(VIEW, "rank-table", run, BY_HOST, worst["id"]).rank == 9
    table = find(VIEW.blocks(run, BY_HOST), Table, "rank-table")
    assert {column.field for column in table.columns} <= rows[0].keys()


@pytest.mark.parametrize("hosts", [["n0"] * 16, [f"n{rank}" for rank in range(16)], [None] * 16])
def test_row_choice_is_hidden_if_hosts_add_no_grouping(hosts: list[str | None]) -> None:
    source = host_runs()
    result = source.analyses["run-1"]
    rows = [msgspec.structs.replace(row, host=host) for row, host in zip(result.ranks, hosts, strict=True)]
    source.analyses["run-1"] = msgspec.structs.replace(result, ranks=rows)
    run = run_of(source)
    blocks = VIEW.blocks(run, BY_HOST)
    assert not any(isinstance(tool, Choice) and tool.field == "rows" for block in blocks for tool in getattr(block, "tools", ()))
    assert len(table_rows(VIEW, "rank-table", run, BY_HOST)) == 16
    assert len(draw(VIEW, "step-heatmap", run, BY_HOST).figure.data[0].z) == 16


def imposed(rank: int, us: float) -> ImposedWait:
    return ImposedWait(rank=rank, imposed_us=us, imposed_exposed_us=us, share=None)


EIGHT = Topology(
    [
        RankPlace(rank, host=f"node-{10 - rank // 4}", local_rank=3 - rank % 4, coordinates={"dp": rank // 4, "tp": rank % 2})
        for rank in range(8)
    ],
    {"tp": 2, "dp": 2, "pp": 1},
)


def test_sort_options_cover_only_known_attributes() -> None:
    assert EIGHT.sorts == ["rank", "host", "tp", "dp", "imposed"]
    assert Topology([RankPlace(0), RankPlace(1)]).sorts == ["rank", "imposed"]
    assert Topology([RankPlace(0, coordinates={"ep": 1, "host": 2})]).sorts == ["rank", "ep", "imposed"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("rank", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("host", [7, 6, 5, 4, 3, 2, 1, 0]),
        ("tp", [0, 2, 4, 6, 1, 3, 5, 7]),
        ("dp", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("imposed", [6, 2, 1, 0, 3, 4, 5, 7]),
        ("no_such", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_rows_are_sorted_by_the_chosen_attribute(sort: str, order: list[int]) -> None:
    waits = [imposed(2, 5.0), imposed(6, 9.0), imposed(1, 0.0)]
    assert row_order(EIGHT, waits, sort) == order


@pytest.mark.parametrize("sort", ["host", "dp"])
def test_rows_with_unknown_sort_keys_come_last(sort: str) -> None:
    topology = Topology(
        [RankPlace(0), RankPlace(3, host="b", coordinates={"dp": 1}), RankPlace(5, host="a", coordinates={"dp": 0})]
    )
    assert row_order(topology, [], sort) == [2, 1, 0]


PLACES = st.builds(
    RankPlace,
    rank=st.integers(0, 10**6),
    host=st.none() | st.text(max_size=8),
    local_rank=st.none() | st.integers(0, 7),
    coordinates=st.dictionaries(st.sampled_from(["dp", "tp"]), st.integers(0, 9)),
)


@given(st.lists(PLACES, max_size=12), st.sampled_from(["rank", "host", "dp", "tp", "imposed", ""]))
def test_every_row_appears_once_for_any_rank_placement(places: list[RankPlace], sort: str) -> None:
    assert sorted(row_order(Topology(places), [imposed(1, 2.0)], sort)) == list(range(len(places)))


def test_topology_of_a_run_has_host_and_local_rank_of_each_rank(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = run_at(write_run(tmp_path / "run"))
    assert [(place.rank, place.host, place.local_rank) for place in run.topology.places] == [
        (0, "node-0", 0), (1, "node-0", 1), (2, "node-1", 0), (3, "node-1", 1),
    ]  # fmt: skip
    drawn = draw(VIEW, "step-heatmap", run, PageState(sort="imposed"), LIGHT)
    assert next(iter(drawn.figure.data[0].y)) == "rank 2 on node-1", "the slow one first"


@pytest.fixture
def recorded(tmp_path: Path, write_run: Callable[..., Path]) -> RunData:
    return run_at(write_run(tmp_path / "run"))


def test_step_card_compares_a_rank_with_the_median_of_all_ranks(recorded: RunData) -> None:
    card = rank_step(recorded.steps, 2, 30)
    assert card is not None
    assert card.window is None
    values = {value.metric: value for value in card.values}
    column = recorded.steps.part("own_us", 30, 31).values[:, 0]
    assert values["own_us"].value == column[2]
    assert values["own_us"].median == np.median(column)
    assert values["own_us"].ranks == 4
    assert values["data_us"].value > 40_000
    assert "gc_us" not in values, "nobody told it"


def test_profiled_step_links_to_the_timeline_of_its_window(recorded: RunData) -> None:
    result = rank_step(recorded.steps, 1, 22)
    assert result is not None
    assert result.window == 20
    card = write(VIEW, "step-card", recorded, PageState(rank=1, step=22))
    assert "Timeline of the window from step 20" in text_of(card, "|")
    assert "/run/run-1/timeline?rank=1&window=20&step=22" in text_of(card, "|")


def test_missing_step_records_are_reported(recorded: RunData) -> None:
    assert rank_step(recorded.steps, 9, 1) is None
    assert rank_step(recorded.steps, 0, 900) is None
    assert "no record of rank 9 in step 1" in text_of(write(VIEW, "step-card", recorded, PageState(rank=9, step=1)))
    assert write(VIEW, "step-card", recorded, PageState(rank=1)) == []
    assert "not profiled" in text_of(write(VIEW, "step-card", recorded, PageState(rank=1, step=1)))


def test_click_on_a_cell_selects_its_rank_and_step(recorded: RunData) -> None:
    cell = {"x": 7, "y": "rank 2 on node-1", "z": 1.0}
    assert pick(VIEW, "step-heatmap", recorded, PageState(), cell) == PageState(rank=2, step=7)
    assert pick(VIEW, "step-heatmap", recorded, PageState(sort="host"), {**cell, "y": "rank 3 on node-1"}).rank == 3
    mark = {"x": 12, "y": 0, "customdata": 1}
    assert pick(VIEW, "step-heatmap", recorded, PageState(), mark) == PageState(rank=1, step=12)
    assert pick(VIEW, "step-heatmap", recorded, PageState(rank=1), {**mark, "customdata": None}) == PageState(step=12)
    assert pick_row(VIEW, "rank-table", recorded, PageState(), "2").rank == 2


def test_click_on_a_binned_cell_selects_the_shown_rank_and_step(monkeypatch: pytest.MonkeyPatch, recorded: RunData) -> None:
    monkeypatch.setattr("rankscope.dashboards.charts.cells.MAX_ROWS", 2)
    monkeypatch.setattr("rankscope.dashboards.charts.cells.bin_worst.__kwdefaults__", {
        "worst": "highest", "max_rows": 2, "max_columns": 6,
    })  # fmt: skip
    cells = step_cells(recorded.steps.part("own_us").values, recorded.steps.ranks, recorded.steps.steps)
    assert (cells.values.shape, cells.rows.per_row, cells.steps_per_cell) == ((2, 6), 2, 10)
    picked = pick(VIEW, "step-heatmap", recorded, PageState(), {"x": 20, "y": "ranks 2, 3 on node-1"})
    assert picked.rank == 2
    assert picked.step is not None
    own = recorded.steps.part("own_us").values
    assert own[2, picked.step] == cells.values[1, 2] == own[2:, 20:30].max()


def test_heatmap_data_table_has_every_cell(recorded: RunData) -> None:
    table = draw(VIEW, "step-heatmap", recorded, PageState(), LIGHT).table
    assert table.columns == ("ranks", "first step", "steps", "own time, highest [us]")
    assert len(table.rows) == 4 * 60
    assert table.rows[2 * 60 + 7] == ("2", 7, 1, float(recorded.steps.part("own_us").values[2, 7]))
    assert list(table.rows[:2]) == [table.rows[0], table.rows[1]]


def test_rank_table_has_every_rank_and_separates_unknown_from_zero(memory_runs: Any) -> None:
    rows = table_rows(VIEW, "rank-table", run_of(memory_runs), PageState())
    assert [row["rank"] for row in rows] == [0, 1, 2, 3]
    assert [row["imposed_percent"] for row in rows] == [2.0, 0.0, 98.0, None]
    assert (rows[0]["profiled_ms"], rows[0]["compute_ms"]) == (80.0, pytest.approx(100 / 3)), "per profiled step"
    assert rows[2]["own_ms"] == pytest.approx(76.5)
    assert rows[2]["overlap_percent"] == pytest.approx(50)


def happened(kind: str, step: int | None, until_step: int | None, **about: Any) -> HardwareEvent:
    return HardwareEvent(
        unix_ns=1, until_unix_ns=2, host="a", gpu_uuid="GPU-1", kind=kind, detail="<b>it</b>", step=step, until_step=until_step,
        **about,
    )  # fmt: skip


def test_events_are_marked_at_their_first_and_last_step() -> None:
    figure = step_heatmap(np.ones((4, 60)), range(4), range(60), LIGHT, label="own time", unit="us")
    before = figure.layout.height
    mark_events(figure, [happened("hw_thermal", 10, 19, rank=2), happened("xid", 30, 30, simulated=True)], LIGHT, steps=(0, 59))
    error, throttled = figure.data[1:]
    assert (list(throttled.x), list(throttled.customdata)) == ([10, 19, None], [2, 2, None])
    assert (list(error.x), list(error.customdata)) == ([30, 30, None], [None, None, None])
    assert "rank 2" in throttled.hovertext[0]
    assert "steps 10 to 19" in throttled.hovertext[0]
    assert "SIMULATED" in error.hovertext[0]
    assert "<b>it" not in throttled.hovertext[0], "what a file claims is text"
    assert figure.layout.height > before, "the map keeps its room"
    assert error.marker.symbol[0] != throttled.marker.symbol[0], "not told apart by colour"


def test_every_event_kind_has_a_mark() -> None:
    figure = mark_events(go.Figure(layout={"height": 300}), [happened(kind, 1, 1) for kind in KINDS], LIGHT, steps=(0, 9))
    assert sum(len(trace.x) for trace in figure.data) == 3 * len(KINDS)


def test_events_outside_the_shown_steps_leave_the_heatmap_unchanged() -> None:
    figure = step_heatmap(np.ones((4, 60)), range(4), range(60), LIGHT, label="own time", unit="us")
    before = figure.to_json()
    for event in (happened("xid", None, None), happened("xid", 60, 61)):
        assert mark_events(figure, [event], LIGHT, steps=(0, 59)).to_json() == before


def test_event_is_clipped_to_the_shown_steps() -> None:
    figure = step_heatmap(np.ones((4, 10)), range(4), range(15, 25), LIGHT, label="own time", unit="us")
    mark_events(figure, [happened("hw_thermal", 3, 99)], LIGHT, steps=(15, 24))
    assert list(figure.data[1].x) == [15, 24, None]
    assert "steps 3 to 99" in figure.data[1].hovertext[0]
