"""Order of rows: by rank, by host, by place in the parallel layout, by imposed wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.blocks import draw

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.topology import RankPlace, Topology, row_order
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.ranks.view import VIEW
from rankscope.dashboards.store.disk import DiskRuns

LIGHT = PALETTES["light"]


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
