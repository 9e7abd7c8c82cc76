"""The app over HTTP, as a browser sees it: pages, callbacks, headers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.analysis.evidence.steps import StepTable
from rankscope.analysis.result.analysis import Analysis, Verdict
from rankscope.base.errors import InputError
from rankscope.dashboards.app import create_app
from rankscope.dashboards.live.grid import column_def
from rankscope.dashboards.ranks.view import COLUMNS
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.runs.records import StepRecord

PAGE = "page.children"
START_NS = 1_790_000_000_000_000_000


def texts(component: Any) -> str:
    """Return all text of a serialised component tree, including titles."""
    if isinstance(component, dict):
        props = component.get("props", component)
        return " ".join(
            texts(props[name]) for name in ("children", "title", "label", "value", "href", "disabled") if name in props
        )
    if isinstance(component, list):
        return " ".join(map(texts, component))
    return "" if component is None else str(component)


def find(component: Any, identifier: str) -> dict[str, Any]:
    """Return the props of the component with that id in a serialised tree."""
    found = _find(component, identifier)
    assert found is not None, f"no {identifier} on the page"
    return found


def _find(component: Any, identifier: str) -> dict[str, Any] | None:
    if isinstance(component, list):
        return next((found for item in component if (found := _find(item, identifier)) is not None), None)
    if isinstance(component, dict):
        props: dict[str, Any] = component.get("props", {})
        return props if props.get("id") == identifier else _find(props.get("children"), identifier)
    return None


def open_page(client: Any, path: str, search: str = "") -> Any:
    response = client(PAGE, {"url.pathname": path, "url.search": search}, triggered="url.pathname")
    return response["page"]["children"]


def test_the_page_of_a_run_says_who_why_how_much_what_next(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    page = open_page(client, "/run/run-1")
    said = texts(page)
    for expected in (
        "Rank 2 on host node-1 makes the other 3 ranks wait", "Straggler", "slow input", "phase data", "rank 2", "host node-1",
        "GPU-00000002", "96%", "2.07x", "12.4 GPU-h", "31.00 USD", "100%", "4 of 4 ranks", "steps 5 to 59",
        "rankscope analyze runs/bert --format json", "Look at the data loader of rank 2", "Finished",
    ):  # fmt: skip
        assert expected in said, expected
    assert "SIMULATED" not in said


@pytest.mark.parametrize("name", ["waterfall", "trend", "step-heatmap"])
def test_a_figure_keeps_its_height_when_the_window_is_resized_or_printed(memory_runs: Any, caller: Any, name: str) -> None:
    client = caller(create_app(memory_runs))
    assert client.height(name) == f"{client.drawn(name)['layout']['height']}px"


def test_the_table_has_every_rank_and_keeps_unknown_apart_from_zero(memory_runs: Any, caller: Any) -> None:
    rows = caller(create_app(memory_runs)).rows("rank-table")
    assert [row["rank"] for row in rows] == [0, 1, 2, 3]
    assert [row["imposed_percent"] for row in rows] == [2.0, 0.0, 98.0, None]
    assert (rows[0]["profiled_ms"], rows[0]["compute_ms"]) == (80.0, pytest.approx(100 / 3)), "per profiled step"
    assert rows[2]["own_ms"] == pytest.approx(76.5)
    assert rows[2]["overlap_percent"] == pytest.approx(50)


def test_a_simulated_run_says_so_loudly(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    simulated = msgspec.structs.replace(analysis, source=msgspec.structs.replace(analysis.source, simulated=True))
    memory_runs.put(simulated, table, simulated=True)
    said = texts(open_page(caller(create_app(memory_runs)), "/run/run-1"))
    assert "SIMULATED" in said
    assert "readings of this run are simulated" in said


def test_warnings_and_what_is_not_known_are_said(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    vague = msgspec.structs.replace(
        analysis,
        source=msgspec.structs.replace(analysis.source, coverage=None, warnings=["rank 3 was killed"]),
        verdict=msgspec.structs.replace(analysis.verdict, confidence=None, slowdown=None, gpu_hours_lost=None, cost=None),
    )
    memory_runs.put(vague, table)
    said = texts(open_page(caller(create_app(memory_runs)), "/run/run-1"))
    assert "rank 3 was killed" in said
    assert said.count(" not known ") >= 4, "confidence, slowdown, GPU time and coverage"
    assert "USD" not in said


def test_unknown_addresses_lead_back_to_the_list(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    addresses: list[Any] = ["/run/nope", "/run/<script>", "/somewhere/else", 5, ["x"], {"a": 1}]
    for path in addresses:
        said = texts(open_page(client, path))
        assert "There is no such" in said
        assert "See all runs /" in said


def test_an_unreadable_run_shows_the_reason(memory_runs: Any, caller: Any) -> None:
    memory_runs.problems["run-1"] = InputError("runs/bert/run.json", "not JSON", place="byte 4")
    client = caller(create_app(memory_runs))
    assert "runs/bert/run.json: byte 4: not JSON" in texts(open_page(client, "/run/run-1"))
    assert "not JSON" in client.drawn("step-heatmap")["layout"]["annotations"][0]["text"]


def test_a_recorder_that_gave_up_is_said(memory_runs: Any, caller: Any) -> None:
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], unrecorded="rank 2")
    assert "recorder off: rank 2" in texts(open_page(caller(create_app(memory_runs)), "/run/run-1"))


def test_evidence_is_shown_in_units_that_people_use(memory_runs: Any, caller: Any) -> None:
    said = texts(open_page(caller(create_app(memory_runs)), "/run/run-1"))
    assert "own time excess 40 ms per step" in said
    assert "p = 0.0005 permutation test" in said


def test_every_column_has_a_dash_for_what_is_not_known() -> None:
    assert all("null ? '-'" in column_def(column)["valueFormatter"]["function"] for column in COLUMNS)


def test_the_only_run_is_the_front_page(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    answer = client.http.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/run/run-1")
    memory_runs.put(analysis, table, run_id="another")
    assert client.http.get("/").status_code == 200


def test_figures_follow_run_address_and_scheme(memory_runs: Any, table: StepTable, caller: Any) -> None:
    client = caller(create_app(memory_runs))

    default, wall, dark = (
        client.drawn("step-heatmap", search, scheme=scheme)
        for search, scheme in (("", None), ("?metric=wall_us&rank=1", "light"), ("", "dark"))
    )
    assert "own time" in default["data"][0]["hovertemplate"]
    assert "step time" in wall["data"][0]["hovertemplate"]
    assert wall["layout"]["yaxis"]["ticktext"] == ["0", "<b>▸ 1</b>", "<b>⚑ 2</b>", "3"]
    assert dark["data"][0]["colorscale"] != default["data"][0]["colorscale"]
    assert client.drawn("step-heatmap", "?metric=no_such_metric") == default, (
        "a link with an unknown metric still shows something"
    )


def test_selection_goes_into_the_address_and_back(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    shown = {"metric": "own_us", "rank": ""}

    def address_after(*happened: Any) -> str | None:
        search: str | None = client.selected(happened, controls=shown).get("address", {}).get("search")
        return search

    assert address_after("control", "metric", "wall_us") == "?metric=wall_us"
    assert address_after("control", "rank", 3) == "?rank=3"
    assert address_after("figure", "breakdown-bars", {"points": [{"hovertext": "2"}]}) == "?rank=2"
    assert address_after("figure", "breakdown-bars", {"points": [{"hovertext": "mean"}]}) is None, "the mean is no rank"
    assert address_after("figure", "step-heatmap", {"points": [{"x": 1, "y": 3}]}) == "?rank=3&step=1"
    assert address_after("figure", "step-heatmap", {"points": ["nonsense"]}) is None
    assert address_after("grid", "rank-table", {"rowId": "2", "colId": "host"}) == "?rank=2"
    assert address_after("grid", "rank-table", {"rowId": "nonsense"}) is None
    assert address_after("zoomed", "step-heatmap", [4.2, 9.7]) == "?steps=5-9"
    assert address_after("zoomed", "step-heatmap", "all") is None

    back = client.selected(("address", "", None), "?rank=1&metric=data_us", controls=shown)
    assert back[json.dumps({"name": "metric", "type": "control"}, separators=(",", ":"))]["value"] == "data_us"
    assert back[json.dumps({"name": "rank", "type": "control"}, separators=(",", ":"))]["value"] == "1"
    assert "address" not in back


def test_what_is_selected_goes_along_to_the_other_views(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    links = client.selected(("control", "rank", 3), controls={"rank": ""})["views"]["children"]
    assert "/run/run-1/overlap?rank=3" in texts(links)


def test_a_click_in_a_binned_map_picks_whose_value_the_cell_shows(
    memory_runs: Any, analysis: Analysis, a_step: StepRecord, caller: Any
) -> None:
    slow = msgspec.structs.replace(a_step, wall_us=2 * a_step.wall_us)
    memory_runs.put(analysis, StepTable.from_records(0, {rank: [slow if rank == 209 else a_step] for rank in range(300)}))
    client = caller(create_app(memory_runs))
    clicked = client.selected(("figure", "step-heatmap", {"points": [{"x": a_step.step, "y": 208}]}), controls={"rank": ""})
    assert clicked["address"]["search"] == f"?rank=209&step={a_step.step}"


def test_the_numbers_of_a_figure_can_be_saved(memory_runs: Any, caller: Any) -> None:
    http = caller(create_app(memory_runs)).http
    answer = http.get("/run/run-1/blame/data/imposed-bars.csv?rank=1")
    assert answer.headers["Content-Disposition"].endswith("run-1-imposed-bars.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["rank"], float(row["imposed wait [us]"])) for row in rows] == [("2", 360_000.0), ("0", 7_000.0), ("1", 0.0)]
    for path in ("/run/run-1/data/nothing.csv", "/run/nothing/blame/data/imposed-bars.csv"):
        assert http.get(path).status_code == 404


def test_a_live_run_is_followed_until_it_ends(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    memory_runs.put(analysis, table, status="live")
    client = caller(create_app(memory_runs))
    page = open_page(client, "/run/run-1")
    assert "Live" in texts(page)
    assert find(page, "poll")["disabled"] is False
    seen = find(page, "shown")["data"]

    def poll() -> dict[str, Any]:
        answer: dict[str, Any] = client("shown.data", {"poll.n_intervals": 1, "shown.data": seen}, triggered="poll.n_intervals")
        return answer

    before = memory_runs.analysed
    unchanged = poll()
    assert "shown" not in unchanged
    assert "verdict" not in unchanged
    assert memory_runs.analysed == before, "what has not changed is not analysed"

    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], status="silent")
    assert "Silent" in texts(poll()["run-head"]["children"])
    assert "shown" in poll(), "its verdict is seen in another light"

    later = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, summary="All is well now."))
    memory_runs.put(later, table, status="finished", revision="b")
    changed = poll()
    assert changed["shown"]["data"]["version"] == "b"
    assert "All is well now." in texts(client.written("verdict"))
    assert changed["poll"]["disabled"] is True
    assert "Finished" in texts(changed["run-head"]["children"])


def test_the_page_waits_for_the_analysis_of_what_has_changed(
    memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any
) -> None:
    memory_runs.put(analysis, table, status="live")
    client = caller(create_app(memory_runs))
    seen = find(open_page(client, "/run/run-1"), "shown")["data"]

    def poll() -> dict[str, Any]:
        answer: dict[str, Any] = client("shown.data", {"poll.n_intervals": 1, "shown.data": seen}, triggered="poll.n_intervals")
        return answer

    memory_runs.put(analysis, table, status="live", revision="b")
    memory_runs.versions["run-1"] = "a"
    assert "shown" not in poll(), "the files have changed, the analysis has not"

    memory_runs.versions["run-1"] = "b"
    assert poll()["shown"]["data"]["version"] == "b", "now it has, and nothing else"


def test_a_run_that_vanishes_while_watched_keeps_its_page(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    memory_runs.summaries.clear()
    values = {"poll.n_intervals": 1, "shown.data": {"path": "/run/run-1", "version": "a"}}
    assert set(client("shown.data", values, triggered="poll.n_intervals")) == {"run-away"}, "which says so"


def test_a_finished_run_is_not_polled(memory_runs: Any, caller: Any) -> None:
    assert find(open_page(caller(create_app(memory_runs)), "/run/run-1"), "poll")["disabled"] is True


def test_a_silent_run_says_since_when(memory_runs: Any, caller: Any) -> None:
    memory_runs.summaries["run-1"] = replace(
        memory_runs.summaries["run-1"], status="silent", last_write_unix_ns=1_790_000_000_000_000_000
    )
    said = texts(open_page(caller(create_app(memory_runs)), "/run/run-1"))
    assert "Silent" in said
    assert "2026-09-21" in said


def test_a_run_without_a_step_says_what_is_missing(tmp_path: Path, write_run: Callable[..., Path], caller: Any) -> None:
    write_run(tmp_path / "run", ranks=0)
    client = caller(create_app(DiskRuns(tmp_path)))
    assert "Not enough data" in texts(open_page(client, "/run/run-1"))
    heat = client.drawn("step-heatmap")
    assert "No step has been recorded yet" in heat["layout"]["annotations"][0]["text"]


def test_a_verdict_on_nobody_does_not_list_what_it_could_not_know(
    memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any
) -> None:
    nothing = Verdict(kind="insufficient_data", summary="Not enough data for a verdict.")
    memory_runs.put(msgspec.structs.replace(analysis, verdict=nothing), table)
    facts = texts(find(open_page(caller(create_app(memory_runs)), "/run/run-1"), "verdict"))
    assert "Confidence" not in facts
    assert "not known" not in facts
    assert "Evidence 60 steps" in facts


def test_every_response_forbids_what_pages_do_not_need(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    for path in ("/run/run-1", "/_dash-layout", "/-/healthy", "/assets/style.css"):
        with client.http.get(path) as response:  # a file stays open until its response is closed
            headers = response.headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        script = next(part for part in policy.split("; ") if part.startswith("script-src"))
        assert "unsafe" not in script
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"


def test_only_loopback_names_are_answered_unless_told_otherwise(memory_runs: Any, caller: Any) -> None:
    elsewhere = {"Host": "evil.example"}
    client = caller(create_app(memory_runs))
    for path in ("/", "/run/run-1", "/_dash-layout", "/login", "/assets/style.css"):
        refused = client.http.get(path, headers=elsewhere)
        assert refused.status_code == 400
        assert "--allow-host" in refused.text
    assert client.http.get("/_dash-layout", headers={"Host": "127.0.0.1:8050"}).status_code == 200
    remote = caller(create_app(memory_runs, DashboardConfig(allowed_hosts=("evil.example",))))
    assert remote.http.get("/_dash-layout", headers=elsewhere).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("127.0.0.1:8050", 200), ("[::1]:8050", 200), ("runs.example.org:443", 200), ("a.runs.test", 200),
        ("my_app:8050", 200), ("Runs.Example.org", 200), ("my_app:8050:1", 400), ("runs.example.org:abc", 400),
        ("evil.example", 400), ("localhost.evil.example", 400), ("evilruns.test", 400), ("localhost@evil.example", 400),
        ("127.0.0.1.evil.example:8050", 400), ("", 400), ("[", 400),
    ],
)  # fmt: skip
def test_a_name_is_answered_as_a_whole(memory_runs: Any, host: str, status: int) -> None:
    config = DashboardConfig(allowed_hosts=("a..b", "runs.example.org", ".runs.test", "my_app"))
    http = create_app(memory_runs, config).server.test_client()
    assert http.get("/_dash-layout", headers={"Host": host}).status_code == status


def test_a_probe_may_ask_under_any_name(memory_runs: Any, caller: Any) -> None:
    assert caller(create_app(memory_runs)).http.get("/-/healthy", headers={"Host": "10.0.0.7"}).text == "ok\n"


def test_nothing_in_the_page_points_elsewhere(memory_runs: Any, caller: Any) -> None:
    html = caller(create_app(memory_runs)).http.get("/run/run-1").text
    assert "http://" not in html
    assert "https://" not in html


def test_a_thousand_ranks_make_a_small_page(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    ranks = [msgspec.structs.replace(analysis.ranks[0], rank=rank) for rank in range(1024)]
    memory_runs.put(msgspec.structs.replace(analysis, ranks=ranks), table)
    client = caller(create_app(memory_runs))
    assert len(json.dumps(open_page(client, "/run/run-1/ranks"))) < 700_000
    assert len(json.dumps(client.drawn("breakdown-bars"))) < 100_000
