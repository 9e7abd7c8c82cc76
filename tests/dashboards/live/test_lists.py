"""Lists of runs and of alerts: columns, what is sent after changes, the picked row, marked rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
from tests.dashboards.alert_records import alert
from tests.dashboards.live.dash_client import Caller, find

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import InputError
from rankscope.dashboards.alerts.all_alerts import row_id
from rankscope.dashboards.alerts.record import CollectedAlerts
from rankscope.dashboards.model.state import MOST_COMPARED, PageState
from rankscope.dashboards.runs.view import MOST_ASKED

RUNS = {"type": "grid", "name": "runs"}


def test_column_without_values_is_hidden(memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller) -> None:
    memory_runs.cached.add("run-1")

    def hidden() -> set[str]:
        return {column["field"] for column in find(call.opened("/"), RUNS)["columnDefs"] if column.get("hide")}

    assert not {"lost", "cost", "step_ms", "ranks", "hours"} & hidden()
    free = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, cost=None, gpu_hours_lost=None))
    memory_runs.put(free, table)
    assert {"lost", "cost"} <= hidden()


def test_number_of_rows_per_poll_is_limited(call: Caller) -> None:
    answer = call.polled("/", rows=["no-such-run", *["run-1"] * 100])
    assert len(answer["rows"]) == MOST_ASKED - 1, "the unknown one is left out"
    assert "rows" not in call.polled("/alerts", rows=["run-1"])


def test_run_list_is_sent_again_when_a_run_ends(memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller) -> None:
    memory_runs.put(analysis, table, run_id="live", status="live")
    seen = call.shown("/")["version"]

    def version() -> str:
        result: str = call.polled("/")["version"]
        return result

    assert version() == seen
    memory_runs.summaries["live"] = replace(memory_runs.summaries["live"], revision="b")
    assert version() == seen, "rows of runs that go on are asked for while they are in view"
    memory_runs.summaries["live"] = replace(memory_runs.summaries["live"], status="finished")
    assert version() != seen
    assert [row["state"] for row in call.redrawn(("grid", "runs", "rowData"), "/")] == ["Finished", "Finished"]
    assert "2 runs" in str(call.redrawn(("part", "runs-count", "children"), "/"))
    memory_runs.summaries.pop("live")
    assert len(call.redrawn(("grid", "runs", "rowData"), "/")) == 1


def test_search_text_is_in_the_url(call: Caller) -> None:
    assert find(call.opened("/", "?q=bert"), RUNS)["dashGridOptions"]["quickFilterText"] == "bert"
    chosen = call.selected(("control", "q", "ber t"), "?picked=run-1", controls={"q": ""}, path="/")
    assert PageState.parse(chosen["address"]["search"]) == PageState(q="ber t", picked="run-1")
    back = call.selected(("address", "", None), "", controls={"q": "bert"}, path="/")
    assert call.value_of(back, "q") == ""


def test_click_selects_a_row_unless_the_cell_is_a_link(call: Caller) -> None:
    picked = call.selected(("grid", "runs", {"rowId": "run-1", "colId": "cause"}), path="/")
    assert picked["address"]["search"] == "?picked=run-1"
    assert "address" not in call.selected(("grid", "runs", {"rowId": "run-1", "colId": "name"}), path="/")


def test_selected_runs_can_be_compared(call: Caller) -> None:
    def mark(*ids: str) -> str:
        name = '{"name":"runs","type":"grid"}.selectedRows'
        rows = [{"id": item} for item in ids]
        return json.dumps(call("runs-compare.children", {name: rows}, triggered=name))

    assert "/compare" not in mark("a")
    assert "/compare?runs=a,b%252Cc" in mark("a", "b,c")
    assert f"At most {MOST_COMPARED}" in mark(*map(str, range(MOST_COMPARED + 1)))


def test_open_page_updates_only_for_new_alerts(memory_runs: Any, call: Caller) -> None:
    seen = call.polled("/alerts")["version"]
    assert call.polled("/alerts")["version"] == seen
    firing = alert("firing", end_s=None)
    memory_runs.collected["run-1"] = CollectedAlerts([firing], [])
    assert call.polled("/alerts")["version"] != seen
    assert [row["alert"] for row in call.redrawn(("grid", "alerts", "rowData"), "/alerts")] == ["TrainingStraggler"]
    assert "1 alert, 1 firing" in str(call.redrawn(("part", "alerts-count", "children"), "/alerts"))
    chosen = call.redrawn(("part", "alert-picked", "children"), "/alerts", PageState(picked=row_id(firing)).search)
    assert "imposed wait" in str(chosen)
    memory_runs.problems["alerts"] = InputError("runs", "gone")
    assert "version" not in call.polled("/alerts"), "the page keeps its content"
