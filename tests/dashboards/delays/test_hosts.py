"""Imposed wait with one row per host, and the rank that stands for a host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dashboards.blocks import draw, figure_names, pick, pick_row, run_at, run_of, table_rows
from tests.dashboards.hosts_at_fault import AT_FAULT, SLOW, host_analysis, host_runs

from rankscope.analysis.result.costs import PipelineResult, StageResult
from rankscope.analysis.result.hosts import hosts_of, worst_ranks
from rankscope.dashboards.data.hosts import UNKNOWN_HOST, host_labels, host_rows
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.delays.data import Delays, RankDelay, WaitGroup
from rankscope.dashboards.delays.view import VIEW
from rankscope.dashboards.model.page import Choice, walk
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.ranks.view import VIEW as RANKS

BY_HOST = PageState(rows="host")
BY_RANK = PageState(rows="rank")


@pytest.fixture
def run() -> RunData:
    source = host_runs()
    cells = [(origin, victim, 100.0 * (origin + 1)) for origin in SLOW for victim in range(16) if victim != origin]
    group = WaitGroup(
        key="dp", label="dp", ranks=16, imposed_us=sum(us for _, _, us in cells), by_host=False,
        names=[str(rank) for rank in range(16)], members=[[rank] for rank in range(16)],
        origins=[origin for origin, _, _ in cells],
        victims=[victim for _, victim, _ in cells], waited_us=[us for _, _, us in cells],
    )  # fmt: skip
    ranks = [
        RankDelay(
            rank=rank,
            direct_us=1e3,
            knock_on_us=None,
            exposed_us=500.0,
            steps_us=1e4 * (1 + (rank == 10)),
            last_in=2,
            causes_us={"forward": 1e4 * (1 + (rank == 10))},
        )
        for rank in [*SLOW, 3]
    ]
    source.delays_of_run["run-1"] = Delays(
        matrix_source="windows", matrix_steps=3, groups=[group], groups_left_out=0, ranks=ranks, timeline=None
    )
    return run_of(source)


def test_host_bars_sum_over_the_ranks_of_the_host(run: RunData) -> None:
    drawn = draw(VIEW, "imposed-bars", run, BY_HOST)
    row: Any
    [row] = drawn.table.rows
    assert row[0] == AT_FAULT
    assert row[1] == pytest.approx(4 * 10e3 + sum(SLOW))
    assert drawn.figure.layout.yaxis.ticktext[0].startswith(f"<b>⚑ {AT_FAULT}</b>")
    assert "Host node-2" in drawn.sentence
    causes = draw(VIEW, "cause-bars", run, BY_HOST)
    assert [(row[0], row[1]) for row in causes.table.rows] == [(AT_FAULT, 5e4), ("node-0", 1e4)]


def test_rank_bars_mark_every_rank_of_a_host_at_fault(run: RunData) -> None:
    ticks = draw(VIEW, "imposed-bars", run, BY_RANK).figure.layout.yaxis.ticktext
    assert all(tick.startswith("<b>⚑ rank") for tick in ticks)


def test_click_on_a_host_bar_selects_its_worst_rank(run: RunData) -> None:
    assert pick(VIEW, "cause-bars", run, BY_HOST, {"hovertext": f"host {AT_FAULT}"}).rank == 9
    assert pick(VIEW, "cause-bars", run, BY_RANK, {"hovertext": "rank 9 on node-2"}).rank == 9


def test_wait_matrix_has_one_row_and_column_per_host(run: RunData) -> None:
    drawn = draw(VIEW, "wait-matrix", run, BY_HOST)
    heat: Any = drawn.figure.data[0]
    assert list(heat.x) == [f"host node-{at}" for at in range(4)]
    assert heat.y[2].endswith("worst rank 9")
    cells: Any = drawn.table.rows
    assert sum(row[2] for row in cells) == pytest.approx(run.delays.groups[0].imposed_us)
    assert [(shape.y0, shape.y1) for shape in drawn.figure.layout.shapes] == [(1.5, 2.5)]
    assert pick(VIEW, "wait-matrix", run, BY_HOST, {"y": heat.y[2]}).rank == 9


def test_cost_table_has_a_row_per_host(run: RunData) -> None:
    rows = table_rows(VIEW, "rank-costs", run, BY_HOST)
    assert [(row["host"], row["rank"], row["last_in"], row["direct_s"]) for row in rows] == [
        (AT_FAULT, 9, 8, 0.004),
        ("node-0", 3, 2, 0.001),
    ]
    assert rows[0]["knock_on_s"] is None, "not known is not zero"
    assert pick_row(VIEW, "rank-costs", run, BY_HOST, rows[0]["id"]).rank == 9, "that of the verdict"


def test_row_choice_is_offered_for_several_hosts(run: RunData) -> None:
    choices = [block for block in walk(VIEW.blocks(run, BY_HOST)) if isinstance(block, Choice) and block.field == "rows"]
    assert [choice.value for choice in choices] == ["host"]


def picks(run: RunData) -> dict[str, set[int | None]]:
    """Return the ranks that each view picks for each host."""
    ranks_by_host: dict[str, set[int | None]] = {host.host: {host.worst} for host in hosts_of(run.analysis)}
    for row in table_rows(RANKS, "rank-table", run, BY_HOST):
        ranks_by_host[row["host"]] |= {row["worst"], int(row["id"])}
    if not run.delays.groups:
        return ranks_by_host
    shown = figure_names(VIEW, run, BY_HOST)
    if "cause-bars" in shown:
        for row in table_rows(VIEW, "rank-costs", run, BY_HOST):
            ranks_by_host[row["host"]].add(row["rank"])
    for name in {"imposed-bars", "cause-bars"} & {*shown}:
        rows: Any = draw(VIEW, name, run, BY_HOST).table.rows
        for row in rows:
            ranks_by_host[row[0]].add(pick(VIEW, name, run, BY_HOST, {"hovertext": f"host {row[0]}"}).rank)
    heat: Any = draw(VIEW, "wait-matrix", run, BY_HOST).figure.data
    for label in heat[0].y if heat and heat[0].type == "heatmap" else ():
        host = label.split(",")[0].removeprefix("host ")
        ranks_by_host[host].add(pick(VIEW, "wait-matrix", run, BY_HOST, {"y": label}).rank)
    return ranks_by_host


@pytest.mark.parametrize(
    ("kind", "about"),
    [
        ("straggler", {"slow_rank": 3}),
        ("compute_bound", {"slow_rank": None}),
        ("insufficient_data", {"slow_rank": 3, "steps": 3}),
    ],
)
def test_every_view_selects_the_same_rank_of_a_host(
    tmp_path: Path, write_run: Callable[..., Path], kind: str, about: dict[str, Any]
) -> None:
    run = run_at(write_run(tmp_path / "run", ranks=8, **about))
    verdict, picked = run.analysis.verdict, picks(run)
    assert verdict.kind == kind
    assert {len(ranks) for ranks in picked.values()} == {1}, picked
    if kind == "straggler":
        assert picked["node-1"] == {3} == {verdict.rank}


def test_blamed_rank_is_the_worst_of_its_host() -> None:
    run = run_of(host_runs())
    assert hosts_of(run.analysis)[2].worst == run.analysis.verdict.rank == 9
    assert run.analysis.verdict.hosts == [AT_FAULT]


def test_worst_rank_falls_back_to_own_time_then_wait_then_number() -> None:
    analysis = host_analysis()
    nobody = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, rank=None, ranks=[], hosts=[]))
    unknown = msgspec.structs.replace(nobody, ranks=[msgspec.structs.replace(row, own_us=None) for row in nobody.ranks])
    assert worst_ranks(analysis, [range(16), [8, 10], [0, 10]]) == [9, 10, 10]
    assert worst_ranks(nobody, [range(16), range(4)]) == [11, 3]
    assert worst_ranks(unknown, [range(16), range(4)]) == [11, 0]


def test_a_rank_of_a_longer_stage_is_not_the_worst_of_its_host() -> None:
    analysis = host_analysis()
    nobody = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, rank=None, ranks=[], hosts=[]))
    own = {rank: 90e3 + rank if rank % 4 == 3 else 40e3 + 5e3 * (rank == 9) for rank in range(16)}
    rows = [msgspec.structs.replace(row, own_us=own[row.rank]) for row in nobody.ranks]
    last = [rank for rank in range(16) if rank % 4 == 3]
    stages = [
        StageResult(stage=stage, ranks=ranks, busy_us=0.0, bubble=0.0)
        for stage, ranks in enumerate([[rank for rank in range(16) if rank not in last], last])
    ]
    pipeline = PipelineResult(
        stages=stages, schedule=None, microbatches=None, chunks=1, steps=20, step_us=100e3, bubble=0.1, ideal_bubble=None,
        ideal_us=None, imbalance_us=None, rest_us=None, slowest_stage=1, slowest_excess=None,
    )  # fmt: skip
    staged = msgspec.structs.replace(nobody, ranks=rows, pipeline=pipeline)
    assert worst_ranks(msgspec.structs.replace(staged, pipeline=None), [range(8, 12)]) == [11]
    assert worst_ranks(staged, [range(8, 12)]) == [9]


def test_host_labels_drop_the_common_domain() -> None:
    cluster = [f"gpu-node-{number:04}.pod-1.example.org" for number in range(3)]
    assert list(host_labels(cluster).values()) == ["gpu-node-0000", "gpu-node-0001", "gpu-node-0002"]
    assert host_labels(["n1.rack1", "n1.rack2"]) == {"n1.rack1": "n1.rack1", "n1.rack2": "n1.rack2"}
    assert host_labels(["a", "a.b"]) == {"a": "a", "a.b": "a.b"}
    assert host_labels(cluster[:1]) == {cluster[0]: cluster[0]}
    rows = host_rows([cluster[0], cluster[0], UNKNOWN_HOST, cluster[1]], ["0", "1", "2", "3"])
    assert rows.labels == ["gpu-node-0000", UNKNOWN_HOST, "gpu-node-0001"]
    assert rows.names == [cluster[0], UNKNOWN_HOST, cluster[1]]
