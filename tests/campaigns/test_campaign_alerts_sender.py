"""The sender over hours of receiver failures and a hundred kills: it delivers at least once, in order, and bounded.

Prints one row of JSON per case. Hours pass by a clock that the test advances; sockets, files and processes are real.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.alerts.deliver.sender_world import SenderWorld
from tests.alerts.deliver.test_outbox import check_delivered, send_killed
from tests.waiting import wait_until
from tests.webhook_receiver import Behaviour, WebhookReceiver, about, answer_with, never_ending, notice, receiving

from rankscope.alerts.deliver.message import messages_about
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.sender import POLL_S, Sender
from rankscope.alerts.deliver.targets import Target, TemplateName
from rankscope.alerts.deliver.templates import TEMPLATES
from rankscope.alerts.store.database import AlertStore

pytestmark = [pytest.mark.campaign, pytest.mark.slow]
KILLS = int(os.environ.get("RANKSCOPE_CAMPAIGN_KILLS", "100"))
HOUR_S = 3600.0
MEMORY_LIMIT_MIB = 150


def row(case: str, **figures: object) -> None:
    print(json.dumps({"case": case, **figures}))


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with receiving() as receiver:
        yield receiver


class World(SenderWorld):
    """A sender over a file, and its progress."""

    def __init__(self, receiver: WebhookReceiver, path: Path) -> None:
        super().__init__(receiver, path, chance=random.Random(1).random)
        self.restarted(timeout_s=0.5)
        self.attempts = 0

    def run(self, seconds: float) -> None:
        """Advance the clock by ``seconds``, from one due attempt to the next; a target that fails is looked at every second."""
        until = self.clock.now_ns + int(seconds * 1e9)
        while True:
            self.attempts += self.sender.run_due()
            due = self.box.next_due_ns(self.target.name)
            if due is None or max(due, self.clock.now_ns) >= until:
                break
            self.clock.now_ns = min(until, max(due, self.clock.now_ns + int(POLL_S * 1e9)))
        self.clock.now_ns = until


def unavailable(request: BaseHTTPRequestHandler, _accept: Callable[[], None]) -> None:
    request.connection.close()


def heard_but_504(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
    accept()
    answer_with(504)(request, accept)


@pytest.mark.parametrize("name", ["away", "503", "429", "never-ending"])
@pytest.mark.parametrize("hours", [0.75, 3.0])
def test_outage_of_receiver_for_hours_loses_no_alert(receiver: WebhookReceiver, tmp_path: Path, name: str, hours: float) -> None:
    kinds: dict[str, Behaviour | int] = {"away": unavailable, "503": 503, "429": 429, "never-ending": never_ending}
    world = World(receiver, tmp_path / "state")
    receiver.behaviour = kinds[name]
    world.box.put(about(*(notice(1, run=str(run)) for run in range(50))))
    world.run(hours * HOUR_S)
    tries, states = len(receiver.tried), world.states()
    receiver.behaviour = 200
    if hours > 1:
        assert states == {"dead": 50}
        assert len(world.box.replay()) == 50
    world.run(300)
    assert world.states() == {"delivered": 50}
    assert set(receiver.ids) == {message.id for message in world.box.list_messages()}
    # One attempt every two minutes, not one per message
    assert tries <= 12 + hours * 40
    row(f"receiver {name} for {hours} simulated h", attempts=tries, states=states, after=world.states(), lines=len(world.reports))


def test_flapping_network_loses_no_alert(receiver: WebhookReceiver, tmp_path: Path) -> None:
    chance = random.Random(3)
    ways: list[Behaviour] = [*([answer_with(200)] * 6), answer_with(503), heard_but_504, unavailable, answer_with(429)]

    def flap(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
        chance.choice(ways)(request, accept)

    receiver.behaviour = flap
    world = World(receiver, tmp_path / "state")
    put: list[Any] = []
    for round_ in range(40):
        fresh = [notice(rank, run=str(rank % 5), start_ns=10**18 + round_ * 10**9) for rank in range(5)]
        world.box.put(about(*fresh))
        put += fresh
        world.run(chance.random() * 30)
    world.run(1800)
    received = {(alert["fingerprint"], alert["startsAt"]) for _, payload in receiver.accepted for alert in payload["alerts"]}
    assert world.states() == {"delivered": world.states()["delivered"]}
    assert len(received) == len(put)
    again = len(receiver.ids) - len(set(receiver.ids))
    row("flapping network", alerts=len(put), attempts=world.attempts, messages=len(set(receiver.ids)), repeated=again)


def test_killed_sender_loses_no_message(receiver: WebhookReceiver, tmp_path: Path) -> None:
    box = Outbox(AlertStore(tmp_path / "state"))
    box.put(about(*(notice(rank, run=str(rank % 50)) for rank in range(3000)), most_alerts=1))
    ids = [message.id for message in box.list_messages()]
    receiver.behaviour = slow_a_little
    killed = send_killed(tmp_path / "state", receiver, KILLS, random.Random(11))
    check_delivered(receiver, ids)
    # The last thousand delivered messages are kept.
    assert set(box.counts()) == {("hook", "delivered")}
    row("sender killed", kills=killed, messages=len(ids), lost=0, repeated=len(receiver.ids) - len(ids))


def slow_a_little(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
    time.sleep(0.003)
    answer_with(200)(request, accept)


PUTTING = """
import sys, pathlib
from tests.webhook_receiver import about, notice
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.store.database import AlertStore
box = Outbox(AlertStore(pathlib.Path(sys.argv[1])))
for rank in range(10_000):
    box.put(about(notice(rank)))
    print(rank, flush=True)
