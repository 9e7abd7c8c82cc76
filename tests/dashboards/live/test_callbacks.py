"""Callbacks of a run's page: what is redrawn, selected and followed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.dashboards.hosts_at_fault import host_analysis, host_table
from tests.dashboards.live.dash_client import RANKS, Caller, find
from tests.dashboards.recorded_run import START_NS

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError, Stale
from rankscope.dashboards.live.pages import STALE_CONTENT
from rankscope.dashboards.words.wording import not_renewed

RUN = "/run/run-1"


def test_figures_follow_run_url_and_colour_scheme(call: Caller) -> None:
    default, wall, dark, unknown = (
        call.redrawn(("figure", "step-heatmap", "figure"), RANKS, search, scheme=scheme)
        for search, scheme in (("", None), ("?metric=wall_us&rank=1", "light"), ("", "dark"), ("?metric=no_such_metric", None))
    )
    assert "own time" in default["data"][0]["hovertemplate"]
    assert "step time" in wall["data"][0]["hovertemplate"]
    assert wall["layout"]["yaxis"]["ticktext"] == ["0", "<b>▸ 1</b>", "<b>⚑ 2</b>", "3"]
    assert dark["data"][0]["colorscale"] != default["data"][0]["colorscale"]
    assert unknown == default, "a link with an unknown metric still shows something"


def test_page_contains_its_figures_in_the_browser_colour_scheme(call: Caller) -> None:
    identifier: Any = {"name": "step-heatmap", "type": "figure"}
    light, dark = (find(call.page(RANKS, "?rank=1", scheme)["content"], identifier) for scheme in ("light", "dark"))
    assert light["figure"] == call.redrawn(("figure", "step-heatmap", "figure"), RANKS, "?rank=1")
    assert dark["figure"] == call.redrawn(("figure", "step-heatmap", "figure"), RANKS, "?rank=1", scheme="dark")
    caption = find(call.opened(RANKS), {"name": "step-heatmap", "type": "says"})
    assert "60 steps" in caption["children"]
    assert caption["data-waits"] is None


def test_page_parts_captions_and_tables_follow_the_run(
    memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller
) -> None:
    later = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, summary="All is well now."))
    memory_runs.put(msgspec.structs.replace(later, ranks=later.ranks[:3]), table)
    assert "All is well now." in str(call.redrawn(("part", "verdict", "children"), RUN))
    assert [row["rank"] for row in call.redrawn(("grid", "rank-table", "rowData"), RANKS)] == [0, 1, 2]
    assert "60 steps" in call.redrawn(("says", "step-heatmap", "children"), RANKS)


def test_table_by_host_has_host_columns_and_rows(memory_runs: Any, call: Caller) -> None:
    memory_runs.put(host_analysis(), host_table())
    by_host = {
        prop: call.redrawn(("grid", "rank-table", prop), RANKS, "?rows=host") for prop in ("rowData", "columnDefs", "style")
    }
    assert [row["host"] for row in by_host["rowData"]] == ["node-0", "node-1", "node-2", "node-3"]
    assert {column["field"] for column in by_host["columnDefs"]} >= {"host", "worst"}
    assert by_host["style"]["height"] == "262px"


@pytest.mark.parametrize(("path", "name"), [(RUN, "waterfall"), (RUN, "trend"), (RANKS, "step-heatmap")])
def test_figure_style_has_the_height_of_its_layout(call: Caller, path: str, name: str) -> None:
    height = call.redrawn(("figure", name, "figure"), path)["layout"]["height"]
    assert call.redrawn(("figure", name, "style"), path)["height"] == f"{height}px"


def test_note_that_replaces_a_figure_has_no_minimum_width(call: Caller) -> None:
    assert "minWidth" not in call.redrawn(("figure", "step-heatmap", "style"), RANKS)
    assert call.redrawn(("figure", "alert-times", "style"), "/run/run-1/alerts")["minWidth"] == "0"


def test_selection_is_written_to_and_read_from_the_url(call: Caller) -> None:
    shown = {"metric": "own_us", "rank": ""}

    def address_after(*happened: Any, path: str = RANKS) -> str | None:
        search: str | None = call.selected(happened, controls=shown, path=path).get("address", {}).get("search")
        return search

    assert address_after("control", "metric", "wall_us") == "?metric=wall_us"
    assert address_after("control", "rank", 3) == "?rank=3"
    overlap = f"{RUN}/overlap"
    assert address_after("figure", "breakdown-bars", {"points": [{"hovertext": "rank 2 on node-1"}]}, path=overlap) == "?rank=2"
    assert address_after("figure", "breakdown-bars", {"points": [{"hovertext": "mean"}]}, path=overlap) is None, "it is no rank"
    assert address_after("figure", "step-heatmap", {"points": [{"x": 1, "y": "rank 3 on node-1"}]}) == "?rank=3&step=1"
    assert address_after("figure", "step-heatmap", {"points": ["nonsense"]}) is None
    assert address_after("grid", "rank-table", {"rowId": "2", "colId": "host"}) == "?rank=2"
    assert address_after("grid", "rank-table", {"rowId": "nonsense"}) is None
    assert address_after("zoomed", "step-heatmap", [4.2, 9.7]) == "?steps=5-9"
    assert address_after("zoomed", "step-heatmap", "all") is None

    back = call.selected(("address", "", None), "?rank=1&metric=data_us", controls=shown)
    assert call.value_of(back, "metric") == "data_us"
    assert call.value_of(back, "rank") == 1
    assert "address" not in back


def test_choice_on_the_comparison_page_is_in_the_url(call: Caller) -> None:
    chosen = call.selected(("control", "by", "rank"), "?runs=a,b", controls={"by": "host"}, path="/compare")
    assert chosen["address"]["search"] == "?runs=a,b&by=rank"
    back = call.selected(("address", "", None), "?runs=a,b", controls={"by": "rank"}, path="/compare")
    assert call.value_of(back, "by") == "host"
    assert "address" not in back


def test_controls_show_the_selection_of_the_url(memory_runs: Any, call: Caller) -> None:
    memory_runs.put(host_analysis(), host_table())
    click = ("figure", "step-heatmap", {"points": [{"x": 1, "y": "node-1"}]})
    by_host = {"rows": "host", "rank": ""}
    clicked = call.selected(click, controls=by_host)
    assert call.value_of(clicked, "rank") == 4
    assert not any('"rows"' in changed for changed in clicked), "without a choice it shows the verdict's unit, and stays so"
    back = call.selected(("address", "", None), "", controls=by_host | {"rows": "rank"})
    assert call.value_of(back, "rows") == "host"


def test_selection_is_kept_in_links_to_other_views(call: Caller) -> None:
    links = call.selected(("control", "rank", 3), controls={"rank": ""})["views"]["children"]
    assert "'/run/run-1/overlap?rank=3'" in str(links)


def test_live_run_is_polled_until_the_run_ends(memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller) -> None:
    memory_runs.put(analysis, table, status="live")
    seen = call.shown(RUN)
    assert seen["every_ms"] > 0

    before = memory_runs.analysed
    assert call.polled(RUN)["version"] == seen["version"]
    assert memory_runs.analysed == before, "what has not changed is not analysed"

    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], status="silent")
    assert call.polled(RUN)["version"] != seen["version"], "its verdict is seen in another light"
    assert "Silent" in str(call.redrawn(("part", "run-head", "children"), RUN))

    memory_runs.put(analysis, table, status="finished", revision="b")
    changed = call.polled(RUN)
    assert changed["version"] == "b finished"
    assert changed["every_ms"] == 0, "then its page polls no longer"
    assert "Finished" in str(call.redrawn(("part", "run-head", "children"), RUN))
    assert call.shown(RUN)["every_ms"] == 0


def test_live_page_shows_the_last_step_and_its_age(memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller) -> None:
    memory_runs.put(analysis, table, status="live", last_write_unix_ns=time.time_ns() - 2 * 10**9)
    for live in (call.shown(RUN)["live"], call.polled(RUN)["live"]):
        assert live["step"] == 59
        assert 2 <= live["age_s"] < 60
    memory_runs.put(analysis, table, status="finished", last_write_unix_ns=time.time_ns())
    assert call.polled(RUN)["live"] is None


def test_page_updates_only_after_the_new_analysis(memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller) -> None:
    memory_runs.put(analysis, table, status="live")
    seen = call.shown(RUN)["version"]

    memory_runs.put(analysis, table, status="live", revision="b")
    memory_runs.versions["run-1"] = "a"
    assert call.polled(RUN)["version"] == seen, "the files have changed, the analysis has not"

    memory_runs.versions["run-1"] = "b"
    assert call.polled(RUN)["version"] != seen, "now it has, and nothing else"


def test_page_of_a_run_that_became_unreadable_stays_with_a_note(memory_runs: Any, call: Caller) -> None:
    away = memory_runs.summaries.pop("run-1")
    answer = call.polled(RUN)
    assert "version" not in answer
    assert answer["note"].startswith(STALE_CONTENT)
    assert "run-1" in answer["note"]

    memory_runs.summaries["run-1"] = away
    assert call.polled(RUN)["note"] == ""

    memory_runs.stales["run-1"] = stale = Stale(START_NS, "No space left on device")
    assert call.polled(RUN)["note"] == not_renewed(stale)


def test_pending_page_is_redrawn_with_its_progress(memory_runs: Any, call: Caller) -> None:
    memory_runs.problems["run-1"] = NotReadyError(Progress("reading the records of all ranks", 3, 8))
    seen = call.shown(RUN)
    assert seen["whole"]
    assert call.polled(RUN, whole=True)["version"] == seen["version"], "no news"
    memory_runs.problems["run-1"] = NotReadyError(Progress("reading the records of all ranks", 4, 8))
    assert call.polled(RUN, whole=True)["version"] != seen["version"]
    memory_runs.problems.clear()
    assert call.polled(RUN, whole=True)["version"] == call.shown(RUN)["version"]
    assert not call.shown(RUN)["whole"]


def test_pending_figure_is_marked_as_waiting(memory_runs: Any, call: Caller) -> None:
    def waits() -> str | None:
        result: str | None = call.redrawn(("says", "trend", "data-waits"), RUN)
        return result

    assert waits() is None
    memory_runs.problems["run-1"] = NotReadyError(Progress("reading"))
    assert waits() == "1"


def test_malformed_poll_request_is_ignored(call: Caller) -> None:
    assert call("answer.data", {"asked.data": 5}, triggered="asked.data") == {}
    for nonsense in ({}, {"rows": 5}, {"rows": [None, {}], "search": 7, "whole": "x"}):
        assert "rows" not in call.polled("/nowhere", **nonsense)


def test_comparison_page_is_kept_while_pending_and_on_an_error(
    memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller
) -> None:
    memory_runs.put(analysis, table, run_id="b")
    search = "?runs=run-1,b"
    memory_runs.problems["compare"] = NotReadyError(Progress("reading the runs", 1, 2))
    seen = call.shown("/compare", search)["version"]
    assert call.polled("/compare", search=search, whole=True)["version"] == seen
    memory_runs.problems["compare"] = RankscopeError("one of them is gone")
    assert "version" not in call.polled("/compare", search=search, whole=True)


def test_page_keeps_its_content_while_an_update_is_computed(memory_runs: Any, call: Caller) -> None:
    memory_runs.problems["run-1"] = NotReadyError(Progress("reading the records of all ranks", 3, 8))
    assert "version" not in call.polled(RUN)
