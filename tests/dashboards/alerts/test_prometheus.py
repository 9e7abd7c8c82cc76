"""Alerts from a Prometheus: a real one, an absent one, and servers with hostile answers."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.local_http import answering, respond
from tests.monitoring_servers import prometheus_server

from rankscope.base.errors import InputError
from rankscope.dashboards.alerts.data import alerts_of
from rankscope.dashboards.alerts.prometheus import (
    Prometheus,
    PrometheusDownError,
    PrometheusError,
    PrometheusServer,
    prometheus_alerts,
)

BEGAN_S = 1_790_000_000
SPAN = (BEGAN_S * 10**9, (BEGAN_S + 600) * 10**9)
SECRET = "s3cr3t"


# A real Prometheus -----------------------------------------------------------------------------------------------------------


def samples(name: str, labels: str, value: Callable[[int], float], *, last_s: int = 600) -> list[str]:
    return [f"{name}{{{labels}}} {value(second)} {BEGAN_S + second}" for second in range(0, last_s + 1, 10)]


def past() -> str:
    """Return alerts that fired, one of which ended after a while."""
    families: dict[str, list[str]] = {
        "ALERTS": samples(
            "ALERTS",
            'alertname="RankSilent",alertstate="firing",run_id="r1",rank="3",severity="critical"',
            lambda _: 1,
            last_s=120,
        )
        + samples("ALERTS", 'alertname="SomebodyElses",alertstate="firing"', lambda _: 1)
        + samples("ALERTS", 'alertname="GpuDown",alertstate="firing",uuid="GPU-2"', lambda _: 1)
    }
    return "".join(f"# TYPE {name} gauge\n" + "\n".join(lines) + "\n" for name, lines in families.items())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prometheus_server(tmp_path_factory.mktemp("prometheus"), samples=past()) as url:
        yield url


@pytest.mark.slow
def test_past_alerts_come_from_the_prometheus_history(real: str) -> None:
    silent, down = sorted(
        prometheus_alerts(Prometheus(PrometheusServer(url=real)), SPAN), key=lambda alert: alert.name, reverse=True
    )

    # Then one alert is past, with start and end; Prometheus keeps a series without new samples for 5 minutes
    assert (silent.name, silent.state, silent.run_id, silent.rank, silent.severity) == (
        "RankSilent",
        "resolved",
        "r1",
        3,
        "critical",
    )
    assert silent.started_unix_ns == SPAN[0]
    assert silent.ended_unix_ns is not None
    assert 120 * 10**9 < silent.ended_unix_ns - SPAN[0] <= (120 + 300 + 15) * 10**9

    # And one has no known end; alerts that are neither rankscope's nor about a run are left out
    assert (down.name, down.state, down.ended_unix_ns, down.run_id) == ("GpuDown", "lost", None, None)


@pytest.mark.slow
def test_invalid_expression_shows_the_error_of_prometheus(real: str) -> None:
    with pytest.raises(PrometheusError, match=r"^http://127\.0\.0\.1:\d+: cannot answer: .*parse error"):
        Prometheus(PrometheusServer(url=real)).query_range("sum(", span_unix_ns=SPAN, step_s=15)


@pytest.mark.slow
def test_server_without_alerts_gives_an_empty_list(real: str) -> None:
    client = Prometheus(PrometheusServer(url=real))

    assert client.alerts() == []


# Servers that answer anything --------------------------------------------------------------------------------------------------


class Hostile:
    """A server that answers with ``answer(request)`` and keeps its requests."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: Callable[[BaseHTTPRequestHandler], None] = lambda it: respond(it, 200, b"{}")
        self.requests: list[tuple[str, dict[str, str], bytes]] = []

    def take(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        self.requests.append((request.path, dict(request.headers), body))
        self.answer(request)


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    server = Hostile()
    with answering(server.take) as server.url:
        yield server


def matrix(*samples: Any) -> bytes:
    return msgspec.json.encode({"status": "success", "data": {"resultType": "matrix", "result": list(samples)}})


def never_end(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        time.sleep(0.02)
        request.wfile.write(b" ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda it: respond(it, 200, b'{"status":"succ'), "is not one of Prometheus' API"),
        (lambda it: respond(it, 200, b"<html>"), "is a Prometheus there"),
        (lambda it: respond(it, 200, b"{}"), "is not one of Prometheus' API"),
        (lambda it: respond(it, 200, b"\xff\xfe"), "is not one of Prometheus' API"),
        (lambda it: respond(it, 200, b'{"status":"success","data":{"resultType":"vector","result":7}}'), "is not one of"),
        (lambda it: respond(it, 200, b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}'), "is not one of"),
        (lambda it: respond(it, 200, matrix({"metric": {}, "values": [[1e300, "1"]]})), "a time no clock shows"),
        (lambda it: respond(it, 200, b"x" * 100, Content_Length="9999"), "cannot be read"),
        (lambda it: respond(it, 200, b"x" * 2**21), "larger than 1 MiB"),
        (lambda it: respond(it, 200, gzip.compress(b" " * 2**24), Content_Encoding="gzip"), "larger than 1 MiB"),
        (lambda it: respond(it, 200, b"no gzip", Content_Encoding="gzip"), "cannot be read"),
        (lambda it: respond(it, 500, b"oops"), "answered 500"),
        (lambda it: respond(it, 503, b'{"status":"error","error":"too many\\n\\u001b[31mqueries"}'), "cannot answer: too many��"),
        (lambda it: respond(it, 404), r"has no Prometheus API \(404\)"),
        (lambda it: respond(it, 401), "--prometheus-token-file"),
        (lambda it: it.wfile.write(b"\x00\x01 not http\r\n\r\n"), "cannot be read"),
    ],
)  # fmt: skip
def test_malformed_server_response_is_a_one_line_error(
    hostile: Hostile, answer: Callable[[BaseHTTPRequestHandler], None], says: str
) -> None:
    hostile.answer = answer

    with pytest.raises(PrometheusError, match=says) as caught:
        Prometheus(PrometheusServer(url=hostile.url), max_bytes=2**20).query_range("up", span_unix_ns=SPAN, step_s=15)

    assert str(caught.value).startswith(f"{hostile.url}: ")
    assert str(caught.value).isprintable()


def test_redirect_is_not_followed_and_gets_no_credentials(hostile: Hostile, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    hostile.answer = lambda it: respond(it, 302, Location=f"{hostile.url}/elsewhere")

    with pytest.raises(PrometheusError, match="answered 302; redirects are not followed"):
        Prometheus(PrometheusServer(url=hostile.url, token_file=tmp_path / "token")).alerts()

    assert [path for path, _, _ in hostile.requests] == ["/api/v1/alerts"]


@pytest.mark.slow
def test_endless_answer_is_cut_off_at_the_timeout(hostile: Hostile) -> None:
    hostile.answer = never_end

    with pytest.raises(PrometheusDownError, match=r"no (whole )?answer within 2 s"):
        Prometheus(PrometheusServer(url=hostile.url), answer_s=2).query_range("up", span_unix_ns=SPAN, step_s=15)


def test_refused_connection_suggests_checking_that_prometheus_runs() -> None:
    with pytest.raises(PrometheusDownError, match=r"cannot be reached: .*refused; is Prometheus running there"):
        Prometheus(PrometheusServer(url="http://127.0.0.1:9")).alerts()


@pytest.mark.parametrize(
    ("token", "header"), [(f"{SECRET}\n", f"Bearer {SECRET}"), (f"ann:{SECRET}\n", "Basic YW5uOnMzY3IzdA==")]
)
def test_credentials_come_from_a_reread_file_or_the_environment(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, header: str
) -> None:
    hostile.answer = lambda it: respond(it, 200, b'{"status":"success","data":{"alerts":[]}}')
    file = tmp_path / "token"
    file.write_text("old")
    client = Prometheus(PrometheusServer(url=hostile.url, token_file=file))

    # When the token file has been renewed
    file.write_text(token)
    client.alerts()
    monkeypatch.setenv("RANKSCOPE_PROMETHEUS_TOKEN", token)
    Prometheus(PrometheusServer(url=hostile.url)).alerts()

    assert [headers["Authorization"] for _, headers, _ in hostile.requests] == [header, header]


@pytest.mark.parametrize("url", ["http://ann:s3cr3t@{}", "http://{}/s3cr3t", "http://{}?token=s3cr3t"])
def test_error_messages_do_not_contain_secrets(url: str) -> None:
    with answering(lambda it, _: respond(it, 500)) as address:
        client = Prometheus(PrometheusServer(url=url.format(address.removeprefix("http://"))))
        with pytest.raises(PrometheusError) as refused:
            client.alerts()
    with pytest.raises(PrometheusDownError) as gone:
        client.alerts()

    assert SECRET not in f"{refused.value} {gone.value} {client.name}"


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), (b"", "empty"), (b"a\nb", "one line"), (b"\xff", "not text")]
)
def test_unusable_token_file_is_an_error_before_any_request(
    hostile: Hostile, tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(InputError, match=says):
        Prometheus(PrometheusServer(url=hostile.url, token_file=file)).alerts()

    assert hostile.requests == []


def test_ca_file_without_certificates_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")

    with pytest.raises(InputError, match="no certificates of an authority"):
        Prometheus(PrometheusServer(url="https://127.0.0.1", ca_file=tmp_path / "ca.pem"))


def test_unreachable_prometheus_is_a_problem_and_no_failure() -> None:
    down = Prometheus(PrometheusServer(url="http://127.0.0.1:9"))

    alerts = alerts_of([], root=None, prometheus=down, span_unix_ns=SPAN)

    assert alerts.alerts == []
    assert "cannot be reached" in alerts.problems[0]


@pytest.mark.parametrize(("seconds", "step"), [(600, "15.000"), (86_400, "44.000")])
def test_query_step_grows_with_the_time_span(hostile: Hostile, seconds: int, step: str) -> None:
    alerts = b'{"status":"success","data":{"alerts":[]}}'
    hostile.answer = lambda it: respond(it, 200, matrix() if "query_range" in it.path else alerts)

    assert prometheus_alerts(Prometheus(PrometheusServer(url=hostile.url)), (SPAN[0], SPAN[0] + seconds * 10**9)) == []

    [body] = [body for path, _, body in hostile.requests if "query_range" in path]
    assert f"step={step}" in body.decode()