"""


def test_killed_producer_loses_no_acknowledged_alert(receiver: WebhookReceiver, tmp_path: Path) -> None:
    path, chance = tmp_path / "state", random.Random(5)
    acknowledged: set[int] = set()
    for _ in range(KILLS):
        with subprocess.Popen([sys.executable, "-c", PUTTING, path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.random() * 0.1)
            process.kill()
            acknowledged |= {int(line) for line in process.stdout.read().split()[:-1]}
    world = World(receiver, path)
    world.run(60)
    received = [int(rank) for rank, _ in receiver.states]
    assert acknowledged
    assert acknowledged <= set(received)
    assert len(received) == len(set(received))
    row("who puts is killed", kills=KILLS, acknowledged=len(acknowledged), told=len(received), lost=0, twice=0)


@pytest.mark.parametrize("hours", [-6.0, 6.0])
def test_clock_step_neither_drops_nor_floods_messages(
    receiver: WebhookReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    # Given a sender on the machine's own clock, and a receiver that is down
    box = Outbox(AlertStore(tmp_path / "state"))
    reports: list[str] = []

    def sender() -> Sender:
        return Sender(box, [Target(name="hook", label="hook", url=Secret(value=receiver.url))], report=reports.append)

    receiver.behaviour = 503
    box.put(about(*(notice(1, run=str(run)) for run in range(20))))
    first = sender()
    first.run_due()
    # When the clock steps, also for a process that starts later
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + int(hours * HOUR_S * 1e9))
    first.run_due()
    first.stop()
    box.store.close()
    box = Outbox(AlertStore(tmp_path / "state"))
    second = sender()
    second.run_due()
    tried = len(receiver.tried)
    # Then it neither floods the receiver nor drops messages, and no message waits for hours
    assert tried <= 8
    receiver.behaviour = 200

    def delivered() -> bool:
        second.run_due()
        return box.counts() == {("hook", "delivered"): 20}

    wait_until(delivered, details=box.counts)
    row(f"clock steps by {hours:+.0f} h", attempts_before=tried, delivered=20, lost=0)


@pytest.mark.parametrize("groups", [1, 1000])
def test_thousand_alerts_at_once_are_delivered_within_limits(receiver: WebhookReceiver, tmp_path: Path, groups: int) -> None:
    path = tmp_path / "state"
    alerts = [notice(rank, run=str(rank % groups), more={"evidence": "x" * 800}) for rank in range(1000)]
    began = time.monotonic()
    Outbox(AlertStore(path)).put(messages_about("hook", alerts))
    job = Path(__file__).parent / "jobs" / "sending.py"
    sending = subprocess.Popen([sys.executable, str(job), str(path), receiver.url], stdout=subprocess.DEVNULL)
    # wait4 gives this child's own peak; RUSAGE_CHILDREN also covers earlier children.
    _, sending.returncode, used = os.wait4(sending.pid, 0)
    assert sending.returncode == 0
    peak_mib = used.ru_maxrss / 1024
    received = [alert["fingerprint"] for _, payload in receiver.accepted for alert in payload["alerts"]]
    assert sorted(received) == sorted(delivery.alert.fingerprint for delivery in alerts)
    assert max(map(len, receiver.bodies)) <= 20_000
    assert peak_mib < MEMORY_LIMIT_MIB
    row(
        f"1000 alerts at once in {groups} groups",
        requests=len(receiver.ids),
        seconds=round(time.monotonic() - began, 2),
        peak_mib=round(peak_mib),
        largest_body=max(map(len, receiver.bodies)),
    )


def test_hostile_text_yields_valid_json_within_size_limit_in_each_template(receiver: WebhookReceiver, tmp_path: Path) -> None:
    chance = random.Random(13)
    pieces = [
        "<!channel>",
        "\x1b[2J",
        "\0",
        "{{DATE()}}",
        "`" * 50,
        "</script>",
        "\ud83d",
        "é" * 5000,
        "x" * 50_000,
        "](",
        "&amp;",
        "\n",
    ]
    tried = 0
    names: tuple[TemplateName, ...] = ("generic", "slack", "teams", "pagerduty")
    for _ in range(500):
        more = {
            name: "".join(chance.choices(pieces, k=chance.randint(1, 6))).encode("utf-8", "replace").decode()
            for name in ("summary", "description", "cause", "next", "evidence", "dashboard_url", "runbook_url", "cost")
        }
        for name in names:
            [message] = about(notice(1, more=more), most_alerts=1)
            body = TEMPLATES[name](message.body, "key")
            msgspec.json.decode(body)
            assert len(body) <= 20_000
            tried += 1
    row("hostile texts", bodies=tried, too_large=0)


def test_killed_watcher_repeats_alerts_with_the_same_message_id(receiver: WebhookReceiver, tmp_path: Path) -> None:
    chance, rounds = random.Random(17), 1 + max(1, KILLS // 5)
    killed = repeated = 0
    usual_s = 60.0
    for round_ in range(rounds):
        run = simulated_run(tmp_path / f"run{round_}")
        before = len(receiver.ids)
        command = [sys.executable, "-m", "rankscope", "alerts", "watch", str(run), "--once"]
        command += ["--state", str(tmp_path / f"state{round_}"), "--webhook", receiver.url]
        # The first round has no kills: its duration sets the times of the kills in the others.
        kills = 10 if round_ else 0
        for attempt in range(kills + 1):
            began = time.monotonic()
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                try:
                    process.wait(usual_s * (0.5 + 0.5 * chance.random()) if attempt < kills else 60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
            if process.returncode == 0:
                break
        assert process.returncode == 0
        usual_s = time.monotonic() - began
        received = receiver.accepted[before:]
        assert len({message_id for message_id, _ in received}) == 1
        assert len({alert["startsAt"] for _, payload in received for alert in payload["alerts"]}) == 1
        repeated += len(received) - 1
    row("watcher killed", rounds=rounds, kills=killed, lost=0, repeated_with_the_same_id=repeated)


def simulated_run(path: Path) -> Path:
    """Write a finished run whose rank 2 is slow, and return its folder."""
    from tests.alerts.conftest import RunOnDisk

    run = RunOnDisk(path, slow=2, name=path.name)
    run.grow()
    run.end()
    return path
