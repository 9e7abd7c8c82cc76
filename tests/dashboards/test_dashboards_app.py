"""The app over HTTP, as a browser sees it: pages, callbacks, headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.analysis.result import Analysis, Verdict
from rankscope.analysis.steps import StepTable
from rankscope.dashboards.app import create_app
from rankscope.dashboards.config import DashboardConfig
from rankscope.dashboards.data.disk import DiskRuns
from rankscope.dashboards.pages import wording
from rankscope.dashboards.pages.rank_table import COLUMNS
from rankscope.runs.errors import InputError

PAGE = "page.children"
START_NS = 1_790_000_000_000_000_000


def texts(component: Any) -> str:
    """All text of a serialised component tree, and of its titles."""
    if isinstance(component, dict):
        props = component.get("props", component)
        return " ".join(
            texts(props[name]) for name in ("children", "title", "label", "value", "href", "disabled") if name in props
        )
    if isinstance(component, list):
        return " ".join(map(texts, component))
    return "" if component is None else str(component)


def find(component: Any, identifier: str) -> dict[str, Any]:
    """Props of the component with that id in a serialised tree."""
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


def listed_verdict(client: Any, run_id: str = "run-1") -> Any:
    """What the list says of a run once it has been analysed."""
    identifier = {"type": "run-verdict", "run": run_id}
    key = json.dumps(identifier, sort_keys=True, separators=(",", ":"))
    output = next(spec["output"] for spec in client.http.get("/_dash-dependencies").json if "run-verdict" in spec["output"])
    answer = client.http.post(
        "/_dash-update-component",
        json={
            "output": output,
            "outputs": {"id": identifier, "property": "children"},
            "inputs": [{"id": identifier, "property": "id", "value": identifier}],
            "changedPropIds": [f"{key}.id"],
        },
    )
    return next(iter(answer.json["response"].values()))


def test_the_page_of_a_run_says_who_why_how_much_what_next(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    page = open_page(client, "/run/run-1")
    said = texts(page)
    for expected in (
        "Rank 2 on host node-1 makes the other 3 ranks wait", "Straggler", "slow input", "phase data", "rank 2", "host node-1",
        "GPU-00000002", "96%", "107% longer", "12.4 GPU-h", "31.00 USD", "100%", "4 of 4 ranks", "steps 5 to 59",
        "rankscope analyze runs/bert --format json", "Look at the data loader of rank 2", "Finished",
    ):  # fmt: skip
        assert expected in said, expected
    assert "SIMULATED" not in said


def test_the_table_has_every_rank_and_keeps_unknown_apart_from_zero(memory_runs: Any, caller: Any) -> None:
    rows = find(open_page(caller(create_app(memory_runs)), "/run/run-1"), "rank-table")["rowData"]
    assert [row["rank"] for row in rows] == [0, 1, 2, 3]
    assert [row["imposed_ms"] for row in rows] == [7.0, 0.0, 360.0, None]
    assert rows[2]["own_ms"] == pytest.approx(76.5)
    assert rows[2]["overlap_percent"] == pytest.approx(50)


def test_a_simulated_run_says_so_loudly(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    simulated = msgspec.structs.replace(analysis, source=msgspec.structs.replace(analysis.source, simulated=True))
    memory_runs.put(simulated, table, simulated=True)
    said = texts(open_page(caller(create_app(memory_runs)), "/run/run-1"))
    assert "SIMULATED" in said
    assert "made up" in said


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
    drawn = client("step-heatmap.figure", {"run.data": {"run_id": "run-1", "revision": "a"}}, triggered="run.data")
    assert "not JSON" in drawn["step-heatmap"]["figure"]["layout"]["annotations"][0]["text"]


def test_the_list_shows_each_run_with_its_verdict(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    memory_runs.put(analysis, table, run_id="bad", name="broken", status="unreadable", problem="broken/run.json: not JSON")
    client = caller(create_app(memory_runs))
    said = texts(open_page(client, "/"))
    assert "bert-base" in said
    assert "/run/run-1" in said
    assert "broken/run.json: not JSON" in said

    assert "makes the other 3 ranks wait" in texts(listed_verdict(client))


def test_runs_of_one_name_are_told_apart_by_folder_and_second(
    tmp_path: Path, write_run: Callable[..., Path], caller: Any
) -> None:
    for second in (1, 2):
        write_run(tmp_path / f"job-{second}", run_id=f"run-{second}", start_unix_ns=START_NS + second * 10**9, steps=3)
    said = texts(open_page(caller(create_app(DiskRuns(tmp_path))), "/"))
    for second in (1, 2):
        assert f"job-{second}" in said
        assert wording.moment(START_NS + second * 10**9) in said
    assert wording.moment(START_NS) != wording.moment(START_NS + 10**9)


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"status": "failed", "losses": "rank 1 killed"}, "Ended badly: rank 1 killed"),
        ({"status": "live", "losses": "rank 1 killed"}, "rank 1 killed"),
        ({"status": "silent"}, "Silent"),
    ],
)
def test_a_run_that_lost_ranks_says_so_first_and_is_never_green(
    memory_runs: Any, analysis: Analysis, caller: Any, about: dict[str, Any], expected: str
) -> None:
    table = memory_runs.tables["run-1"]
    sound = msgspec.structs.replace(
        analysis,
        source=msgspec.structs.replace(analysis.source, warnings=["rank 1 killed before the end of training", "and so on"]),
        verdict=Verdict(kind="balanced", summary="No rank stands out."),
    )
    memory_runs.put(sound, table, **about)
    memory_runs.put(analysis, table, run_id="another")
    client = caller(create_app(memory_runs))
    page, listed, verdict = open_page(client, "/run/run-1"), open_page(client, "/"), listed_verdict(client)

    for said in (texts(find(page, "run-head")), texts(listed)):
        assert expected in said
    assert texts(page).index(expected) < texts(page).index("No rank stands out.")
    assert "rank 1 killed before the end of training (and 1 more)" in texts(verdict)
    for shown in (page, verdict):
        assert "Balanced" in texts(shown)
        assert "badge-plain" in json.dumps(shown)
        assert "good" not in json.dumps(shown)


def test_a_recorder_that_gave_up_is_said(memory_runs: Any, caller: Any) -> None:
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], unrecorded="rank 2")
    assert "recorder off: rank 2" in texts(open_page(caller(create_app(memory_runs)), "/run/run-1"))


def test_evidence_is_shown_in_units_that_people_use(memory_runs: Any, caller: Any) -> None:
    said = texts(open_page(caller(create_app(memory_runs)), "/run/run-1"))
    assert "own time excess 40 ms per step" in said
    assert "p = 0.0005 permutation test" in said


def test_every_column_has_a_dash_for_what_is_not_known() -> None:
    assert all("null ? '-'" in column["valueFormatter"]["function"] for column in COLUMNS)


def test_an_empty_folder_says_how_to_record_a_run_and_looks_again(
    tmp_path: Path, write_run: Callable[..., Path], caller: Any
) -> None:
    client = caller(create_app(DiskRuns(tmp_path)))
    page = open_page(client, "/")
    assert "rankscope run -- torchrun" in texts(page)
    seen = find(page, "run-list-revision")["data"]
    values = {"run-list-poll.n_intervals": 1, "run-list-revision.data": seen}
    assert client("run-list.children", values, triggered="run-list-poll.n_intervals") == {}

    write_run(tmp_path / "first", steps=12)

    after = client("run-list.children", values, triggered="run-list-poll.n_intervals")
    assert "bert-base" in texts(after["run-list"]["children"])


def test_the_only_run_is_the_front_page(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    answer = client.http.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/run/run-1")
    memory_runs.put(analysis, table, run_id="another")
    assert client.http.get("/").status_code == 200


def test_figures_follow_run_address_and_scheme(memory_runs: Any, table: StepTable, caller: Any) -> None:
    client = caller(create_app(memory_runs))

    def draw(search: str, scheme: str | None) -> dict[str, Any]:
        values = {"run.data": {"run_id": "run-1", "revision": "a"}, "address.search": search, "scheme.data": scheme}
        heat: dict[str, Any] = client("step-heatmap.figure", values, triggered="run.data")["step-heatmap"]["figure"]
        return heat

    default, wall, dark = draw("", None), draw("?metric=wall_us&rank=1", "light"), draw("", "dark")
    assert "own time" in default["data"][0]["hovertemplate"]
    assert "step time" in wall["data"][0]["hovertemplate"]
    assert wall["layout"]["yaxis"]["ticktext"] == ["0", "<b>▸ 1</b>", "<b>⚑ 2</b>", "3"]
    assert dark["data"][0]["colorscale"] != default["data"][0]["colorscale"]
    assert draw("?metric=no_such_metric", None) == default, "a link with an unknown metric still shows something"


def test_selection_goes_into_the_address_and_back(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    ranks = [{"value": str(rank), "label": f"rank {rank}"} for rank in range(4)]

    def select(triggered: str, **values: Any) -> dict[str, Any]:
        given = {
            "metric.value": "own_us",
            "rank-pick.data": ranks,
            "address.search": "",
            **{k.replace("__", "."): v for k, v in values.items()},
        }
        answer: dict[str, Any] = client(
            "address.search", {k.replace("_pick", "-pick"): v for k, v in given.items()}, triggered=triggered
        )
        return answer

    chosen = select("metric.value", metric__value="wall_us")
    assert chosen["address"]["search"] == "?metric=wall_us"
    picked = select("rank-pick.value", rank_pick__value="3")
    assert picked["address"]["search"] == "?rank=3"
    clicked = select("breakdown-bars.clickData", **{"breakdown-bars__clickData": {"points": [{"hovertext": "2"}]}})
    assert clicked == {"address": {"search": "?rank=2"}, "rank-pick": {"value": "2"}}
    mean = select("breakdown-bars.clickData", **{"breakdown-bars__clickData": {"points": [{"hovertext": "mean"}]}})
    assert mean == {}, "the bar of the mean is no rank"
    back = select("address.search", address__search="?rank=1&metric=data_us")
    assert back == {"metric": {"value": "data_us"}, "rank-pick": {"value": "1"}}


def test_a_click_in_a_binned_map_picks_nobody(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    values = {
        "metric.value": "own_us",
        "rank-pick.data": [{"value": str(rank), "label": ""} for rank in range(1024)],
        "address.search": "",
        "step-heatmap.clickData": {"points": [{"x": 1, "y": 608}]},
    }
    assert client("address.search", values, triggered="step-heatmap.clickData") == {}


def test_a_live_run_is_followed_until_it_ends(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    memory_runs.put(analysis, table, status="live")
    client = caller(create_app(memory_runs))
    page = open_page(client, "/run/run-1")
    assert "Live" in texts(page)
    assert find(page, "poll")["disabled"] is False
    seen = find(page, "run")["data"]

    def poll() -> dict[str, Any]:
        answer: dict[str, Any] = client("run.data", {"poll.n_intervals": 1, "run.data": seen}, triggered="poll.n_intervals")
        return answer

    before = memory_runs.analysed
    unchanged = poll()
    assert "run" not in unchanged
    assert "verdict" not in unchanged
    assert memory_runs.analysed == before, "what has not changed is not analysed"

    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], status="silent")
    assert "Silent" in texts(poll()["run-head"]["children"])
    assert "verdict" in poll(), "its verdict is seen in another light"

    later = msgspec.structs.replace(analysis, verdict=msgspec.structs.replace(analysis.verdict, summary="All is well now."))
    memory_runs.put(later, table, status="finished", revision="b")
    changed = poll()
    assert changed["run"]["data"]["revision"] == "b"
    assert "All is well now." in texts(changed["verdict"]["children"])
    assert changed["poll"]["disabled"] is True
    assert "Finished" in texts(changed["run-head"]["children"])


def test_a_run_that_vanishes_while_watched_keeps_its_page(memory_runs: Any, caller: Any) -> None:
    client = caller(create_app(memory_runs))
    memory_runs.summaries.clear()
    values = {"poll.n_intervals": 1, "run.data": {"run_id": "run-1", "revision": "a"}}
    assert client("run.data", values, triggered="poll.n_intervals") == {}


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
    values = {"run.data": {"run_id": "run-1", "revision": "a"}, "address.search": ""}
    heat = client("step-heatmap.figure", values, triggered="run.data")["step-heatmap"]["figure"]
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
    assert client.http.get("/-/healthy", headers=elsewhere).status_code == 400
    assert client.http.get("/-/healthy", headers={"Host": "127.0.0.1:8050"}).status_code == 200
    remote = caller(create_app(memory_runs, DashboardConfig(allow_any_host=True)))
    assert remote.http.get("/-/healthy", headers=elsewhere).status_code == 200


def test_nothing_in_the_page_points_elsewhere(memory_runs: Any, caller: Any) -> None:
    html = caller(create_app(memory_runs)).http.get("/run/run-1").text
    assert "http://" not in html
    assert "https://" not in html


def test_a_thousand_ranks_make_a_small_page(memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any) -> None:
    ranks = [msgspec.structs.replace(analysis.ranks[0], rank=rank) for rank in range(1024)]
    memory_runs.put(msgspec.structs.replace(analysis, ranks=ranks), table)
    client = caller(create_app(memory_runs))
    assert len(json.dumps(open_page(client, "/run/run-1"))) < 700_000
    values = {"run.data": {"run_id": "run-1", "revision": "a"}}
    assert len(json.dumps(client("breakdown-bars.figure", values, triggered="run.data"))) < 100_000
