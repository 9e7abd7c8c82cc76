"""Access to the pages: tokens, sessions, proxies, and requests from other sites."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.base.errors import InputError
from rankscope.dashboards.app import create_app
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.web.login import local
from rankscope.dashboards.web.token import SESSION_S, Token, read_token
from rankscope.dashboards.web.trusted_proxy import TrustedProxy

SECRET = "0123456789abcdef0123456789abcdef"
TOKEN = Token(SECRET)
PROXY = TrustedProxy("X-Forwarded-User", (ip_network("10.0.0.0/30"),))
NAVIGATION = {"Sec-Fetch-Site": "none"}


@pytest.fixture
def http(memory_runs: Any) -> Callable[..., Any]:
    """Factory ``http(token=…, …)`` of an HTTP client of an app with those settings."""

    def make(**settings: Any) -> Any:
        return create_app(memory_runs, DashboardConfig(**settings)).server.test_client()

    return make


def log_in(browser: Any, token: str = SECRET, to: str = "/run/run-1", **options: Any) -> Any:
    return browser.post("/login", data={"token": token, "next": to}, **options)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "short",
        "a" * 64,
        "abcdefg" * 10,
        "two words that are long enough",
        "ümläutümläutümläutümläut",
        "0123456789abcdef0123456789\n",
    ],
)
def test_weak_or_malformed_token_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="openssl rand"):
        Token(secret)


def test_token_is_not_in_reprs_or_cookies(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    token = read_token(tmp_path / "token")
    assert token.matches(SECRET)
    assert SECRET not in f"{token!r} {DashboardConfig(token=token)!r} {token.cookie} {token.new_session()}"


def test_oversized_token_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "token").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(InputError, match="no token"):
        read_token(tmp_path / "token")


def test_session_expires_and_is_valid_for_one_token_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    session = TOKEN.new_session()
    assert TOKEN.is_session(session)
    assert Token(SECRET).is_session(session), "another worker, or the next start"
    assert not Token(SECRET[::-1]).is_session(session)
    monkeypatch.setattr(time, "time", lambda: now + SESSION_S - 1)
    assert TOKEN.is_session(session)
    monkeypatch.setattr(time, "time", lambda: now + SESSION_S + 2)
    assert not TOKEN.is_session(session)


@given(st.text() | st.from_regex(r"session\.[\w-]{6}\.[\w-]{43}", fullmatch=True))
def test_forged_session_cookie_is_rejected(cookie: str) -> None:
    assert not TOKEN.is_session(cookie)
    assert not TOKEN.matches(cookie)


def test_session_expiry_cannot_be_tampered_with() -> None:
    about, at, signature = TOKEN.new_session().split(".")
    assert not TOKEN.is_session(f"{about}.{at[:-1]}{'A' if at[-1] != 'A' else 'B'}.{signature}")


@pytest.mark.parametrize(
    "path", ["/", "/run/run-1", "/run/run-1?rank=2&metric=wall_us", "/run/%2e%2e", "/run/%D7%A9", "/nothing"]
)
def test_anonymous_client_is_redirected_to_login_and_back(http: Any, path: str) -> None:
    browser = http(token=TOKEN)
    sent = browser.get(path)
    assert sent.status_code == 302
    page = browser.get(sent.location)
    assert page.status_code == 200
    assert "<script" not in page.text
    assert "form-action 'self'" in page.headers["Content-Security-Policy"]
    to = page.text.partition('name="next" value="')[2].partition('"')[0].replace("&amp;", "&")

    completed = log_in(browser, to=to)
    assert (completed.status_code, completed.location) == (303, to)
    assert browser.get(completed.location).status_code in (200, 302)
    assert "login" not in str(browser.get(completed.location).location)


@pytest.mark.parametrize(
    "path",
    ["/_dash-layout", "/_dash-dependencies", "/_reload-hash", "/api/page?path=/", "/api/run/run-1/capture/1", "/_favicon.ico"],
)
def test_api_request_without_login_is_a_json_401(http: Any, path: str) -> None:
    refused = http(token=TOKEN).get(path)
    assert refused.status_code == 401
    assert "Bearer" in refused.json["error"]
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")


def test_callbacks_require_a_login(http: Any) -> None:
    browser = http(token=TOKEN)
    body: dict[str, Any] = {"output": "x.y", "inputs": []}
    refused = browser.post("/_dash-update-component", json=body)
    assert refused.status_code == 401
    assert "log in" in refused.json["error"]
    log_in(browser)
    assert browser.post("/_dash-update-component", json=body).status_code not in (401, 403)


def test_health_check_and_assets_need_no_login(http: Any) -> None:
    browser = http(token=TOKEN)
    for path in ("/-/healthy", "/assets/style.css", "/login"):
        with browser.get(path) as answer:
            assert answer.status_code == 200
    for path in ("/assets/../_dash-layout", "/assets/%2e%2e/_dash-layout", "/-/healthy/../../run/run-1", "/login/x"):
        with browser.get(path) as answer:
            assert "_dash-component-suites" not in answer.text
            assert answer.status_code in (302, 308, 401, 404), path


def test_session_cookie_is_http_only_and_same_site(http: Any) -> None:
    cookie = log_in(http(token=TOKEN)).headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Lax", "Path=/", f"Max-Age={SESSION_S}"):
        assert part in cookie
    assert "Secure" not in cookie, "it would not be sent by HTTP at all"
    behind = http(token=TOKEN, proxy=PROXY)
    https = {"X-Forwarded-Proto": "https"}
    assert "Secure" in log_in(behind, headers=https, environ_base={"REMOTE_ADDR": "10.0.0.1"}).headers["Set-Cookie"]


def test_session_cookie_is_secure_behind_a_tls_proxy(http: Any) -> None:
    for headers in ({"X-Forwarded-Proto": "https"}, {"X-Forwarded-Proto": "http, https"}):
        assert "Secure" in log_in(http(token=TOKEN), headers=headers).headers["Set-Cookie"]
    assert "Secure" not in log_in(http(token=TOKEN), headers={"X-Forwarded-Proto": "http"}).headers["Set-Cookie"]


def test_wrong_token_is_refused_with_a_message(http: Any) -> None:
    browser = http(token=TOKEN)
    for _ in range(20):
        wrong = log_in(browser, "<b>wrong</b>")
        assert wrong.status_code == 401
        assert "That is not the token." in wrong.text
        assert "wrong</b>" not in wrong.text
        assert "Set-Cookie" not in wrong.headers
    assert log_in(browser).status_code == 303, "the right one, also after others behind the same proxy were wrong"


def test_failed_logins_are_logged_without_the_token(http: Any, caplog: pytest.LogCaptureFixture) -> None:
    log_in(http(token=TOKEN), "hunter2hunter2")
    (line,) = caplog.messages
    assert "127.0.0.1" in line
    assert "hunter2" not in line


def test_bearer_token_authenticates_api_requests(http: Any) -> None:
    browser = http(token=TOKEN)
    assert browser.get("/_dash-layout", headers={"Authorization": f"bearer {SECRET}"}).status_code == 200
    for wrong in ("Bearer", "Bearer x", f"Basic {SECRET}", SECRET):
        assert browser.get("/_dash-layout", headers={"Authorization": wrong}).status_code == 401
    assert browser.get("/", headers={"Authorization": "Bearer x"}).status_code == 401
    passed_on_by_a_proxy = {"Authorization": "Basic YW5uOnMzY3IzdA=="}
    assert browser.get("/", headers=passed_on_by_a_proxy).location.startswith("/login")


def test_logout_ends_the_session(http: Any) -> None:
    browser = http(token=TOKEN)
    log_in(browser)
    assert "Log out" in browser.get("/login").text
    assert browser.get("/login?next=/run/run-1").location == "/run/run-1", "nothing to ask for"
    assert browser.post("/logout").location == "/login"
    assert browser.get("/_dash-layout").status_code == 401


def test_pages_behind_a_login_are_not_cached(http: Any) -> None:
    browser = http(token=TOKEN)
    log_in(browser)
    assert browser.get("/run/run-1").headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "evil",
        "",
        "/\t/evil.example",
        "/\n",
        "http://[",
        "///evil.example",
        "/é",
    ],
)
def test_login_does_not_redirect_to_another_site(http: Any, address: str) -> None:
    assert local(address) == "/"
    assert log_in(http(token=TOKEN), to=address).location == "/"


@given(st.text())
def test_redirect_target_is_always_a_local_path(address: str) -> None:
    to = local(address)
    assert to.startswith("/")
    assert to[1:2] not in ("/", "\\")


def test_hostile_redirect_target_is_escaped_in_the_login_page(http: Any) -> None:
    page = http(token=TOKEN).get("/login?next=/%22%3E%3Cscript%3Ealert(1)%3C/script%3E").text
    assert "<script" not in page


def test_user_header_is_trusted_only_from_the_proxy_address(http: Any) -> None:
    browser = http(proxy=PROXY)
    alice = {"X-Forwarded-User": "alice"}
    inside = {"environ_base": {"REMOTE_ADDR": "10.0.0.2"}}
    assert browser.get("/_dash-layout", headers=alice, **inside).status_code == 200
    assert browser.get("/_dash-layout", headers=alice, environ_base={"REMOTE_ADDR": "::ffff:10.0.0.2"}).status_code == 200
    assert browser.get("/_dash-layout", headers={"X-Forwarded-User": "  "}, **inside).status_code == 401
    assert browser.get("/_dash-layout", **inside).status_code == 401
    for address in ("10.0.0.4", "127.0.0.1", "::1", "", "nonsense"):
        refused = browser.get(
            "/_dash-layout", headers={**alice, "X-Forwarded-For": "10.0.0.2"}, environ_base={"REMOTE_ADDR": address}
        )
        assert refused.status_code == 401, address


def test_login_page_behind_a_proxy_without_token_refers_to_the_proxy(http: Any) -> None:
    browser = http(proxy=PROXY)
    page = browser.get(browser.get("/").location)
    assert "the proxy in front of it" in page.text
    assert "<form" not in page.text
    assert log_in(browser, "").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, 403),
        ({"Origin": "http://localhost"}, 303),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 303),
        ({}, 303),
    ],
)
def test_cross_site_login_requests_are_refused(http: Any, headers: dict[str, str], status: int) -> None:
    assert log_in(http(token=TOKEN), headers=headers).status_code == status


@pytest.mark.parametrize(("origin", "status"), [("http://my_app:8050", 303), ("http://other_app:8050", 403)])
def test_same_origin_check_accepts_host_names_with_underscores(http: Any, origin: str, status: int) -> None:
    browser = http(token=TOKEN, allowed_hosts=("my_app",))
    assert log_in(browser, headers={"Host": "my_app:8050", "Origin": origin}).status_code == status


@pytest.mark.parametrize("settings", [{}, {"token": TOKEN}])
def test_cross_site_callbacks_are_refused_on_loopback_too(http: Any, settings: dict[str, Any]) -> None:
    browser = http(**settings)
    for method in ("post", "put", "delete", "patch"):
        refused = getattr(browser, method)("/_dash-update-component", json={}, headers={"Sec-Fetch-Site": "cross-site"})
        assert refused.status_code == 403
        assert "another site" in json.loads(refused.text)["error"]


def test_server_without_token_and_proxy_needs_no_login(http: Any) -> None:
    browser = http()
    assert browser.get("/run/run-1").status_code == 200
    assert "nobody needs to log in" in browser.get("/login").text
    assert "Log in" not in json.dumps(browser.get("/_dash-layout").json)


def test_internal_request_marker_cannot_be_set_by_a_header(http: Any) -> None:
    browser = http(token=TOKEN)
    for name in ("rankscope.ourselves", "Rankscope.Ourselves", "HTTP_RANKSCOPE_OURSELVES"):
        assert browser.get("/_dash-layout", headers={name: "True"}).status_code == 401
