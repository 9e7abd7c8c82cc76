"""The receiver: as a real process where that matters, as an ASGI application for the many cases."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.command_line import Cli, one_line_error
from tests.waiting import wait_until

from rankscope.alerts.receive import inbox as inbox_module
from rankscope.alerts.receive.inbox import MAX_KEPT, Inbox
from rankscope.alerts.receive.web.app import ReceiverApp

PAYLOAD: dict[str, Any] = {
    "version": "4",
    "groupKey": "{}:{}",
    "truncatedAlerts": 0,
    "status": "firing",
    "receiver": "team",
    "groupLabels": {},
    "commonLabels": {},
    "commonAnnotations": {},
    "externalURL": "http://am:9093",
    "notificationReason": "a field of the future",
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "TrainingStraggler", "run": "llama", "rank": "2", "host": "n1"},
            "annotations": {"summary": "Rank 2 makes the others wait.", "cause": "input", "phase": "data"},
            "startsAt": "2023-11-14T22:13:20Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "",
            "fingerprint": "0123456789abcdef",
            "routeLabels": {"another": "one"},
        }
    ],
}
LINE = "FIRING   TrainingStraggler run llama rank 2 host n1: Rank 2 makes the others wait. [cause input, phase data]"


def typed(headers: Any = None) -> Any:
    """Return ``headers``, a mapping or pairs, with the content type of a delivery unless they have one."""
    completed = httpx.Headers(headers)
    if "content-type" not in completed:
        completed["Content-Type"] = "application/json"
    return completed


class Client:
    """Requests to the application, without a socket."""

    def __init__(self, app: ReceiverApp) -> None:
        self.app = app

    def request(self, method: str, path: str, content: Any = None, headers: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1") as client:
                return await client.request(method, path, content=content, headers=typed(headers))

        return asyncio.run(ask())

    def post(self, content: Any) -> httpx.Response:
        return self.request("POST", "/webhook", content if not isinstance(content, dict) else msgspec.json.encode(content))


@pytest.fixture
def shown() -> list[str]:
    return []


@pytest.fixture
def client(shown: list[str], inbox: Inbox) -> Client:
    return Client(ReceiverApp(inbox, show=shown.append, report=shown.append, clock=lambda: 7))


def test_a_payload_is_accepted_shown_and_listed(client: Client, shown: list[str]) -> None:
    assert client.post(PAYLOAD).status_code == 200
    assert shown == [LINE]
    listing = client.request("GET", "/deliveries").json()
    assert listing == {"total": 1, "deliveries": [{"received_unix_ns": 7, "payload": PAYLOAD}]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        msgspec.json.encode(PAYLOAD)[:-1] + b',"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        msgspec.json.encode(PAYLOAD)[:-1] + b',"text":"\xff"}',
        msgspec.json.encode({**PAYLOAD, "version": "3"}),
        msgspec.json.encode({**PAYLOAD, "status": "burning"}),
        msgspec.json.encode({**PAYLOAD, "alerts": "many"}),
        msgspec.json.encode({**PAYLOAD, "alerts": [{"status": "firing"}]}),
    ],
)
def test_invalid_payload_is_refused_with_400(client: Client, shown: list[str], body: bytes) -> None:
    answer = client.post(body)
    assert answer.status_code == 400
    assert answer.text.startswith("not a webhook payload")
    [line] = shown
    assert all(fact in line for fact in ("400", "not_understood"))
    assert client.request("GET", "/deliveries").json()["total"] == 0


def test_the_last_deliveries_are_listed(client: Client, inbox: Inbox) -> None:
    for number in range(MAX_KEPT + 5):
        inbox.accept(msgspec.json.encode({**PAYLOAD, "receiver": str(number)}), key=None, now_unix_ns=7)
    listing = client.request("GET", "/deliveries").json()
    assert listing["total"] == MAX_KEPT + 5
    assert [row["payload"]["receiver"] for row in listing["deliveries"]] == [str(number) for number in range(5, MAX_KEPT + 5)]


def test_busy_receiver_answers_503_with_retry_after(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_WAITING", 2)
    answers = [client.post({**PAYLOAD, "receiver": str(number)}) for number in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert int(answers[2].headers["retry-after"]) > 0
    assert 'rankscope_receiver_refused_total{reason="busy"} 1' in client.request("GET", "/metrics").text


def test_repeated_delivery_counts_once(client: Client, shown: list[str]) -> None:
    for id_, body in (("a", PAYLOAD), ("a", PAYLOAD), ("b", PAYLOAD), ("a", {**PAYLOAD, "receiver": "another"})):
        content = msgspec.json.encode(body)
        assert client.request("POST", "/webhook", content, {"webhook-id": id_}).status_code == 200
    assert client.request("GET", "/deliveries").json()["total"] == 3
    assert len(shown) == 3


def test_metrics_page_is_valid_prometheus_text(client: Client) -> None:
    client.post(PAYLOAD)
    client.post(b"")
    page = client.request("GET", "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(page.text)}
    assert families["rankscope_receiver_deliveries"].type == "counter"
    (accepted,) = families["rankscope_receiver_deliveries"].samples
    assert (accepted.labels, accepted.value) == ({"sender": "alertmanager"}, 1.0)
    refused = {sample.labels["reason"]: sample.value for sample in families["rankscope_receiver_refused"].samples}
    assert (refused["not_understood"], refused["too_large"]) == (1.0, 0.0)
    assert families["rankscope_receiver_waiting"].samples[0].value == 1.0
    assert families["rankscope_receiver_info"].samples[0].labels == {"store": client.app._inbox.store.id}
    assert all(family.documentation for family in families.values())


def test_truncated_alerts_are_shown(client: Client, shown: list[str]) -> None:
    client.post({**PAYLOAD, "truncatedAlerts": 7})
    assert all(fact in shown[-1] for fact in ("7 more", "alertmanager"))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/webhook", 405),
        ("POST", "/deliveries", 405),
        ("GET", "/", 404),
        ("GET", "/-/healthy", 200),
        ("HEAD", "/-/healthy", 200),
        ("DELETE", "/-/healthy", 405),
        ("GET", "/-/ready", 200),
        ("GET", "/metrics", 200),
    ],
)
def test_unsupported_requests_get_their_http_status(client: Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert ("allow" in answer.headers) == (status == 405)


def test_alert_text_cannot_inject_terminal_escapes(client: Client, shown: list[str]) -> None:
    alert = {**PAYLOAD["alerts"][0], "annotations": {"summary": "a\x1b[2Jb\nFIRING forged"}}
    client.post({**PAYLOAD, "alerts": [alert]})
    assert shown == ["FIRING   TrainingStraggler run llama rank 2 host n1: a�[2Jb�FIRING forged"]


def test_deliveries_are_appended_one_per_line(
    tmp_path: Path, shown: list[str], inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    client = Client(ReceiverApp(inbox, show=shown.append, report=shown.append, out=out, clock=lambda: 7))
    client.post(msgspec.json.format(msgspec.json.encode(PAYLOAD), indent=2))
    client.post(PAYLOAD)
    lines = [msgspec.json.decode(line) for line in out.read_bytes().splitlines()]
    assert lines == [{"received_unix_ns": 7, "payload": PAYLOAD}] * 2
    # and only accepted deliveries are written, once each
    body, key = msgspec.json.encode(PAYLOAD), {"webhook-id": "one"}
    assert [client.request("POST", "/webhook", body, key).status_code for _ in range(3)] == [200] * 3
    monkeypatch.setattr(inbox_module, "MAX_WAITING", 3)
    assert client.post(PAYLOAD).status_code == 503
    assert len(out.read_bytes().splitlines()) == 3


def test_delivery_that_cannot_be_stored_gets_503_with_retry_after(tmp_path: Path, shown: list[str], inbox: Inbox) -> None:
    # given a folder in place of the file: appending fails
    client = Client(ReceiverApp(inbox, show=shown.append, report=shown.append, out=tmp_path))
    answer = client.post(PAYLOAD)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert "cannot be written" in shown[0]
    assert client.request("GET", "/deliveries").json()["total"] == 0


SHORT_DEADLINES = (
    "import rankscope.base.http_server as serve; serve.REQUEST_DEADLINE_S = serve.RESPONSE_DEADLINE_S = 0.5; "
    "from rankscope.cli.main import main; main()"
)

UNREAD = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); from rankscope.cli.main import main; main()"


@pytest.fixture
def serving(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """The real process, its address and its file; a fixture parameter is Python code to run instead of the command."""
    out = tmp_path / "deliveries.jsonl"
    launch = ["-c", request.param] if hasattr(request, "param") else ["-m", "rankscope"]
    process = subprocess.Popen(
        [sys.executable, *launch, "alerts", "serve", "--listen", "127.0.0.1:0", "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        listening = re.fullmatch(r'ts=\S+ level=info component=receive msg="listening on (http://127.0.0.1:\d+)/webhook"\n', line)
        assert listening, line + process.communicate()[1]
        yield process, listening[1], out
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_receiver_process_accepts_a_delivery_and_exits_cleanly(
    serving: tuple[subprocess.Popen[str], str, Path], number: signal.Signals
) -> None:
    process, url, out = serving
    assert httpx.post(f"{url}/webhook", json=PAYLOAD).status_code == 200
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):  # a silent connection must not delay the shutdown
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0
    assert stdout == LINE + "\n"
    assert stderr == ""
    assert len(out.read_bytes().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("serving", [SHORT_DEADLINES], indirect=True, ids=["short deadlines"])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing", marks=pytest.mark.full),
        pytest.param(b"POST /webhook HTTP/1.1\r\nHost: x\r\nX-Slow: ", id="half a head"),
        pytest.param(
            b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", id="half a body", marks=pytest.mark.full
        ),
    ],
)
def test_stalled_connections_do_not_block_other_senders(serving: tuple[subprocess.Popen[str], str, Path], sent: bytes) -> None:
    _, url, _ = serving
    with contextlib.ExitStack() as stack:
        for _ in range(70):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60))
            connection.sendall(sent)
        wait_until(lambda: httpx.post(f"{url}/webhook", json=PAYLOAD).status_code == 200)


@pytest.mark.slow
@pytest.mark.parametrize("serving", [UNREAD], indirect=True, ids=["stdout is full"])
def test_receiver_accepts_deliveries_while_stdout_is_full(serving: tuple[subprocess.Popen[str], str, Path]) -> None:
    process, url, out = serving
    for _ in range(2):
        assert httpx.post(f"{url}/webhook", json=PAYLOAD).status_code == 200
    assert httpx.get(f"{url}/deliveries").json()["total"] == 2
    process.terminate()
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr) == (0, "")
    assert len(out.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0", "[::]:0"])
def test_public_listen_address_requires_a_configuration(cli: Cli, address: str) -> None:
    completed = cli("alerts", "serve", "--listen", address)
    assert completed.returncode == 2
    assert "[receive] of --config" in completed.stderr


def test_port_in_use_is_a_one_line_error(cli: Cli) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        completed = cli("alerts", "serve", "--listen", f"127.0.0.1:{busy.getsockname()[1]}")
    assert os.strerror(errno.EADDRINUSE) in one_line_error(completed)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("no/deliveries", errno.ENOENT), ("fifo", errno.ENXIO)])
def test_an_unwritable_out_ends_the_start(cli_process: Cli, tmp_path: Path, name: str, number: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    line = one_line_error(cli_process("alerts", "serve", "--listen", "127.0.0.1:0", "--out", tmp_path / name))
    assert str(tmp_path / name) in line
    assert os.strerror(number) in line
