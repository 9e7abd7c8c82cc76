"""Callbacks of the lists of runs and of alerts: what comes from the address, and what is sent after changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from tests.dashboards.live.dash_client import Caller, find

from rankscope.analysis.evidence.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import InputError
from rankscope.dashboards.alerts.all_alerts import row_id
from rankscope.dashboards.alerts.data import AlertsFound, alert_record
from rankscope.dashboards.live.listing import MOST_ASKED
from rankscope.dashboards.model.list_state import MOST_COMPARED, ListState
from rankscope.dashboards.runs.view import list_revision

FIRING = alert_record(
    {"alertname": "TrainingStraggler", "severity": "warning", "run_id": "run-1", "rank": "2"},
    {"summary": "Rank 2 is slow.", "evidence": "imposed wait"},
    state="firing",
    started_unix_ns=1_790_000_000_000_000_000,
    ended_unix_ns=None,
    source="watcher",
)


def test_a_column_without_a_value_is_hidden(memory_runs: Any, analysis: Analysis, table: StepTable, call: Caller) -> None:
    memory_runs.known.add("run-1")

    def hidden() -> set[str]:
        columns = find(call.opened("/"), "runs-grid")["columnDefs"]
        return {column["field"] for column in columns if column.get("hide")}

    assert not {"lost", "cost", "step_ms", "ranks", "hours"} & hidden()
    free = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, cost=None, gpu_hours_lost=None))
    memory_runs.put(free, table)
    assert {"lost", "cost"} <= hidden()


def test_so_many_are_answered_at_a_time_and_nonsense_is_not(call: Caller) -> None:
    asked = {"number": 3, "ids": ["no-such-run", *["run-1"] * 100]}
    answer = call("runs-answer.data", {"runs-asked.data": asked}, triggered="runs-asked.data")["runs-answer"]["data"]
    assert answer["number"] == 3
    assert len(answer["rows"]) == MOST_ASKED - 1, "the unknown one is left out"
    for nonsense in (None, 5, {"ids": 5}, {"number": 1}):
        assert call("runs-answer.data", {"runs-asked.data": nonsense}, triggered="runs-asked.data") == {}


def test_only_what_changed_is_sent(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Callable[[], Caller]) -> None:
    memory_runs.put(analysis, table, run_id="live", status="live")
    seen = list_revision(memory_runs.runs())

    def poll() -> Any:  # a new app each time, because answers are cached for a while
        values = {"run-list-poll.n_intervals": 1, "run-list-revision.data": seen}
        return caller()("runs-grid.rowData", values, triggered="run-list-poll.n_intervals")

    assert poll() == {}
    memory_runs.summaries["live"] = replace(memory_runs.summaries["live"], revision="b")
    assert poll() == {}, "rows of runs that go on are asked for while they are in view"
    memory_runs.summaries["live"] = replace(memory_runs.summaries["live"], status="finished")
    changed = poll()
    assert [row["state"] for row in changed["runs-grid"]["rowData"]] == ["Finished", "Finished"]
    assert changed["runs-count"]["children"] == "2 runs"
    memory_runs.summaries.pop("live")
    assert len(poll()["runs-grid"]["rowData"]) == 1


def test_search_and_order_come_from_the_address(call: Caller) -> None:
    grid = find(call.opened("/", "?q=bert&sort=-lost"), "runs-grid")
    assert grid["dashGridOptions"]["quickFilterText"] == "bert"
    assert {column["field"]: column["sort"] for column in grid["columnDefs"] if column.get("sort")} == {"lost": "desc"}


def test_two_selected_runs_can_be_compared(call: Caller) -> None:
    def select(*ids: str) -> str:
        values = {"runs-address.search": ListState(picked=ids).search}
        return json.dumps(call("runs-compare.children", values, triggered="runs-address.search"))

    assert "/compare" not in select("a")
    assert "/compare?runs=a,b%252Cc" in select("a", "b,c")
    assert f"At most {MOST_COMPARED}" in select(*map(str, range(MOST_COMPARED + 1)))


def test_the_open_page_learns_of_new_alerts_and_else_stays_as_it_is(memory_runs: Any, call: Caller) -> None:
    def poll(seen: str) -> dict[str, Any]:
        told: dict[str, Any] = call("alerts-grid.rowData", {"alerts-revision.data": seen}, triggered="alerts-poll.n_intervals")
        return told

    revision = poll("")["alerts-revision"]["data"]
    assert poll(revision) == {}
    memory_runs.alerts_found["run-1"] = AlertsFound([FIRING], [])

    answer = poll(revision)

    assert [row["alert"] for row in answer["alerts-grid"]["rowData"]] == ["TrainingStraggler"]
    assert answer["alerts-count"]["children"] == "1 alert, 1 firing"
    memory_runs.problems["alerts"] = InputError("runs", "gone")
    assert poll(revision) == {}
    search = ListState(picked=(row_id(FIRING),)).search
    memory_runs.problems.clear()
    chosen = call("alerts-picked.children", {"alerts-address.search": search}, triggered="alerts-address.search")
    assert "imposed wait" in str(chosen)
