"""The app over HTTP: pages by address, downloads, headers."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
import pytest
from tests.dashboards.blocks import draw_at, page_text
from tests.dashboards.live.dash_client import RANKS, Caller

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import InputError
from rankscope.dashboards.app import create_app
from rankscope.dashboards.live.grid import column_def
from rankscope.dashboards.ranks.tables import COLUMNS as RANK_COLUMNS
from rankscope.dashboards.runs.view import COLUMNS as RUN_COLUMNS
from rankscope.dashboards.web.config import DashboardConfig


def test_page_name_is_in_the_title_and_the_navigation(call: Caller) -> None:
    assert call.page("/lost-hours")["title"] == "Lost GPU-hours · rankscope"
    links = call("site-links.children", {"url.pathname": "/lost-hours"}, triggered="url.pathname")["site-links"]["children"]
    current = [link["props"]["children"]["props"]["href"] for link in links if link["props"]["aria-current"] == "page"]
    assert current == ["/lost-hours"]


def test_every_column_shows_a_dash_for_unknown_values() -> None:
    assert all("null ? '-'" in column_def(column)["valueFormatter"]["function"] for column in [*RANK_COLUMNS, *RUN_COLUMNS])


def test_unknown_url_links_back_to_the_run_list(memory_runs: Any) -> None:
    addresses: list[Any] = ["/run/nope", "/run/<script>", "/somewhere/else", 5, ["x"], {"a": 1}]
    for path in addresses:
        output = page_text(memory_runs, path)
        assert "There is no such" in output
        assert '"children": "See all runs", "href": "/"' in output


def test_an_unreadable_run_shows_the_reason(memory_runs: Any) -> None:
    memory_runs.problems["run-1"] = InputError("runs/bert/run.json", "not JSON", place="byte 4")
    reason = "runs/bert/run.json: byte 4: not JSON"
    assert reason in page_text(memory_runs, "/run/run-1")
    assert draw_at(memory_runs, RANKS, "step-heatmap")[0].sentence == reason


def test_front_page_redirects_to_the_only_run(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    http = create_app(memory_runs).server.test_client()
    answer = http.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/run/run-1")
    memory_runs.put(analysis, table, run_id="another")
    assert http.get("/").status_code == 200


def test_figure_data_can_be_downloaded_as_csv(memory_runs: Any) -> None:
    http = create_app(memory_runs).server.test_client()
    answer = http.get("/run/run-1/delays/data/imposed-bars.csv?rank=1")
    assert answer.headers["Content-Disposition"].endswith("run-1-imposed-bars.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["rank"], float(row["imposed wait [us]"])) for row in rows] == [("2", 360_000.0), ("0", 7_000.0), ("1", 0.0)]
    for path in ("/run/run-1/data/nothing.csv", "/run/nothing/delays/data/imposed-bars.csv"):
        assert http.get(path).status_code == 404


def test_every_response_has_restrictive_security_headers(memory_runs: Any) -> None:
    http = create_app(memory_runs).server.test_client()
    for path in ("/run/run-1", "/_dash-layout", "/-/healthy", "/assets/style.css"):
        with http.get(path) as response:  # a file stays open until its response is closed
            headers = response.headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        script = next(part for part in policy.split("; ") if part.startswith("script-src"))
        assert "unsafe" not in script
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin-allow-popups"  # a page reaches the Perfetto that it opens


def test_only_loopback_and_allowed_host_names_are_served(memory_runs: Any) -> None:
    elsewhere = {"Host": "evil.example"}
    http = create_app(memory_runs).server.test_client()
    for path in ("/", "/run/run-1", "/_dash-layout", "/login", "/assets/style.css"):
        refused = http.get(path, headers=elsewhere)
        assert refused.status_code == 400
        assert "--allow-host" in refused.text
    assert http.get("/_dash-layout", headers={"Host": "127.0.0.1:8050"}).status_code == 200
    remote = create_app(memory_runs, DashboardConfig(allowed_hosts=("evil.example",))).server.test_client()
    assert remote.get("/_dash-layout", headers=elsewhere).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("127.0.0.1:8050", 200), ("[::1]:8050", 200), ("runs.example.org:443", 200), ("a.runs.test", 200),
        ("my_app:8050", 200), ("Runs.Example.org", 200), ("my_app:8050:1", 400), ("runs.example.org:abc", 400),
        ("evil.example", 400), ("localhost.evil.example", 400), ("evilruns.test", 400), ("localhost@evil.example", 400),
        ("127.0.0.1.evil.example:8050", 400), ("", 400), ("[", 400),
    ],
)  # fmt: skip
def test_host_header_must_match_a_whole_allowed_name(memory_runs: Any, host: str, status: int) -> None:
    config = DashboardConfig(allowed_hosts=("a..b", "runs.example.org", ".runs.test", "my_app"))
    http = create_app(memory_runs, config).server.test_client()
    assert http.get("/_dash-layout", headers={"Host": host}).status_code == status


def test_health_check_accepts_any_host_header(memory_runs: Any) -> None:
    assert create_app(memory_runs).server.test_client().get("/-/healthy", headers={"Host": "10.0.0.7"}).text == "ok\n"


def test_page_has_no_external_urls(memory_runs: Any) -> None:
    html = create_app(memory_runs).server.test_client().get("/run/run-1").text
    assert "http://" not in html
    assert "https://" not in html


def test_page_of_1024_ranks_is_small(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    ranks = [msgspec.structs.replace(analysis.ranks[0], rank=rank) for rank in range(1024)]
    memory_runs.put(msgspec.structs.replace(analysis, ranks=ranks), table)
    assert len(page_text(memory_runs, RANKS)) < 700_000
    drawn, _ = draw_at(memory_runs, "/run/run-1/overlap", "breakdown-bars")
    assert len(drawn.figure.to_json()) < 100_000
