"""Deliveries that are refused, and the largest valid ones, which are accepted."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import httpx
import msgspec
import pytest
import yaml
from tests.alerts.receive.test_receiver import PAYLOAD, Client, typed
from tests.full_disk import disk_with_room_for
from tests.waiting import wait_in_loop

from rankscope.alerts.deliver.signing import parse_secret, sign
from rankscope.alerts.receive.config import ReceiveSection
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.notification import MAX_ALERTS
from rankscope.alerts.receive.receiver_settings import load_credentials
from rankscope.alerts.receive.web import app as app_module
from rankscope.alerts.receive.web import refusals as refusals_module
from rankscope.alerts.receive.web.app import MAX_BODIES_BYTES, MAX_UNPROVEN_BODIES_BYTES, ReceiverApp
from rankscope.alerts.receive.web.bodies import MAX_BODY_BYTES
from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.store.database import AlertStore
from rankscope.base.http_server import ListenEndpoint, Server


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def client(reports: list[str], inbox: Inbox) -> Client:
    return Client(ReceiverApp(inbox, show=lambda _: None, report=reports.append))


TOKEN = {"Authorization": "Bearer a token of a known sender"}
SECRET, FORGED = (f"whsec_{base64.b64encode(bytes([number]) * 32).decode()}" for number in (1, 2))


def signed(secret: str) -> dict[str, str]:
    """Return the headers of a signed ``PAYLOAD``."""
    body = msgspec.json.encode(PAYLOAD)
    return sign([parse_secret(secret)], message_id=secrets.token_hex(8), timestamp_s=int(time.time()), body=body)


def with_credentials(folder: Path, inbox: Inbox, kind: str) -> ReceiverApp:
    """Return a receiver with a bearer token or a signing secret, or with ``none``."""
    (folder / "bearer").write_text(TOKEN["Authorization"].removeprefix("Bearer "))
    (folder / "webhook_secrets").write_text(SECRET)
    section = msgspec.convert({} if kind == "none" else {kind: [{"file": kind}]}, ReceiveSection)
    credentials = load_credentials(section, folder=folder, report=pytest.fail)
    return ReceiverApp(inbox, show=lambda _: None, report=lambda _: None, credentials=credentials)


def largest_alert() -> dict[str, Any]:
    """Return the largest alert of our rules as Alertmanager sends it, with labels as long as real clusters have."""
    names = ("run", "host", "pod", "namespace", "container", "cluster", "reason", "device", "name")
    labels = {name: name[0] * 63 for name in names} | {
        "run_id": "r" * 128,
        "instance": f"{'h' * 63}:9838",
        "job": "rankscope-exporter",
    }
    labels |= {"job": "rankscope-exporter", "gpu_uuid": f"GPU-{'0' * 36}", "gpu": "7", "rank": "1023"}
    labels |= {"pci_bus_id": "00000000:00:00.0", "xid": "79"}
    rules = rules_text(dashboard_url=f"https://{'d' * 60}.example", runbook_url=f"https://{'r' * 60}.example/runbooks")
    value = re.compile(r"\{\{.*?\}\}", re.DOTALL)
    groups = yaml.safe_load(rules)["groups"]

    def sent(rule: dict[str, Any]) -> dict[str, Any]:
        return {
            "status": "firing",
            "labels": labels | rule["labels"] | {"alertname": rule["alert"]},
            "annotations": {name: value.sub("v" * 40, text) for name, text in rule["annotations"].items()},
            "startsAt": "2026-11-24T16:00:00.123456789Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": f"http://prometheus.monitoring.svc.cluster.local:9090/graph?g0.expr={quote_plus(rule['expr'])}&g0.tab=1",
            "fingerprint": "0" * 16,
        }

    alerts = [sent(rule) for group in groups for rule in group["rules"] if "alert" in rule]
    return max(alerts, key=lambda alert: len(msgspec.json.encode(alert)))


@pytest.mark.slow
def test_the_largest_incident_is_accepted(client: Client) -> None:
    alert = largest_alert()
    alerts = [alert | {"labels": alert["labels"] | {"rank": str(rank)}} for rank in range(MAX_ALERTS)]
    body = msgspec.json.encode({**PAYLOAD, "commonAnnotations": alert["annotations"], "alerts": alerts})
    assert len(body) > 5 * 2**20
    # with a quarter of the limit to spare
    assert len(body) < 0.75 * MAX_BODY_BYTES
    assert client.post(body).status_code == 200


def test_alertmanager_example_stays_within_the_alert_limit() -> None:
    example = Path(__file__).parents[3] / "alerts" / "alertmanager" / "alertmanager.yml"
    receivers = yaml.safe_load(example.read_text())["receivers"]
    most = {item["max_alerts"] for receiver in receivers for item in receiver.get("webhook_configs", [])}
    assert most == {MAX_ALERTS}


def test_oversized_body_is_refused_with_or_without_content_length(client: Client, reports: list[str]) -> None:
    assert client.post(b" " * (MAX_BODY_BYTES + 1)).status_code == 413

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65536

    assert client.request("POST", "/webhook", endless()).status_code == 413
    assert len(reports) == 1
    assert all(fact in reports[0] for fact in ("413", "too_large", str(MAX_BODY_BYTES), "max_alerts"))
    assert 'rankscope_receiver_refused_total{reason="too_large"} 2' in client.request("GET", "/metrics").text


class Stalled:
    """Senders that send nearly all of a body of the maximum size, and the rest when ``go`` is set."""

    def __init__(self, sender: httpx.AsyncClient, headers: dict[str, str] | None = None) -> None:
        self.go = asyncio.Event()
        self._sender = sender
        self._headers = headers
        self.posts: list[asyncio.Task[httpx.Response]] = []

    async def _body(self) -> AsyncIterator[bytes]:
        yield b" " * (MAX_BODY_BYTES - 1)
        await self.go.wait()
        yield b" "

    def send(self, count: int) -> None:
        post = partial(self._sender.post, "/webhook", headers=typed(self._headers))
        self.posts += [asyncio.create_task(post(content=self._body())) for _ in range(count)]


@contextlib.asynccontextmanager
async def sender_to(app: ReceiverApp, address: str = "127.0.0.1") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as sender:
        yield sender


def test_bodies_of_authenticated_senders_share_a_memory_limit(tmp_path: Path, inbox: Inbox) -> None:
    app = with_credentials(tmp_path, inbox, "bearer")

    async def post_all() -> list[int]:
        async with sender_to(app) as sender:
            stalled, most = Stalled(sender, TOKEN), MAX_BODIES_BYTES // MAX_BODY_BYTES
            stalled.send(most)
            await wait_in_loop(lambda: app._bodies.used_bytes >= MAX_BODIES_BYTES - most)
            refused = await sender.post("/webhook", json=PAYLOAD, headers=TOKEN)
            assert int(refused.headers["retry-after"]) > 0
            stalled.go.set()
            await asyncio.gather(*stalled.posts)
            accepted = await sender.post("/webhook", json=PAYLOAD, headers=TOKEN)
            return [refused.status_code, accepted.status_code]

    assert asyncio.run(post_all()) == [503, 200]


@pytest.mark.slow
@pytest.mark.parametrize("credentials", ["none", "bearer", "webhook_secrets"])
def test_stalled_senders_do_not_block_other_senders(tmp_path: Path, inbox: Inbox, credentials: str) -> None:
    app = with_credentials(tmp_path, inbox, credentials)
    body = msgspec.json.encode(PAYLOAD)
    # given strangers who hold as much as they can, again and again, with headers of a signature that may fit if there are any
    forged = signed(FORGED) if credentials == "webhook_secrets" else {}
    genuine = {"none": {}, "bearer": TOKEN, "webhook_secrets": signed(SECRET)}[credentials]

    async def post_all() -> list[int]:
        async with sender_to(app, "192.0.2.1") as strange, sender_to(app) as sender:
            stalled = Stalled(strange, forged)
            answers = []
            for _ in range(3):
                stalled.send(5)
                await asyncio.sleep(0.05)
                answers.append((await sender.post("/webhook", content=body, headers=typed(genuine))).status_code)
            assert app._bodies.used_bytes + app._unproven_bodies.used_bytes <= MAX_UNPROVEN_BODIES_BYTES
            stalled.go.set()
            assert {post.status_code for post in await asyncio.gather(*stalled.posts)} <= {400, 401, 503}
            return answers

    assert asyncio.run(post_all()) == [200] * 3


def test_sender_holding_most_memory_is_evicted_before_a_slow_sender(tmp_path: Path, inbox: Inbox) -> None:
    app = with_credentials(tmp_path, inbox, "webhook_secrets")
    body = msgspec.json.encode(PAYLOAD)

    async def post_all() -> int:
        begun, go = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield body[:9]
            begun.set()
            await go.wait()
            yield body[9:]

        async with sender_to(app, "192.0.2.1") as strange, sender_to(app) as sender:
            post = asyncio.create_task(sender.post("/webhook", content=slow(), headers=typed(signed(SECRET))))
            await begun.wait()
            stalled = Stalled(strange, signed(FORGED))
            stalled.send(6)
            await asyncio.sleep(0.1)
            go.set()
            accepted = (await post).status_code
            stalled.go.set()
            await asyncio.gather(*stalled.posts)
            return accepted

    assert asyncio.run(post_all()) == 200


def test_refusals_for_one_reason_are_reported_together(
    client: Client, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals_module, "REFUSALS_S", 0.2)

    async def post_all() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(client.app), base_url="http://127.0.0.1") as sender:
            for _ in range(5):
                await sender.post("/webhook", content=b"no JSON", headers=typed())
            await wait_in_loop(lambda: len(reports) == 2)

    asyncio.run(post_all())
    assert all(fact in reports[0] for fact in ("400", "not_understood"))
    assert all(fact in reports[1] for fact in ("4 more", "not_understood"))


def test_evicted_senders_are_counted_and_logged_once_per_burst(client: Client, reports: list[str]) -> None:
    def counted() -> str:
        return client.app._counters.page(store_id="").decode()

    metric = 'rankscope_receiver_refused_total{{reason="evicted"}} {}'
    assert metric.format(0) in counted()

    async def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            server = Server([ListenEndpoint(sock, client.app, evicted=client.app.evicted)], max_connections=2)
            server.start()
            senders = []
            for _ in range(5):
                senders.append(await asyncio.open_connection(*sock.getsockname()))
                senders[-1][1].write(b"POST /webhook HTTP/1.1\r\n")
                await asyncio.sleep(0)
            await wait_in_loop(lambda: metric.format(3) in counted())
            await server.stop()
            for _, writer in senders:
                writer.close()

    asyncio.run(serve())
    [line] = reports
    assert all(fact in line for fact in ("127.0.0.1", "evicted"))


@pytest.mark.parametrize(
    ("field", "moment"),
    [("startsAt", "yesterday"), ("startsAt", "2026-13-01T00:00:00Z"), ("endsAt", "20260101"), ("startsAt", "\x00")],
)
def test_invalid_timestamp_is_refused_with_the_field_name(client: Client, field: str, moment: str) -> None:
    alerts = [PAYLOAD["alerts"][0], PAYLOAD["alerts"][0] | {field: moment}]
    answer = client.post({**PAYLOAD, "alerts": alerts})
    assert answer.status_code == 400
    assert f"alerts[1].{field}" in answer.text


def test_number_too_large_for_a_metric_is_refused(client: Client) -> None:
    body = msgspec.json.encode(PAYLOAD).replace(b'"truncatedAlerts":0', b'"truncatedAlerts":' + b"9" * 400)
    refused = client.request("POST", "/webhook", body)
    assert (refused.status_code, "truncatedAlerts" in refused.text) == (400, True)


@pytest.mark.parametrize("moment", ["2026-11-24T16:00:00.123456789Z", "2026-11-24T16:00:00+01:00", "0001-01-01T00:00:00Z", ""])
def test_timestamp_formats_of_known_senders_are_accepted(client: Client, moment: str) -> None:
    assert client.post({**PAYLOAD, "alerts": [PAYLOAD["alerts"][0] | {"startsAt": moment}]}).status_code == 200


def test_readiness_probe_does_not_write(tmp_path: Path, reports: list[str]) -> None:
    with AlertStore(tmp_path / "state", report=reports.append) as store:
        client = Client(ReceiverApp(Inbox(store), show=lambda _: None, report=reports.append))
        assert client.post(PAYLOAD).status_code == 200

        def written() -> dict[str, tuple[int, int]]:
            files = [(path.name, path.stat()) for path in (tmp_path / "state").iterdir() if not path.name.endswith("-shm")]
            return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in files}

        before = written()
        assert [client.request("GET", "/-/ready").status_code for _ in range(10)] == [200] * 10
        assert written() == before


def test_freed_disk_space_is_noticed_without_a_delivery(
    tmp_path: Path, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "PROBE_S", 0.01)
    out = tmp_path / "gone" / "out.jsonl"

    async def course(app: ReceiverApp) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:

            async def status(path: str) -> int:
                return (await client.get(path)).status_code

            # given no folder for the deliveries file, and then no room in the inbox either
            assert (await client.post("/webhook", json=PAYLOAD)).status_code == 503
            with disk_with_room_for(500_000):
                out.parent.mkdir()
                await asyncio.sleep(0.2)
                assert await status("/-/ready") == 503
                assert "writable 0\n" in (await client.get("/metrics")).text
            # when there is room again
            await wait_in_loop(lambda: app._writable)
            assert await status("/-/ready") == 200
            assert "writable 1\n" in (await client.get("/metrics")).text
            assert (await client.post("/webhook", json=PAYLOAD)).status_code == 200

    with AlertStore(tmp_path / "state", report=reports.append) as store:
        asyncio.run(course(ReceiverApp(Inbox(store), show=lambda _: None, report=reports.append, out=out)))
        assert not (tmp_path / "state" / "room").exists()
