"""The receiver under faults of its surroundings (`make campaign`): one line of JSON per case.

Every alert has its own number, and the target records how often it arrived, and under which ids.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.alerts.receive.receiver_process import (
    ListeningTarget,
    ReceiverProcess,
    firing,
    listening_target,
    send_while_killed,
    straggler,
)
from tests.played_ranks import accept, job, profile, two_ranks
from tests.waiting import wait_until

from rankscope.runs.control import ControlRequest

pytestmark = [pytest.mark.campaign, pytest.mark.slow]

CONFIG = """
[receive]
{receive}

[[target]]
name = "chat"
url = "{url}"
"""
ACTION = """
[[action]]
alert = "TrainingStraggler"
do = "capture"
at_most = "1000/1h per run"
at_most_overall = "1000/1h"
wait = "60s"
"""
MEMORY_MIB = 256
"""Largest resident memory of the process, in MiB, for any input."""


@pytest.fixture
def target() -> Iterator[ListeningTarget]:
    with listening_target() as target:
        yield target


@pytest.fixture
def receiver(tmp_path: Path, target: ListeningTarget) -> Iterator[ReceiverProcess]:
    (tmp_path / "runs").mkdir()
    config = CONFIG.format(receive='runs = ["runs"]', url=target.url) + ACTION
    with ReceiverProcess(tmp_path, config) as receiver:
        yield receiver


def row(case: str, **figures: Any) -> None:
    print("\n" + msgspec.json.encode({"case": case, **figures}).decode())


def test_alerts_of_8_senders_are_delivered_once_despite_25_kills(receiver: ReceiverProcess, target: ListeningTarget) -> None:
    course = send_while_killed(receiver, target, deliveries=200, senders=8, kills=25, pause_s=lambda: random.uniform(0.02, 1.5))
    doubled = sum(count > 1 for count in course.ids_of_alerts.values())
    row(
        "killed while 8 senders send",
        acknowledged=course.acknowledged,
        attempts=course.attempts,
        kills=course.kills,
        told=len(course.ids_of_alerts),
        told_twice=doubled,
        seconds=round(course.seconds, 1),
    )
    assert course.acknowledged == 200
    assert course.ids_of_alerts == {str(number): 1 for number in range(200)}


def test_each_alert_triggers_one_capture_despite_receiver_kills(
    receiver: ReceiverProcess, target: ListeningTarget, tmp_path: Path
) -> None:
    run = two_ranks(tmp_path / "runs" / "one")
    episodes, kills = 10, 0

    def serve(run: Path, request: ControlRequest) -> None:
        time.sleep(random.uniform(0.0, 2.0))
        accept(run, request)
        for rank in (0, 1):
            profile(run, rank, request.steps)

    def shown() -> int:
        return sum("capture_outcome" in alert["annotations"] for alert in target.alerts)

    with job(run, serve) as seen:
        for number in range(episodes):
            alert = straggler("r1", number=str(number))
            for _ in range(random.randrange(4)):
                with contextlib.suppress(httpx.TransportError):
                    receiver.post(alert)
                time.sleep(random.uniform(0.0, 2.0))
                receiver.kill()
                receiver.start()
                kills += 1
            assert receiver.post(alert).is_success
            wait_until(lambda wanted=number + 1: shown() >= wanted)
        time.sleep(3.0)
    outcomes = Counter(alert["annotations"].get("capture_outcome", "") for alert in target.alerts)
    requests = Counter(request.id for request in seen)
    row("killed while it captures", episodes=episodes, kills=kills, requests=len(requests), told=dict(outcomes))
    assert len(requests) == episodes
    assert outcomes == {"": episodes, "shown": episodes}


def test_alert_posted_a_thousand_times_is_delivered_once(receiver: ReceiverProcess, target: ListeningTarget) -> None:
    with ThreadPoolExecutor(8) as pool:
        statuses = Counter(pool.map(lambda _: receiver.post(firing(1)).status_code, range(1000)))
    wait_until(lambda: receiver.count("waiting") == 0)
    time.sleep(1.0)
    row("the same 1,000 times", statuses={str(status): count for status, count in statuses.items()}, told=len(target.alerts))
    assert set(statuses) <= {200, 503}
    assert len(target.alerts) == 1


def test_thousand_alerts_are_delivered_after_a_target_outage_and_a_kill(
    tmp_path: Path, free_port: Callable[[], int], target: ListeningTarget
) -> None:
    nowhere = free_port()
    config = CONFIG.format(receive="", url=f"http://127.0.0.1:{nowhere}/")
    with ReceiverProcess(tmp_path, config) as receiver:
        began = time.monotonic()
        assert receiver.post(*(firing(number) for number in range(1000))).status_code == 200
        answered_s = time.monotonic() - began
        wait_until(lambda: receiver.count("waiting") == 0)
        mib = receiver.memory_mib()
        receiver.kill()
        receiver.configure(CONFIG.format(receive="", url=target.url))
        receiver.start()
        wait_until(lambda: len({alert["labels"]["number"] for alert in target.alerts}) == 1000)
    row("1,000 at once, target away", answered_s=round(answered_s, 2), rss_mib=round(mib), told=len(target.alerts))
    assert len(target.alerts) == 1000
    assert mib < MEMORY_MIB


def test_memory_stays_bounded_under_maximal_requests(receiver: ReceiverProcess) -> None:
    filler = "x" * 900_000
    highest = [0.0]
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            highest[0] = max(highest[0], receiver.memory_mib())

    watching = threading.Thread(target=look)
    watching.start()
    try:
        with ThreadPoolExecutor(32) as pool:
            alerts = [firing(number) | {"annotations": {"text": filler}} for number in range(300)]
            statuses = Counter(pool.map(lambda alert: receiver.post(alert).status_code, alerts))
    finally:
        over.set()
        watching.join()
    wait_until(lambda: receiver.count("waiting") == 0)
    row("300 of 0.9 MB, 32 at a time", statuses={str(key): count for key, count in statuses.items()}, peak_mib=round(highest[0]))
    assert set(statuses) <= {200, 503}
    assert highest[0] < 2 * MEMORY_MIB


def test_verdicts_delayed_past_the_bound_follow_their_alerts(tmp_path: Path, target: ListeningTarget) -> None:
    """With many alerts waiting for verdicts, none is sent much later than the bound, and every verdict is sent."""
    for number in range(40):
        two_ranks(tmp_path / "runs" / str(number), run_id=f"r{number}")
    receive = 'runs = ["runs"]\nenrich_within = "5s"'

    def told_runs(*words: str) -> set[str]:
        return {alert["labels"]["run_id"] for alert in target.alerts if not words or alert["annotations"].keys() & set(words)}

    with ReceiverProcess(tmp_path, CONFIG.format(receive=receive, url=target.url)) as receiver:
        began = time.monotonic()
        for number in range(40):
            assert receiver.post(straggler(f"r{number}")).status_code == 200
        wait_until(lambda: len(told_runs()) == 40)
        all_told_s = time.monotonic() - began
        wait_until(lambda: len(told_runs("verdict")) == 40)
        all_verdicts_s = time.monotonic() - began
    row(
        "40 runs, 5 s for verdicts",
        all_told_s=round(all_told_s, 1),
        in_time=40 - len(told_runs("no_verdict")),
        all_verdicts_s=round(all_verdicts_s, 1),
        messages=len(target.alerts),
    )
    # each alert once, and once more with its verdict if that came later
    assert len(target.alerts) == 40 + len(told_runs("no_verdict"))
