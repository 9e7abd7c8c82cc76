"""Compression of answers, how long browsers keep scripts and styles, and how many requests are answered at a time."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from flask.testing import FlaskClient

from rankscope.dashboards.app import create_app
from rankscope.dashboards.web import delivery
from rankscope.dashboards.web.server import answering

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

GZIP = {"Accept-Encoding": "gzip, deflate"}


@pytest.fixture
def http(memory_runs: Any) -> FlaskClient:
    """Client of the app."""
    client: FlaskClient = create_app(memory_runs).server.test_client()
    return client


def test_scripts_and_styles_of_a_page_are_compressed_and_kept(http: FlaskClient) -> None:
    addresses = re.findall(r'(?:src|href|data-plotly)="(/[^"]+\.(?:js|css)[^"]*)"', http.get("/run/run-1").text)
    assert any("plotly" in address for address in addresses)
    assert any("early.js" in address for address in addresses)
    for address in addresses:
        with http.get(address) as plain, http.get(address, headers=GZIP) as packed:
            assert "immutable" in packed.headers["Cache-Control"], address
            if len(plain.data) > 2_000:
                assert packed.headers["Content-Encoding"] == "gzip", address
                assert len(packed.data) < len(plain.data) / 1.5, address


def test_the_library_of_the_tables_is_no_script_of_a_page(http: FlaskClient) -> None:
    page = http.get("/run/run-1").text
    assert re.findall(r'<link id="library-dash_ag_grid"[^>]* href="/_dash-component-suites/dash_ag_grid/[^"]+\.js">', page)
    assert not re.search(r"<script[^>]*ag_grid", page)


def test_a_script_without_a_version_is_asked_for_again(http: FlaskClient) -> None:
    address = "/_dash-component-suites/dash/dcc/async-graph.js"
    first = http.get(address, headers=GZIP)
    assert "immutable" not in first.headers.get("Cache-Control", "")
    again = http.get(address, headers={**GZIP, "If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_no_answer_is_taken_for_another_ones(http: FlaskClient) -> None:
    answers = [http.get(path, headers=GZIP) for path in ("/_dash-layout", "/_dash-dependencies")]
    assert [answer.headers["Content-Encoding"] for answer in answers] == ["gzip", "gzip"]
    assert answers[0].data != answers[1].data


def test_a_script_is_compressed_once(http: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "/_dash-component-suites/dash/dcc/async-graph.js"
    first = http.get(address, headers=GZIP).data
    monkeypatch.setattr("gzip.compress", lambda *_: pytest.fail("compressed again"))
    assert http.get(address, headers=GZIP).data == first


def test_made_up_versions_do_not_fill_the_memory() -> None:
    kept = delivery._CompressedCache()
    for number in range(10_000):
        kept.set(f"gzip;/_dash-component-suites/dash/a.v{number}m1.js", b"")
    assert len(kept._cache) < 100


def test_a_health_check_does_not_wait_for_requests_that_are_being_answered() -> None:
    may_answer, begun = threading.Event(), threading.Semaphore(0)

    def slow(environ: WSGIEnvironment, _start: StartResponse) -> list[bytes]:
        if environ["PATH_INFO"] != "/-/healthy":
            begun.release()
            assert may_answer.wait(60)
        return [environ["PATH_INFO"].encode()]

    app = answering(slow, 2)
    with ThreadPoolExecutor(8) as pool:
        requests = [pool.submit(app, {"PATH_INFO": "/page"}, lambda *_: None) for _ in range(4)]  # type: ignore[arg-type]
        assert begun.acquire(timeout=60)
        assert begun.acquire(timeout=60)
        assert app({"PATH_INFO": "/-/healthy"}, lambda *_: None) == [b"/-/healthy"]  # type: ignore[arg-type]
        assert not begun.acquire(blocking=False), "two at a time"
        may_answer.set()
        assert [request.result() for request in requests] == 4 * [[b"/page"]]
