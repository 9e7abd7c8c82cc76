"""Capture requests to a live run from the page: the request in the run, and refusals with their reasons."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.dashboards.app import create_app
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.timeline.capture import NotLiveError, request_capture
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.web.token import Token
from rankscope.dashboards.web.trusted_proxy import TrustedProxy
from rankscope.runs.control import MAX_AGE_SECONDS, MAX_STEPS, ControlAnswer, ControlInbox, ControlRequest, answer

SECRET = "0123456789abcdef0123456789abcdef"
TOKEN = Token(SECRET)
URL = "/api/run/run-1/capture"
BEARER = {"Authorization": f"Bearer {SECRET}"}
FROM_PAGE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def run(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """Folder of a live run."""
    return write_run(tmp_path / "run", finished=False)


def client(path: Path, **settings: Any) -> Any:
    return create_app(DiskRuns(path), DashboardConfig(**{"token": TOKEN, **settings})).server.test_client()


def requests_in(run: Path) -> list[ControlRequest]:
    """Return the pending capture requests as the job reads them."""
    return ControlInbox(run, "capture", since_unix_ns=0, report=pytest.fail).pending(now=True)


def test_capture_request_reaches_the_job_and_returns_its_answer(run: Path) -> None:
    http = client(run)
    response = http.post(URL, json={"steps": 5}, headers=BEARER)
    assert response.status_code == 202
    [request] = requests_in(run)
    assert response.json == {"request_id": request.id, "run_id": "run-1", "state": "asked", "steps": 5}
    assert (request.kind, request.steps, request.ranks, request.note) == ("capture", 5, None, "requested on the dashboard")

    def state() -> Any:
        return http.get(f"{URL}/{request.id}", headers=BEARER).json

    assert state()["state"] == "asked"
    answer(run, ControlAnswer(id=request.id, accepted=True, attempt=0, first_step=70, last_step=74, answered_unix_ns=1))
    assert state() == {"request_id": request.id, "run_id": "run-1", "state": "accepted", "first_step": 70, "last_step": 74}


def test_reason_of_a_refused_request_is_escaped(run: Path) -> None:
    http = client(run)
    name = http.post(URL, json={}, headers=BEARER).json["request_id"]
    reason = "profiling windows are off\u202e\x1b[31m"
    answer(run, ControlAnswer(id=name, accepted=False, reason=reason, answered_unix_ns=1))
    json = http.get(f"{URL}/{name}", headers=BEARER).json
    assert json["state"] == "refused"
    assert json["reason"] == r"profiling windows are off\u202e\x1b[31m"


def test_logged_in_user_can_request_only_from_a_same_origin_page(run: Path) -> None:
    http = client(run)
    http.post("/login", data={"token": SECRET})
    assert http.post(URL, json={"steps": 1}, headers=FROM_PAGE).status_code == 202
    # given requests that a page of another site could make a browser send
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://other.example"}):
        refused = http.post(URL, json={"steps": 1}, headers=headers)
        assert refused.status_code == 403
        assert refused.json["error"].count("\n") == 0
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert http.post(URL, data='{"steps": 1}', content_type=kind, headers=FROM_PAGE).status_code == 415
    assert len(requests_in(run)) == 1, "the one that was meant"


def test_capture_request_without_token_is_refused(run: Path) -> None:
    proxy = TrustedProxy("X-User")
    for settings, headers, status, item in (
        ({}, FROM_PAGE, 401, "log in"),
        ({}, {**FROM_PAGE, "Authorization": "Bearer wrong"}, 401, "log in"),
        ({"token": None}, FROM_PAGE, 403, "--token-file FILE"),
        ({"token": None}, {**FROM_PAGE, **BEARER}, 403, "--token-file FILE"),
        ({"token": None, "proxy": proxy}, {**FROM_PAGE, "X-User": "alice"}, 403, "--token-file FILE"),
        ({"proxy": proxy}, {**FROM_PAGE, "X-User": "alice"}, 403, "/login"),
    ):
        refused = client(run, **settings).post(URL, json={"steps": 1}, headers=headers)
        assert refused.status_code == status, (settings, headers)
        assert item in refused.json["error"]
    assert not (run / "control").exists()


def test_user_named_by_the_proxy_is_recorded_in_the_request(run: Path) -> None:
    http = client(run, proxy=TrustedProxy("X-User"))
    http.post("/login", data={"token": SECRET}, headers={"X-User": "alice"})
    assert http.post(URL, json={}, headers={**FROM_PAGE, "X-User": "alice"}).status_code == 202
    assert requests_in(run)[0].note == "requested on the dashboard by alice"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "3",
        "[]",
        "{",
        '{"steps": 0}',
        f'{{"steps": {MAX_STEPS + 1}}}',
        '{"steps": "3"}',
        '{"steps": 1.5}',
        '{"step": 3}',
        "\xff",
        "[" * 4000,
    ],
)
def test_malformed_capture_request_is_400(run: Path, body: str) -> None:
    refused = client(run).post(URL, data=body.encode("latin-1"), content_type="application/json", headers=BEARER)
    assert refused.status_code == 400
    assert '{"steps": N}' in refused.json["error"]
    assert not (run / "control").exists()


def test_oversized_request_body_is_413(run: Path) -> None:
    assert client(run).post(URL, data=b" " * 10_000, content_type="application/json", headers=BEARER).status_code == 413


@pytest.mark.parametrize(
    ("about", "status", "message"),
    [
        ({"finished": True}, 409, "the run is over"),
        ({"ranks": 0, "finished": False}, 409, "nothing has been recorded yet"),
        ({"run_id": "another", "finished": False}, 404, "no run 'run-1'"),
    ],
)
def test_capture_of_a_finished_empty_or_unknown_run_is_refused(
    tmp_path: Path, write_run: Callable[..., Path], about: dict[str, Any], status: int, message: str
) -> None:
    http = client(write_run(tmp_path / "run", **about))
    refused = http.post(URL, json={"steps": 1}, headers=BEARER)
    assert refused.status_code == status
    assert message in refused.json["error"]
    assert not (tmp_path / "run" / "control").exists()


@pytest.mark.parametrize(("minutes", "asked"), [(3, True), (6, False)])
def test_long_silent_run_is_not_sent_a_request(run: Path, minutes: int, asked: bool) -> None:
    then = time.time() - 60 * minutes
    for path in run.rglob("*"):
        os.utime(path, (then, then))
    source = DiskRuns(run)
    assert source.summary("run-1").status == "silent"
    if asked:
        assert request_capture(source, "run-1", 2).state == "asked"
    else:
        with pytest.raises(NotLiveError, match="no step has been recorded for 6 min"):
            request_capture(source, "run-1", 2)


def test_run_without_write_access_refuses_with_status_403(run: Path) -> None:
    (run / "control").write_text("")
    refused = client(run).post(URL, json={}, headers=BEARER)
    assert refused.status_code == 403
    assert "write access to the run" in refused.json["error"]


def test_capture_request_is_not_written_through_a_link(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    source, http = DiskRuns(tmp_path), client(tmp_path)
    (run / "control").symlink_to(elsewhere)
    assert source.summary("run-1").problem is None, "the link stays within the folder of runs"
    refused = http.post(URL, json={}, headers=BEARER)
    assert refused.status_code == 403
    assert "symbolic link" in refused.json["error"]
    assert list(elsewhere.iterdir()) == []


def test_unknown_capture_request_is_404(run: Path) -> None:
    http = client(run)
    for name in ("1790000000000000000-0123abcd", "..%2f..%2frun.json", "x", "%00"):
        response = http.get(f"{URL}/{name}", headers=BEARER)
        assert response.status_code == 404
    assert http.get("/api/run/..%2f..%2fetc/capture/x", headers=BEARER).status_code == 404


def test_unanswered_capture_request_becomes_void(run: Path, write_run: Callable[..., Path]) -> None:
    http = client(run)
    name = http.post(URL, json={}, headers=BEARER).json["request_id"]
    old = f"{int(name.partition('-')[0]) - int(MAX_AGE_SECONDS * 2e9):019d}-0123abcd"
    (run / "control" / f"{old}.json").write_bytes((run / "control" / f"{name}.json").read_bytes())
    json = http.get(f"{URL}/{old}", headers=BEARER).json
    assert (json["state"], "did not answer" in json["reason"]) == ("void", True)

    write_run(run, finished=True)

    json = http.get(f"{URL}/{name}", headers=BEARER).json
    assert json["state"] == "void"
    assert "the run is over" in json["reason"]


def test_capture_response_for_a_hostile_run_id_is_json(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    hostile = "a/../b<script>\u202e"
    write_run(tmp_path / "run", run_id=hostile, finished=False)
    http = client(tmp_path)
    response = http.post("/api/run/a%2F..%2Fb%3Cscript%3E%E2%80%AE/capture", json={}, headers=BEARER)
    assert response.status_code == 202
    assert response.mimetype == "application/json"
    assert msgspec.json.decode(response.data)["run_id"] == hostile
