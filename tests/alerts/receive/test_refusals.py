"""Deliveries that are refused, and the largest valid ones, which are accepted."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import httpx
import msgspec
import pytest
import yaml
from tests.alerts.receive.test_receiver import PAYLOAD, Client
from tests.full_disk import disk_with_room_for

from rankscope.alerts.receive import app as app_module
from rankscope.alerts.receive.app import MAX_BODIES_BYTES, MAX_BODY_BYTES, ReceiverApp
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.receive.notification import MAX_ALERTS
from rankscope.alerts.receive.server import receiver_endpoint
from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.store.database import Store
from rankscope.base.http_server import Server


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def client(reports: list[str], inbox: Inbox) -> Client:
    return Client(ReceiverApp(inbox, show=lambda _: None, report=reports.append))


async def until(question: Callable[[], bool]) -> None:
    """Wait until the answer is true."""
    while not question():  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(0.01)


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


def test_the_largest_incident_is_accepted(client: Client) -> None:
    alert = largest_alert()
    alerts = [alert | {"labels": alert["labels"] | {"rank": str(rank)}} for rank in range(MAX_ALERTS)]
    body = msgspec.json.encode({**PAYLOAD, "commonAnnotations": alert["annotations"], "alerts": alerts})
    assert len(body) > 5 * 2**20
    # with a quarter of the limit to spare
    assert len(body) < 0.75 * MAX_BODY_BYTES
    assert client.post(body).status_code == 200


def test_the_example_of_alertmanager_sends_no_more_than_is_accepted() -> None:
    example = Path(__file__).parents[3] / "alerts" / "alertmanager" / "alertmanager.yml"
    receivers = yaml.safe_load(example.read_text())["receivers"]
    most = {one["max_alerts"] for receiver in receivers for one in receiver.get("webhook_configs", [])}
    assert most == {MAX_ALERTS}


def test_a_large_body_is_refused_announced_or_not(client: Client, reports: list[str]) -> None:
    assert client.post(b" " * (MAX_BODY_BYTES + 1)).status_code == 413

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65536

    assert client.request("POST", "/webhook", endless()).status_code == 413
    assert len(reports) == 1
    assert all(fact in reports[0] for fact in ("413", "too_large", str(MAX_BODY_BYTES), "max_alerts"))
    assert 'rankscope_receiver_refused_total{reason="too_large"} 2' in client.request("GET", "/metrics").text


def test_bodies_share_a_bounded_memory(client: Client) -> None:
    async def post_all() -> list[int]:
        arrived = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b" " * (MAX_BODY_BYTES - 1)
            await arrived.wait()
            yield b" "

        async with httpx.AsyncClient(transport=httpx.ASGITransport(client.app), base_url="http://receiver") as sender:
            most = MAX_BODIES_BYTES // MAX_BODY_BYTES
            full = [asyncio.create_task(sender.post("/webhook", content=slow())) for _ in range(most)]
            await until(lambda: client.app._bodies.bytes >= MAX_BODIES_BYTES - most)
            refused = await sender.post("/webhook", json=PAYLOAD)
            assert int(refused.headers["retry-after"]) > 0
            arrived.set()
            await asyncio.gather(*full)
            accepted = await sender.post("/webhook", json=PAYLOAD)
            return [refused.status_code, accepted.status_code]

    assert asyncio.run(post_all()) == [503, 200]


def test_refusals_for_one_reason_are_reported_together(
    client: Client, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "REFUSALS_S", 0.2)

    async def post_all() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(client.app), base_url="http://receiver") as sender:
            for _ in range(5):
                await sender.post("/webhook", content=b"no JSON")
            await until(lambda: len(reports) == 2)

    asyncio.run(post_all())
    assert all(fact in reports[0] for fact in ("400", "not_understood"))
    assert all(fact in reports[1] for fact in ("4 more", "not_understood"))


def test_senders_that_are_cut_off_for_others_are_counted_and_logged_once_per_burst(client: Client, reports: list[str]) -> None:
    def counted() -> str:
        return client.app._counters.page().decode()

    metric = 'rankscope_receiver_refused_total{{reason="evicted"}} {}'
    assert metric.format(0) in counted()

    async def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            server = Server([receiver_endpoint(client.app, sock)], max_connections=2)
            server.start()
            senders = []
            for _ in range(5):
                senders.append(await asyncio.open_connection(*sock.getsockname()))
                senders[-1][1].write(b"POST /webhook HTTP/1.1\r\n")
                await asyncio.sleep(0)
            await until(lambda: metric.format(3) in counted())
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
def test_a_time_that_is_none_is_refused_with_its_field(client: Client, field: str, moment: str) -> None:
    alerts = [PAYLOAD["alerts"][0], PAYLOAD["alerts"][0] | {field: moment}]
    answer = client.post({**PAYLOAD, "alerts": alerts})
    assert answer.status_code == 400
    assert f"alerts[1].{field}" in answer.text


@pytest.mark.parametrize("moment", ["2026-11-24T16:00:00.123456789Z", "2026-11-24T16:00:00+01:00", "0001-01-01T00:00:00Z", ""])
def test_times_that_senders_write_are_accepted(client: Client, moment: str) -> None:
    assert client.post({**PAYLOAD, "alerts": [PAYLOAD["alerts"][0] | {"startsAt": moment}]}).status_code == 200


def test_readiness_does_not_write(tmp_path: Path, reports: list[str]) -> None:
    with Store(tmp_path / "state", report=reports.append) as store:
        client = Client(ReceiverApp(Inbox(store), show=lambda _: None, report=reports.append))
        assert client.post(PAYLOAD).status_code == 200

        def written() -> dict[str, tuple[int, int]]:
            files = [(path.name, path.stat()) for path in (tmp_path / "state").iterdir() if not path.name.endswith("-shm")]
            return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in files}

        before = written()
        assert [client.request("GET", "/-/ready").status_code for _ in range(10)] == [200] * 10
        assert written() == before


def test_a_disk_that_has_room_again_is_noticed_without_a_delivery(
    tmp_path: Path, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "PROBE_S", 0.01)
    out = tmp_path / "gone" / "out.jsonl"

    async def course(app: ReceiverApp) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://receiver") as client:

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
            await until(lambda: app._writable)
            assert await status("/-/ready") == 200
            assert "writable 1\n" in (await client.get("/metrics")).text
            assert (await client.post("/webhook", json=PAYLOAD)).status_code == 200

    with Store(tmp_path / "state", report=reports.append) as store:
        asyncio.run(course(ReceiverApp(Inbox(store), show=lambda _: None, report=reports.append, out=out)))
        assert not (tmp_path / "state" / "room").exists()
