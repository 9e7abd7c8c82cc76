"""Callbacks of a run's page: what is redrawn, selected and followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.dashboards.hosts_at_fault import host_analysis, host_table
from tests.dashboards.live.dash_client import RANKS, Caller, find

from rankscope.analysis.evidence.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.dashboards.data.source import Stale
from rankscope.dashboards.live.redraw import AS_IT_WAS
from rankscope.dashboards.words.wording import not_renewed

RUN = "/run/run-1"


def poll(call: Caller, seen: Any, away: str = "") -> dict[str, Any]:
    """Return the changes of the page of a run after its timer has fired."""
    values = {"poll.n_intervals": 1, "shown.data": seen, "run-away.children": away}
    return call("shown.data", values, triggered="poll.n_intervals")


def test_figures_follow_run_address_and_scheme(call: Caller) -> None:
    default, wall, dark, unknown = (
        call.redrawn(("figure", "step-heatmap", "figure"), RANKS, search, scheme=scheme)
        for search, scheme in (("", None), ("?metric=wall_us&rank=1", "light"), ("", "dark"), ("?metric=no_such_metric", None))
    )
    assert "own time" in default["data"][0]["hovertemplate"]
    assert "step time" in wall["data"][0]["hovertemplate"]
    assert wall["layout"]["yaxis"]["ticktext"] == ["0", "<b>▸ 1</b>", "<b>⚑ 2</b>", "3"]
    assert dark["data"][0]["colorscale"] != default["data"][0]["colorscale"]
    assert unknown == default, "a link with an unknown metric still shows something"


def test_parts_captions_and_tables_follow_the_run(memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller) -> None:
    later = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, summary="All is well now."))
    memory_runs.put(msgspec.structs.replace(later, ranks=later.ranks[:3]), table)
    assert "All is well now." in str(call.redrawn(("part", "verdict", "children"), RUN))
    assert [row["rank"] for row in call.redrawn(("grid", "rank-table", "rowData"), RANKS)] == [0, 1, 2]
    assert "60 steps" in call.redrawn(("says", "step-heatmap", "children"), RANKS)


def test_a_table_gets_the_columns_of_hosts_with_their_rows(memory_runs: Any, call: Caller) -> None:
    memory_runs.put(host_analysis(), host_table())
    by_host = {
        prop: call.redrawn(("grid", "rank-table", prop), RANKS, "?rows=host") for prop in ("rowData", "columnDefs", "style")
    }
    assert [row["host"] for row in by_host["rowData"]] == ["node-0", "node-1", "node-2", "node-3"]
    assert {column["field"] for column in by_host["columnDefs"]} >= {"host", "slowest"}
    assert by_host["style"]["height"] == "262px"


@pytest.mark.parametrize(("path", "name"), [(RUN, "waterfall"), (RUN, "trend"), (RANKS, "step-heatmap")])
def test_a_figure_keeps_its_height_when_the_window_is_resized_or_printed(call: Caller, path: str, name: str) -> None:
    height = call.redrawn(("figure", name, "figure"), path)["layout"]["height"]
    assert call.redrawn(("figure", name, "style"), path)["height"] == f"{height}px"


def test_selection_goes_into_the_address_and_back(call: Caller) -> None:
    shown = {"metric": "own_us", "rank": ""}

    def address_after(*happened: Any, path: str = RANKS) -> str | None:
        search: str | None = call.selected(happened, controls=shown, path=path).get("address", {}).get("search")
        return search

    assert address_after("control", "metric", "wall_us") == "?metric=wall_us"
    assert address_after("control", "rank", 3) == "?rank=3"
    overlap = f"{RUN}/overlap"
    assert address_after("figure", "breakdown-bars", {"points": [{"hovertext": "2"}]}, path=overlap) == "?rank=2"
    assert address_after("figure", "breakdown-bars", {"points": [{"hovertext": "mean"}]}, path=overlap) is None, "it is no rank"
    assert address_after("figure", "step-heatmap", {"points": [{"x": 1, "y": 3}]}) == "?rank=3&step=1"
    assert address_after("figure", "step-heatmap", {"points": ["nonsense"]}) is None
    assert address_after("grid", "rank-table", {"rowId": "2", "colId": "host"}) == "?rank=2"
    assert address_after("grid", "rank-table", {"rowId": "nonsense"}) is None
    assert address_after("zoomed", "step-heatmap", [4.2, 9.7]) == "?steps=5-9"
    assert address_after("zoomed", "step-heatmap", "all") is None

    back = call.selected(("address", "", None), "?rank=1&metric=data_us", controls=shown)
    assert call.value_of(back, "metric") == "data_us"
    assert call.value_of(back, "rank") == "1"
    assert "address" not in back


def test_a_choice_on_a_page_of_many_runs_is_in_the_address(call: Caller) -> None:
    chosen = call.selected(("control", "by", "rank"), "?runs=a,b", controls={"by": "host"}, path="/compare")
    assert chosen["address"]["search"] == "?runs=a,b&by=rank"
    back = call.selected(("address", "", None), "?runs=a,b", controls={"by": "rank"}, path="/compare")
    assert call.value_of(back, "by") == "host"
    assert "address" not in back


def test_what_is_selected_goes_along_to_the_other_views(call: Caller) -> None:
    links = call.selected(("control", "rank", 3), controls={"rank": ""})["views"]["children"]
    assert "'/run/run-1/overlap?rank=3'" in str(links)


def test_a_live_run_is_followed_until_it_ends(memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller) -> None:
    memory_runs.put(analysis, table, status="live")
    page = call.opened(RUN)
    assert find(page, "poll")["disabled"] is False
    seen = find(page, "shown")["data"]

    before = memory_runs.analysed
    assert poll(call, seen) == {}
    assert memory_runs.analysed == before, "what has not changed is not analysed"

    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], status="silent")
    changed = poll(call, seen)
    assert "Silent" in str(changed["run-head"]["children"])
    assert "shown" in changed, "its verdict is seen in another light"

    memory_runs.put(analysis, table, status="finished", revision="b")
    changed = poll(call, seen)
    assert changed["shown"]["data"]["version"] == "b"
    assert changed["poll"]["disabled"] is True
    assert "Finished" in str(changed["run-head"]["children"])
    assert find(call.opened(RUN), "poll")["disabled"] is True


def test_the_page_waits_for_the_analysis_of_what_has_changed(
    memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller
) -> None:
    memory_runs.put(analysis, table, status="live")
    seen = find(call.opened(RUN), "shown")["data"]

    memory_runs.put(analysis, table, status="live", revision="b")
    memory_runs.versions["run-1"] = "a"
    assert "shown" not in poll(call, seen), "the files have changed, the analysis has not"

    memory_runs.versions["run-1"] = "b"
    assert poll(call, seen)["shown"]["data"]["version"] == "b", "now it has, and nothing else"


def test_a_run_that_cannot_be_read_keeps_its_page_which_says_so_until_it_can(memory_runs: Any, call: Caller) -> None:
    seen = find(call.opened(RUN), "shown")["data"]
    away = memory_runs.summaries.pop("run-1")
    answer = poll(call, seen)
    assert set(answer) == {"run-away"}
    said = answer["run-away"]["children"]
    assert said.startswith(AS_IT_WAS)
    assert "run-1" in said

    memory_runs.summaries["run-1"] = away
    assert poll(call, seen, said) == {"run-away": {"children": ""}}

    memory_runs.stales["run-1"] = stale = Stale(1_790_000_000_000_000_000, "No space left on device")
    assert poll(call, seen) == {"run-away": {"children": not_renewed(stale)}}
