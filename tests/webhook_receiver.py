"""Webhook receiver whose answers a test defines and which stores accepted requests, and alerts to send it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import msgspec
from tests.local_http import answering, respond

from rankscope.alerts.alert import Alert
from rankscope.alerts.deliver.message import Message, messages_about
from rankscope.alerts.payload import Notice, payload_alert

Behaviour = Callable[[BaseHTTPRequestHandler, Callable[[], None]], None]
"""Answers a request. To accept it, it calls its second argument first, so that it counts even if the client is killed then."""

START_NS = 1_700_000_000_000_000_000


class WebhookReceiver:
    """Webhook receiver; ``behaviour`` defines its answers; a number is a status."""

    def __init__(self) -> None:
        self.url = ""
        self.behaviour: Behaviour | int = 200
        self.tried: list[str] = []
        self.accepted: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self._lock = threading.Lock()

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        message_id = request.headers["webhook-id"]
        with self._lock:
            self.tried.append(message_id)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self.bodies.append(body)

        def accept() -> None:
            with self._lock:
                self.accepted.append((message_id, msgspec.json.decode(body)))

        behaviour = self.behaviour if callable(self.behaviour) else answer_with(self.behaviour)
        behaviour(request, accept)

    @property
    def ids(self) -> list[str]:
        """``webhook-id`` of every accepted request, in order."""
        return [message_id for message_id, _ in self.accepted]

    @property
    def states(self) -> list[tuple[str, str]]:
        """Rank and status of every accepted alert, in order."""
        return [(alert["labels"]["rank"], alert["status"]) for _, payload in self.accepted for alert in payload["alerts"]]


def answer_with(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    """Answer always with this status."""

    def answer(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
        if 200 <= status < 300:
            accept()
        respond(request, status, body, **headers)

    return answer


def never_ending(request: BaseHTTPRequestHandler, _accept: Callable[[], None]) -> None:
    """Send headers for longer than clients wait."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for _ in range(100):
        request.wfile.write(b"X-Slow: 1\r\n")
        time.sleep(0.05)


@contextmanager
def receiving() -> Iterator[WebhookReceiver]:
    """Run a receiver on a free port of this machine."""
    receiver = WebhookReceiver()
    with answering(receiver.answer) as receiver.url:
        yield receiver


class SimulatedClock:
    """Monotonic nanoseconds that the test advances."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


def notice(
    rank: int | None = 2,
    *,
    alertname: str = "TrainingStraggler",
    ended: bool = False,
    run: str = "r1",
    name: str = "",
    start_ns: int = START_NS,
    more: dict[str, str] | None = None,
) -> Notice:
    """Return a notice of a straggler of a run, which is a group; ``name`` is the run's."""
    labels = {"alertname": alertname, "severity": "warning", "run_id": run, "rank": "" if rank is None else str(rank)}
    labels = {name: value for name, value in {**labels, "run": name}.items() if value}
    alert = Alert(labels=labels, annotations={"summary": f"rank {rank}", **(more or {})})
    ended_ns = start_ns + 60_000_000_000 if ended else None
    return Notice(alert=payload_alert(alert, starts_at_unix_ns=start_ns, ends_at_unix_ns=ended_ns))


def about(*notices: Notice, target: str = "hook", most_alerts: int = 16) -> list[Message]:
    """Return the messages about alerts for a target."""
    return messages_about(target, notices, most_alerts=most_alerts)
