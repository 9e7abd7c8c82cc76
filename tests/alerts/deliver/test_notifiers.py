"""Single posts to webhooks and Alertmanagers over real sockets; no message contains a secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest

from rankscope.alerts.alert import Alert
from rankscope.alerts.deliver.endpoint import Endpoint
from rankscope.alerts.deliver.http_client import http_client
from rankscope.alerts.deliver.notifiers import Alertmanager, Webhook
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.post import DeliveryError, error_text, opaque_name, post_json, redact
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.targets import webhook_target
from rankscope.alerts.payload import Notice, Payload, payload_alert
from rankscope.alerts.store.database import AlertStore

SECRET = "s3cr3t-token"
HERE = "http://127.0.0.1"
STARTED_NS = 1_700_000_000_000_000_000


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with http_client(HERE, timeout=httpx.Timeout(60)) as client:
        yield client


def endpoint(url: str, **more: Any) -> Endpoint:
    return Endpoint(url=Secret(value=url), **more)


def notice(rank: int = 2, *, ended: bool = False, **more: str) -> Notice:
    labels = {"alertname": "TrainingStraggler", "severity": "warning", "run_id": "r1", "rank": str(rank), **more}
    alert = Alert(labels=labels, annotations={"summary": f"rank {rank}"}, generator_url="http://host/run/r1")
    ended_ns = STARTED_NS + 60 * 10**9 if ended else None
    return Notice(alert=payload_alert(alert, starts_at_unix_ns=STARTED_NS, ends_at_unix_ns=ended_ns))


def test_webhook_payload_has_alertmanager_format(sink: Any) -> None:
    outbox = Outbox(AlertStore(None))
    sender = Sender(outbox, [webhook_target(sink.url + "/hook")], report=pytest.fail)
    webhook = Webhook(webhook_target(sink.url + "/hook"), outbox, wake=sender.wake, external_url="http://host")
    webhook.send([notice(3, ended=True), notice(2)])
    assert sender.run_due() == 1
    [body] = sink.accepted
    assert body == {
        "version": "4",
        "groupKey": '{}:{alertname="TrainingStraggler", run_id="r1"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "rankscope",
        "groupLabels": {"alertname": "TrainingStraggler", "run_id": "r1"},
        "commonLabels": {"alertname": "TrainingStraggler", "severity": "warning", "run_id": "r1"},
        "commonAnnotations": {},
        "externalURL": "http://host",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "TrainingStraggler", "severity": "warning", "run_id": "r1", "rank": "2"},
                "annotations": {"summary": "rank 2"},
                "startsAt": "2023-11-14T22:13:20.000Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "http://host/run/r1",
                "fingerprint": notice(2).alert.fingerprint,
            },
            {
                "status": "resolved",
                "labels": {"alertname": "TrainingStraggler", "severity": "warning", "run_id": "r1", "rank": "3"},
                "annotations": {"summary": "rank 3"},
                "startsAt": "2023-11-14T22:13:20.000Z",
                "endsAt": "2023-11-14T22:14:20.000Z",
                "generatorURL": "http://host/run/r1",
                "fingerprint": notice(3).alert.fingerprint,
            },
        ],
    }
    jsonschema.validate(body, msgspec.json.schema(Payload))


def test_alerts_posted_to_alertmanager_have_an_expiry_time(sink: Any, client: httpx.Client) -> None:
    manager = Alertmanager(endpoint(sink.url + "/prefix/"), valid_s=240)
    manager.send([notice(2), notice(3, ended=True)], now_unix_ns=1_700_000_100_000_000_000)
    assert sink.requests == ["/prefix/api/v2/alerts"]
    [[firing, ended]] = sink.accepted
    assert firing["startsAt"] == "2023-11-14T22:13:20.000Z"
    assert firing["endsAt"] == "2023-11-14T22:19:00.000Z"
    assert firing["generatorURL"] == "http://host/run/r1"
    assert ended["endsAt"] == "2023-11-14T22:14:20.000Z"


@pytest.mark.parametrize(
    ("status", "reason"),
    [(500, "answered 500"), (429, "answered 429"), (400, "refused with 400"), (302, "redirects are not followed")],
)
def test_post_refused_by_alertmanager_is_an_error(sink: Any, client: httpx.Client, status: int, reason: str) -> None:
    sink.answers = [status, 200]
    with pytest.raises(DeliveryError, match=reason):
        Alertmanager(endpoint(sink.url), valid_s=None).send([notice()], now_unix_ns=0)
    assert (sink.requests, sink.accepted) == (["/api/v2/alerts"], [])


def test_trickling_answer_times_out(trickle: str) -> None:
    with http_client(trickle) as client, pytest.raises(DeliveryError, match="no answer in time"):
        post_json(client, trickle, b"{}", attempt_s=0.3)


@pytest.mark.parametrize(
    "template", ["http://user:{s}@127.0.0.1:{p}/{s}?k={s}", "http://127.0.0.1:{p}/hooks/{s}", "http://{s}.invalid/x"]
)
def test_connection_error_does_not_reveal_the_secret_url(
    client: httpx.Client, free_port: Callable[[], int], template: str
) -> None:
    url = template.format(s=SECRET, p=free_port())
    with pytest.raises(DeliveryError) as caught:
        post_json(client, url, b"{}")
    if not url.endswith(".invalid/x"):  # a host name is not a secret
        assert SECRET not in str(caught.value)
    assert str(caught.value)


def test_labels_distinguish_webhooks_of_one_host_without_secrets() -> None:
    first, second = (webhook_target(f"https://hooks.example/{SECRET}/{number}") for number in (1, 2))
    assert first.label != second.label
    for target in (first, second):
        assert target.label == f"{target.name} https://hooks.example/…"
        assert SECRET not in target.label


def test_error_quoting_the_secret_url_is_redacted() -> None:
    error = httpx.ConnectError(f"cannot reach /hooks/{SECRET}")
    assert error_text(error, f"https://h.example/hooks/{SECRET}") == "ConnectError"
    assert error_text(httpx.ConnectError("Connection refused"), f"https://h.example/hooks/{SECRET}") == "Connection refused"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://user:{SECRET}@hooks.example/services/{SECRET}?token={SECRET}", "https://hooks.example/…"),
        ("http://127.0.0.1:9093", "http://127.0.0.1:9093"),
        ("http://[::1]:9093/", "http://[::1]:9093"),
    ],
)
def test_addresses_are_shown_without_secrets(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert SECRET not in opaque_name("webhook", url)
    assert opaque_name("webhook", url) == opaque_name("webhook", url) != opaque_name("webhook", url + "x")
