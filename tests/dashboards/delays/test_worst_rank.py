"""One rank stands for a host in every table, figure and click, whatever kind of run it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dashboards.blocks import draw, figure_names, pick, run_of, table_rows
from tests.dashboards.hosts_at_fault import AT_FAULT, host_analysis, host_runs

from rankscope.analysis.result.hosts import hosts_of, worst_ranks
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.delays.view import VIEW
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.ranks.view import VIEW as RANKS
from rankscope.dashboards.store.disk import DiskRuns

BY_HOST = PageState(rows="host")


def picks(run: RunData) -> dict[str, set[int | None]]:
    """Return the ranks that each view picks for each host."""
    found: dict[str, set[int | None]] = {host.host: {host.worst} for host in hosts_of(run.analysis)}
    for row in table_rows(RANKS, "rank-table", run, BY_HOST):
        found[row["host"]] |= {row["worst"], int(row["id"])}
    if not run.delays.groups:
        return found
    shown = figure_names(VIEW, run, BY_HOST)
    if "cause-bars" in shown:
        for row in table_rows(VIEW, "rank-costs", run, BY_HOST):
            found[row["host"]].add(row["rank"])
    for name in {"imposed-bars", "cause-bars"} & {*shown}:
        rows: Any = draw(VIEW, name, run, BY_HOST).table.rows
        for row in rows:
            found[row[0]].add(pick(VIEW, name, run, BY_HOST, {"hovertext": f"host {row[0]}"}).rank)
    heat: Any = draw(VIEW, "wait-matrix", run, BY_HOST).figure.data
    for label in heat[0].y if heat and heat[0].type == "heatmap" else ():
        host = label.split(",")[0].removeprefix("host ")
        found[host].add(pick(VIEW, "wait-matrix", run, BY_HOST, {"y": label}).rank)
    return found


@pytest.mark.parametrize(
    ("kind", "about"),
    [
        ("straggler", {"slow_rank": 3}),
        ("compute_bound", {"slow_rank": None}),
        ("insufficient_data", {"slow_rank": 3, "steps": 3}),
    ],
)
def test_all_views_pick_the_same_rank_of_a_host(
    tmp_path: Path, write_run: Callable[..., Path], kind: str, about: dict[str, Any]
) -> None:
    source = DiskRuns(write_run(tmp_path / "run", ranks=8, **about))
    run = RunData(source, source.runs()[0])
    verdict, found = run.analysis.verdict, picks(run)
    assert verdict.kind == kind
    assert {len(ranks) for ranks in found.values()} == {1}, found
    if kind == "straggler":
        assert found["node-1"] == {3} == {verdict.rank}


def test_the_rank_that_the_verdict_names_stands_for_its_host() -> None:
    run = run_of(host_runs())
    assert hosts_of(run.analysis)[2].worst == run.analysis.verdict.rank == 9
    assert run.analysis.verdict.hosts == [AT_FAULT]


def test_without_a_named_rank_the_longest_own_time_decides_then_the_wait_then_the_number() -> None:
    analysis = host_analysis()
    nobody = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, rank=None, ranks=[], hosts=[]))
    unknown = msgspec.structs.replace(nobody, ranks=[msgspec.structs.replace(row, own_us=None) for row in nobody.ranks])
    assert worst_ranks(analysis, [range(16), [8, 10], [0, 10]]) == [9, 10, 10]
    assert worst_ranks(nobody, [range(16), range(4)]) == [11, 3]
    assert worst_ranks(unknown, [range(16), range(4)]) == [11, 0]
