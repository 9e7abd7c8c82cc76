"""The outbox: no message is lost or duplicated, also by a sender that is killed, and alerts that ended are not sent."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.full_disk import disk_with_room_for
from tests.webhook_receiver import SimulatedClock, WebhookReceiver, about, notice, receiving

from rankscope.alerts.deliver.message import MAX_PAYLOAD_BYTES, state_of
from rankscope.alerts.deliver.outbox import ClaimedMessage, Outbox
from rankscope.alerts.store.database import AlertStore, StoreError
from rankscope.alerts.store.folders import STORE_FILE


@pytest.fixture
def box() -> Outbox:
    return Outbox(AlertStore(None, clock=SimulatedClock()))


def claim(box: Outbox) -> ClaimedMessage:
    message = box.claim("hook")
    assert message is not None
    return message


def alerts_of(box: Outbox) -> list[tuple[str, str]]:
    """Return rank and status of the waiting alerts, in the order in which they will be sent."""
    bodies = [box.show(message.id) for message in box.list_messages(state="waiting")]
    payloads = [msgspec.json.decode(body[1]) for body in bodies if body is not None]
    return [(alert["labels"]["rank"], alert["status"]) for payload in payloads for alert in payload["alerts"]]


def test_notice_put_twice_is_queued_once(box: Outbox) -> None:
    assert box.put(about(notice(1), notice(2))) == 2
    assert box.put(about(notice(1), notice(2))) == 0
    assert box.put(about(notice(2), notice(3))) == 1
    assert alerts_of(box) == [("1", "firing"), ("2", "firing"), ("3", "firing")]
    # the next firing of the same alert is a new message
    assert box.put(about(notice(1, start_ns=10**18))) == 1


def test_duplicate_alert_in_a_payload_is_queued_once(box: Outbox) -> None:
    assert box.put(about(notice(1), notice(1))) == 1
    assert box.put(about(notice(1, ended=True))) == 0
    assert box.counts() == {("hook", "overtaken"): 1}


def test_outbox_owes_each_target_only_undelivered_states(tmp_path: Path) -> None:
    firing, ended = state_of(notice(1)), state_of(notice(1, ended=True))
    more = msgspec.structs.replace(firing, revision="7")
    with AlertStore(tmp_path) as store:
        box = Outbox(store)
        # The end of an alert is owed only to those that its beginning was put for
        assert (box.owes("hook", firing), box.owes("hook", ended)) == (True, False)
        box.put(about(notice(1)))
        assert (box.owes("hook", firing), box.owes("hook", more), box.owes("else", firing)) == (False, True, True)
    # Also for the next process
    with AlertStore(tmp_path) as store:
        box = Outbox(store)
        assert (box.owes("hook", firing), box.owes("hook", ended)) == (False, True)
        box.put(about(notice(1, ended=True)))
        assert not box.owes("hook", ended)
        # The next firing of the same alert is another one
        assert box.owes("hook", state_of(notice(1, start_ns=10**18)))


def test_message_ids_are_deterministic() -> None:
    [message], [same], [other_target] = about(notice(1), notice(2)), about(notice(2), notice(1)), about(notice(1), target="else")
    assert message.id == same.id != other_target.id


def test_new_revision_of_a_queued_alert_is_queued(box: Outbox) -> None:
    [message] = about(notice(1))
    box.put([message])
    states = tuple(msgspec.structs.replace(state, revision="capture") for state in message.alerts)
    assert box.put([msgspec.structs.replace(message, id="msg_more", alerts=states)]) == 1
    # and both are dropped when the alert ends before its delivery
    assert box.put(about(notice(1, ended=True))) == 0
    assert alerts_of(box) == []


def test_alert_resolved_before_delivery_is_not_sent(box: Outbox) -> None:
    box.put(about(notice(1), notice(2)))
    assert box.put(about(notice(1, ended=True))) == 0
    assert alerts_of(box) == [("2", "firing")]
    assert box.put(about(notice(2, ended=True), notice(3))) == 1
    assert alerts_of(box) == [("3", "firing")]
    assert box.counts() == {("hook", "overtaken"): 1, ("hook", "waiting"): 1}
    # the same notices again add no message
    assert box.put(about(notice(1, ended=True), notice(2, ended=True), notice(2))) == 0


def test_resolved_is_sent_if_firing_may_have_been_delivered(box: Outbox) -> None:
    box.put(about(notice(1)))
    claim(box)  # the sender is killed after its claim
    assert box.put(about(notice(1, ended=True))) == 1
    assert alerts_of(box) == [("1", "firing"), ("1", "resolved")]


def test_resolved_is_dropped_with_its_refused_firing(box: Outbox) -> None:
    box.put(about(notice(1)))
    claimed = claim(box)
    box.put(about(notice(1, ended=True), notice(2)))
    box.record(claimed, "waiting", reason="answered 500", next_attempt_ns=1)
    assert alerts_of(box) == [("2", "firing")]


def test_resolved_is_not_sent_after_firing_was_given_up(box: Outbox) -> None:
    box.put(about(notice(1), notice(2)))
    claimed = claim(box)
    box.record(claimed, "dead", reason="refused with 404")
    assert box.put(about(notice(1, ended=True))) == 0
    # Replayed, only the alerts that still fire are sent
    [dead] = box.list_messages(state="dead")
    assert box.replay([dead.id]) == [dead.id]
    assert alerts_of(box) == [("2", "firing")]
    # and nothing is sent once all of them ended
    claimed = claim(box)
    box.record(claimed, "dead", reason="refused with 404")
    box.put(about(notice(2, ended=True)))
    assert box.replay() == []


def test_resolved_without_a_queued_firing_is_sent(box: Outbox) -> None:
    assert box.put(about(notice(1, ended=True))) == 1


def test_messages_of_a_group_keep_their_order(box: Outbox) -> None:
    box.put(about(notice(1)))
    first = claim(box)
    box.put(about(notice(2), notice(1, run="other")))
    box.record(first, "waiting", received=True, next_attempt_ns=box.now_ns() + 10**9)
    # While the first message of a group waits, only other groups are sent
    assert b'"run_id":"other"' in claim(box).body


def test_large_alert_keeps_summary_and_labels() -> None:
    huge = notice(1, more={"evidence": "é" * 10**6} | {f"more{number}": "<" * 5000 for number in range(300)})
    [message] = about(huge)
    assert len(message.body) <= MAX_PAYLOAD_BYTES
    [alert] = msgspec.json.decode(message.body)["alerts"]
    assert alert["annotations"]["summary"] == "rank 1"
    assert alert["labels"] == huge.alert.labels


@given(st.lists(st.dictionaries(st.text(max_size=3000), st.text(max_size=30_000), max_size=8), min_size=1, max_size=30))
def test_no_alert_is_left_out_and_no_body_is_too_large(annotations: list[dict[str, str]]) -> None:
    notices = [
        msgspec.structs.replace(item, alert=msgspec.structs.replace(item.alert, annotations=texts))
        for item, texts in ((notice(rank), texts) for rank, texts in enumerate(annotations))
    ]
    messages = about(*notices)
    assert all(len(message.body) <= 20_000 and len(message.alerts) <= 16 for message in messages)
    fingerprints = [state.fingerprint for message in messages for state in message.alerts]
    assert sorted(fingerprints) == sorted(item.alert.fingerprint for item in notices)


def test_oversized_labels_still_make_a_message(box: Outbox) -> None:
    first_notice = notice(1)
    labels = {f"label{number}" * 100: "\U0001f680" * 10**4 for number in range(200)} | {"alertname": "x" * 10**5}
    alert = msgspec.structs.replace(first_notice.alert, labels=labels, fingerprint="f" * 10**5)
    huge = msgspec.structs.replace(first_notice, alert=alert)
    messages = about(huge)
    assert len(messages[0].body) <= 20_000
    assert box.put(messages) == 1


def test_messages_survive_a_kill_after_put(tmp_path: Path) -> None:
    path = tmp_path / "state"
    code = (
        "import os, sys, pathlib\nfrom tests.webhook_receiver import about, notice\n"
        "from rankscope.alerts.deliver.outbox import Outbox\nfrom rankscope.alerts.store.database import AlertStore\n"
        "Outbox(AlertStore(pathlib.Path(sys.argv[1]))).put(about(*(notice(rank) for rank in range(20))))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    completed = subprocess.run([sys.executable, "-c", code, path], check=False, cwd=Path(__file__).parents[3])
    assert completed.returncode == -9
    assert len(alerts_of(Outbox(AlertStore(path)))) == 20


@pytest.mark.slow
def test_concurrent_processes_can_create_one_outbox(tmp_path: Path) -> None:
    path = tmp_path / "state"
    code = (
        "import pathlib, sys\nfrom tests.webhook_receiver import about, notice\n"
        "from rankscope.alerts.deliver.outbox import Outbox\nfrom rankscope.alerts.store.database import AlertStore\n"
        "print(flush=True)\nsys.stdin.readline()\nbox = Outbox(AlertStore(pathlib.Path(sys.argv[1])))\n"
        "for rank in range(20): box.put(about(notice(rank, run=sys.argv[2] + str(rank))))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, path, f"{number}-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0] * 4
    assert len(alerts_of(Outbox(AlertStore(path)))) == 80


def test_full_disk_loses_no_queued_message(tmp_path: Path) -> None:
    path = tmp_path / "state"
    box = Outbox(AlertStore(path))
    taken = 0
    with disk_with_room_for(400_000):
        while taken < 1000:
            try:
                box.put(about(notice(taken, run=str(taken))))
            except StoreError as error:
                assert "alerts.sqlite: cannot be used" in str(error)  # noqa: PT017 - any of the puts may fail
                break
            taken += 1
    assert 0 < taken < 1000
    assert len(alerts_of(box)) == taken
    # when the disk has room again, the refused message can be put
    assert box.put(about(notice(taken, run=str(taken)))) == 1
    assert len(alerts_of(Outbox(AlertStore(path)))) == taken + 1


def test_full_outbox_can_be_drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.alerts.store.database.MAX_FILE_BYTES", 2**20)
    box = Outbox(AlertStore(tmp_path / "state", clock=SimulatedClock()))

    def fill() -> None:
        for run in itertools.count():
            box.put(about(notice(1, run=str(run), more={"evidence": "x" * 3000})))

    with pytest.raises(StoreError, match="holds 1 MiB already"):
        fill()
    count = len(box.list_messages())
    while claimed := box.claim("hook"):
        box.record(claimed, "dead", reason="x" * 300)
    assert box.counts() == {("hook", "dead"): count}
    box.drop(state="dead")
    assert box.put(about(notice(1))) == 1


def test_finished_messages_are_pruned(monkeypatch: pytest.MonkeyPatch, box: Outbox) -> None:
    monkeypatch.setattr("rankscope.alerts.deliver.outbox.KEPT_DELIVERED", 5)
    monkeypatch.setattr("rankscope.alerts.deliver.outbox.KEPT_DEAD", 3)
    monkeypatch.setattr("rankscope.alerts.deliver.outbox.KEPT_STATES", 10)
    box.put(about(*(notice(1, run=str(run)) for run in range(40))))
    for number in range(30):
        box.record(claim(box), "delivered" if number < 15 else "dead")
    box.prune()
    assert box.counts() == {("hook", "delivered"): 5, ("hook", "dead"): 3, ("hook", "waiting"): 10}


def test_dropped_messages_are_removed(box: Outbox) -> None:
    box.put(about(notice(1), notice(1, run="r2")))
    first, second = box.list_messages()
    assert box.drop([first.id]) == [first.id]
    assert [message.id for message in box.list_messages()] == [second.id]
    # its firing was never delivered, so its end is not sent either
    assert box.put(about(notice(1, ended=True))) == 0
    assert box.drop(state="waiting") == [second.id]


def test_reboot_does_not_postpone_retries_beyond_one_hour(tmp_path: Path) -> None:
    # Given a message that was scheduled by a wrong clock before the machine rebooted
    path = tmp_path / "state"
    box = Outbox(AlertStore(path))
    box.put(about(notice(1)))
    box.store.close()
    with sqlite3.connect(path / STORE_FILE) as database:
        database.execute("UPDATE messages SET queued_ns = 4e18, next_attempt_ns = 4e18")
        database.execute("UPDATE meta SET value = 'another boot' WHERE name = 'boot'")
    database.close()
    [result] = Outbox(AlertStore(path)).list_messages()
    assert result.next_attempt_s is not None
    assert result.next_attempt_s <= 3600


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
def test_repeatedly_killed_sender_delivers_every_message(tmp_path: Path) -> None:
    box = Outbox(AlertStore(tmp_path / "state"))
    box.put(about(*(notice(rank, run=str(rank % 7)) for rank in range(105)), most_alerts=1))
    ids = [message.id for message in box.list_messages()]
    with receiving() as receiver:
        killed = send_killed(tmp_path / "state", receiver, 3, random.Random(7))
        check_delivered(receiver, ids)
    assert killed
    assert box.counts() == {("hook", "delivered"): 105}


@pytest.mark.slow
def test_killed_watcher_delivers_each_alert_under_one_id(make_run: Any, tmp_path: Path) -> None:
    run = make_run(slow=2, ended=True)
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
