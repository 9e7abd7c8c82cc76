"""Rows of the map and table of ranks: their order, and one per host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.blocks import draw, pick, pick_row, run_of, table_rows
from tests.dashboards.hosts_at_fault import AT_FAULT, SLOW, host_runs

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.topology import RankPlace, Topology, row_order
from rankscope.dashboards.model.page import Choice, Table, find
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.ranks.view import VIEW
from rankscope.dashboards.store.disk import DiskRuns

BY_HOST = PageState(rows="host")
BY_RANK = PageState(rows="rank")
LIGHT = PALETTES["light"]


@pytest.fixture
def run() -> RunData:
    return run_of(host_runs())


def test_the_map_has_a_row_per_host_with_its_worst_rank(run: RunData) -> None:
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


def test_a_click_on_a_host_picks_the_rank_whose_value_it_shows(run: RunData) -> None:
    after = pick(VIEW, "step-heatmap", run, BY_HOST, {"x": 5, "y": "node-3"})
    assert (after.rank, after.step, after.rows) == (13, 5, "host")
    assert pick(VIEW, "step-heatmap", run, BY_HOST, {"x": 6, "y": AT_FAULT}).rank in SLOW


def test_hosts_are_in_the_chosen_order(run: RunData) -> None:
    drawn = draw(VIEW, "step-heatmap", run, PageState(rows="host", sort="imposed"))
    assert next(iter(drawn.figure.data[0].y)) == AT_FAULT


def test_a_host_at_fault_is_one_row_unless_ranks_are_chosen(run: RunData) -> None:
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


def test_the_row_of_a_host_opens_into_its_ranks(run: RunData) -> None:
    opened = replace(BY_HOST, rank=5)
    figure = draw(VIEW, "step-heatmap", run, opened).figure
    assert list(figure.data[0].y)[1:6] == ["node-1", *(f"rank {rank} on node-1" for rank in range(4, 8))]
    assert "<b>▸ rank 5</b>" in figure.layout.yaxis.ticktext
    assert pick(VIEW, "step-heatmap", run, opened, {"x": 3, "y": "rank 6 on node-1"}).rank == 6


def test_in_rows_of_ranks_those_of_a_host_at_fault_are_framed_together(run: RunData) -> None:
    layout = draw(VIEW, "step-heatmap", run, BY_RANK).figure.layout
    assert [(shape.y0, shape.y1) for shape in layout.shapes] == [(7.5, 11.5)]
    assert "<b>⚑ 8 to 11</b>" in layout.yaxis.ticktext


def test_the_table_has_a_row_per_host(run: RunData) -> None:
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
def test_there_is_no_choice_where_hosts_say_no_more_than_ranks(hosts: list[str | None]) -> None:
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


def test_what_can_be_sorted_by_is_what_is_known() -> None:
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
def test_rows_in_order(sort: str, order: list[int]) -> None:
    waits = [imposed(2, 5.0), imposed(6, 9.0), imposed(1, 0.0)]
    assert row_order(EIGHT, waits, sort) == order


@pytest.mark.parametrize("sort", ["host", "dp"])
def test_what_is_not_known_comes_last(sort: str) -> None:
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
def test_every_row_is_there_once_whatever_ranks_claim(places: list[RankPlace], sort: str) -> None:
    assert sorted(row_order(Topology(places), [imposed(1, 2.0)], sort)) == list(range(len(places)))


def test_a_run_tells_where_its_ranks_are(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    write_run(tmp_path / "run")
    source = DiskRuns(tmp_path / "run")
    topology = source.part("run-1", "topology")
    assert [(place.rank, place.host, place.local_rank) for place in topology.places] == [
        (0, "node-0", 0), (1, "node-0", 1), (2, "node-1", 0), (3, "node-1", 1),
    ]  # fmt: skip
    run = RunData(source, source.summary("run-1"))
    drawn = draw(VIEW, "step-heatmap", run, PageState(sort="imposed"), LIGHT)
    assert next(iter(drawn.figure.data[0].y)) == "rank 2 on node-1", "the slow one first"
