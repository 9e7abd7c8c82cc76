"""Senders that retry until acknowledged, while the receiver is killed repeatedly."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
from tests.alerts.receive.receiver_process import ReceiverProcess, Target
from tests.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Course:
    """Counts of one run of ``send_while_killed``."""

    acknowledged: int
    attempts: int
    kills: int
    told: Counter[str]
    """Number of different message ids under which the target got each alert, by the alert's number."""
    seconds: float


def firing(number: int) -> dict[str, Any]:
    """Return an alert that differs from all others in its label ``number``."""
    return {"status": "firing", "labels": {"alertname": "GpuDown", "number": str(number)}, "startsAt": "2026-01-01T00:00:00Z"}


def send_while_killed(
    receiver: ReceiverProcess, target: Target, *, deliveries: int, senders: int, kills: int, pause_s: Callable[[], float]
) -> Course:
    """Send deliveries in parallel while the receiver is killed; each is sent until acknowledged, and then once more."""
    began = time.monotonic()
    over = threading.Event()
    attempts = Counter[str]()

    def send(number: int) -> bool:
        # Like two redundant Alertmanagers: both send, and each retries until acknowledged.
        for _ in range(2):
            while not over.is_set():
                attempts["all"] += 1
                try:
                    if receiver.post(firing(number)).is_success:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        return True

    with ThreadPoolExecutor(senders) as pool:
        sent = [pool.submit(send, number) for number in range(deliveries)]
        try:
            killed = 0
            while killed < kills and not all(item.done() for item in sent):
                time.sleep(pause_s())
                receiver.kill()
                receiver.start(wait=random.random() < 0.7)
                killed += 1
            acknowledged = sum(item.result() for item in sent)
        finally:
            over.set()
    wait_until(receiver.healthy)
    wait_until(lambda: receiver.count("waiting") == 0)
    wait_until(lambda: {alert["labels"]["number"] for alert in target.alerts} >= {str(number) for number in range(deliveries)})
    # The alert that is sent last is forwarded after all others.
    receiver.post(firing(deliveries))
    wait_until(lambda: str(deliveries) in {alert["labels"]["number"] for alert in target.alerts})
    seen = {(alert_id, alert["labels"]["number"]) for alert_id, alert in zip(target.alert_ids, target.alerts, strict=True)}
    result = Counter(number for _, number in seen if number != str(deliveries))
    return Course(acknowledged, attempts["all"], killed, result, time.monotonic() - began)
