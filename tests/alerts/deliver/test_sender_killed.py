"""A sender killed at any moment still delivers every message, under the same id, in the order of its group."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.webhook_receiver import WebhookReceiver, about, notice, receiving

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.store.database import AlertStore

JOB = Path(__file__).parents[2] / "campaigns" / "jobs" / "sending.py"


def send_killed(path: Path, receiver: WebhookReceiver, kills: int, chance: random.Random) -> int:
    """Send an outbox by ``kills`` processes that are killed and one that finishes; return how many were killed while running."""
    killed = 0
    for number in range(kills + 1):
        with subprocess.Popen([sys.executable, str(JOB), str(path), receiver.url], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            if number == kills:
                assert process.wait(timeout=120) == 0
                break
            time.sleep(chance.random() * 0.15)
            killed += process.poll() is None
            process.kill()
    return killed


def check_delivered(receiver: WebhookReceiver, ids: list[str]) -> None:
    """Check that every message arrived at least once, always with the same body, and first in the order of its group."""
    assert set(receiver.ids) == set(ids)
    bodies: dict[str, list[Any]] = defaultdict(list)
    for message_id, payload in receiver.accepted:
        bodies[message_id].append(payload)
    assert all(payload == body[0] for body in bodies.values() for payload in body)
    order: dict[str, list[int]] = defaultdict(list)
    for message_id in dict.fromkeys(receiver.ids):
        order[bodies[message_id][0]["groupKey"]].append(ids.index(message_id))
    assert all(numbers == sorted(numbers) for numbers in order.values())


@pytest.mark.slow
def test_a_sender_that_is_killed_delivers_everything_in_the_end(tmp_path: Path) -> None:
    box = Outbox(AlertStore(tmp_path / "state"))
    box.put(about(*(notice(rank, run=str(rank % 7)) for rank in range(105)), most_alerts=1))
    ids = [item.id for item in box.list_messages()]
    with receiving() as receiver:
        killed = send_killed(tmp_path / "state", receiver, 3, random.Random(7))
        check_delivered(receiver, ids)
    assert killed
    assert box.counts() == {("hook", "delivered"): 105}


@pytest.mark.slow
def test_a_watcher_that_is_killed_tells_every_alert_under_one_id(make_run: Any, tmp_path: Path) -> None:
    run = make_run(slow=2)
    run.end()
    state = tmp_path / "state"
    chance = random.Random(7)
    with receiving() as receiver:
        command = [sys.executable, "-m", "rankscope", "alerts", "watch", run.path, "--once", "--state", state]
        environment = {**os.environ, "RANKSCOPE_ALERTS_WEBHOOK": receiver.url}
        status = -9
        for number in range(12):
            with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                # The first four are killed at about the time at which they put and send the alert.
                patience = 0.15 + 0.3 * chance.random() if number < 4 else 120.0
                try:
                    status = process.wait(timeout=patience)
                except subprocess.TimeoutExpired:
                    process.kill()
            if status == 0:
                break
        assert status == 0
        assert len(set(receiver.ids)) == 1
        assert receiver.states == [("2", "firing")] * len(receiver.ids)
        assert len({payload["alerts"][0]["startsAt"] for _, payload in receiver.accepted}) == 1
