"""Senders that do not give up, and what a receiver that is killed again and again made of what they sent."""

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
from tests.alerts.receive.receiver_process import ReceiverProcess, Target, until


@dataclass(frozen=True, slots=True)
class Course:
    """What happened."""

    acknowledged: int
    attempts: int
    kills: int
    told: Counter[str]
    """Number of each alert to how often the target was told under an id of its own."""
    seconds: float


def firing(number: int) -> dict[str, Any]:
    """An alert that differs from all others in a label."""
    return {"status": "firing", "labels": {"alertname": "GpuDown", "number": str(number)}, "startsAt": "2026-01-01T00:00:00Z"}


def send_while_killed(
    receiver: ReceiverProcess, target: Target, *, deliveries: int, senders: int, kills: int, pause_s: Callable[[], float]
) -> Course:
    """Send so many deliveries side by side, each until it is acknowledged and then once more, while the receiver is killed."""
    began = time.monotonic()
    over = threading.Event()
    attempts = Counter[str]()

    def send(number: int) -> bool:
        # As an Alertmanager beside another one: both send, and each repeats what was not acknowledged.
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
            while killed < kills and not all(one.done() for one in sent):
                time.sleep(pause_s())
                receiver.kill()
                receiver.start(wait=random.random() < 0.7)
                killed += 1
            acknowledged = sum(one.result() for one in sent)
        finally:
            over.set()
    until(receiver.healthy)
    until(lambda: receiver.count("waiting") == 0)
    until(lambda: {alert["labels"]["number"] for alert in target.alerts} >= {str(number) for number in range(deliveries)})
    # An alert that is sent last is passed on after all others.
    receiver.post(firing(deliveries))
    until(lambda: str(deliveries) in {alert["labels"]["number"] for alert in target.alerts})
    seen = {(alert_id, alert["labels"]["number"]) for alert_id, alert in zip(target.alert_ids, target.alerts, strict=True)}
    told = Counter(number for _, number in seen if number != str(deliveries))
    return Course(acknowledged, attempts["all"], killed, told, time.monotonic() - began)
