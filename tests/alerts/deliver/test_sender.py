"""The sender against real receivers that fail in many ways, with a clock that the test advances."""

from __future__ import annotations

import resource
import shlex
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.alerts.deliver.sender_world import SECRET, SenderWorld
from tests.waiting import wait_until
from tests.webhook_receiver import Behaviour, WebhookReceiver, about, answer_with, never_ending, notice, receiving

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.outbox_command import outbox
from rankscope.alerts.deliver.retrying import AttemptResult, judge_status, pause_s
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.targets import Rate, Target
from rankscope.alerts.store.database import AlertStore, StoreError


def test_message_is_delivered_once_under_one_id(world: SenderWorld) -> None:
    world.box.put(about(notice(1)))
    assert (world.after(0), world.after(3600)) == (1, 0)
    [message] = world.box.list_messages()
    assert world.receiver.ids == [message.id]
    assert (message.state, message.attempts, message.last_error) == ("delivered", 1, "")


@pytest.mark.parametrize("status", [401, 403, 404, 407, 408, 429, 500, 502, 503, 504])
def test_a_busy_receiver_is_retried_with_the_same_id_and_growing_pauses(
    world: SenderWorld, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.receiver.behaviour = status
    world.box.put(about(notice(1)))
    assert world.after(0) == 1
    for pause in (5, 10, 20, 40, 80, 120, 120):
        assert (world.after(pause - 0.1), world.after(0.2)) == (0, 1)
    world.receiver.behaviour = 200
    world.after(121)
    assert set(world.receiver.tried) == set(world.receiver.ids)
    assert world.states() == {"delivered": 1}
    [failed], [delivered] = world.reports, caplog.messages
    assert all(fact in failed for fact in ("hook: not delivered", str(status)))
    assert all(fact in delivered for fact in ("hook: delivered", "8 failed attempts"))


def test_message_is_dead_after_an_hour_and_can_be_replayed(world: SenderWorld) -> None:
    world.receiver.behaviour = 503
    world.box.put(about(notice(1), notice(1, run="other")))
    while world.states().get("waiting"):
        world.after(60)
    assert len(world.receiver.tried) < 45
    dead = world.box.list_messages()
    assert all("3600 s" in item.last_error and "503" in item.last_error for item in dead)
    assert world.sender.lost() == ["hook"]
    world.receiver.behaviour = 200
    assert world.after(7200) == 0
    assert sorted(world.box.replay(target="hook")) == sorted(item.id for item in dead)
    assert world.after(0) == 2
    assert set(world.receiver.ids) == {item.id for item in dead}


def test_internal_error_loses_no_alert(world: SenderWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    class Exhausted:
        """A courier whose first three attempts fail because the machine has no more threads."""

        tries = 0

        def attempt(self, message_id: str, payload: bytes) -> AttemptResult:
            del message_id, payload
            self.tries += 1
            if self.tries <= 3:
                raise RuntimeError("can't start new thread")
            return AttemptResult(kind="delivered")

    courier = Exhausted()
    sender = Sender(world.box, [world.target], report=world.reports.append, courier=lambda _: courier)
    world.box.put(about(notice(1)))
    for _ in range(4):
        sender.run_due()
        world.clock.advance(30)
    assert world.states() == {"delivered": 1}
    [failed], [delivered] = world.reports, caplog.messages
    assert all(fact in failed for fact in ("hook: not delivered", "RuntimeError"))
    assert all(fact in delivered for fact in ("hook: delivered", "3 failed attempts"))


@pytest.mark.parametrize("status", [400, 405, 413, 422])
def test_refusal_is_final_and_blocks_no_other_message(world: SenderWorld, status: int) -> None:
    world.receiver.behaviour = status
    world.box.put(about(notice(1)))
    world.after(0)
    world.receiver.behaviour = 200
    world.box.put(about(notice(2)))
    world.after(0)
    assert world.states() == {"dead": 1, "delivered": 1}
    assert world.receiver.states == [("2", "firing")]
    [report] = world.reports
    assert all(fact in report for fact in ("hook: not delivered", str(status)))


def test_undelivered_report_names_the_command_that_lists_messages(receiver: WebhookReceiver, tmp_path: Path) -> None:
    world = SenderWorld(receiver, tmp_path / "my runs")
    receiver.behaviour = 422
    world.box.put(about(notice(1)))
    world.after(0)
    [line] = world.reports
    output, command = line.split(", see rankscope ")
    assert all(fact in output for fact in ("hook: not delivered", "422", "kept"))
    listed = CliRunner().invoke(outbox, shlex.split(command.removeprefix("alerts outbox ")))
    assert (listed.exit_code, "refused with 422" in listed.output) == (0, True)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(world: SenderWorld, status: int) -> None:
    with receiving() as elsewhere:
        world.receiver.behaviour = answer_with(status, Location=elsewhere.url)
        world.box.put(about(notice(1)))
        world.after(0)
        assert elsewhere.tried == []
    assert all(fact in world.box.list_messages()[0].last_error for fact in (str(status), "redirects"))


def test_http_410_stops_sending_until_replay_or_restart(world: SenderWorld) -> None:
    world.receiver.behaviour = 410
    world.box.put(about(notice(1), notice(1, run="other")))
    world.after(0)
    world.box.put(about(notice(2, run="third")))
    assert world.after(7200) == 0
    assert world.states() == {"dead": 3}
    assert len(world.receiver.tried) == 1
    world.receiver.behaviour = 200
    [first, *_] = world.box.list_messages()
    world.box.replay([first.id])
    assert world.after(0) == 1
    # or until the sender restarts
    world.receiver.behaviour = 410
    world.box.put(about(notice(3)))
    world.after(0)
    world.receiver.behaviour = 200
    world.restarted()
    world.box.put(about(notice(4)))
    assert world.after(0) == 1


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry_After": "77"}, 77),
        ({"Retry_After": "Wed, 21 Oct 2026 07:30:00 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 120),
        ({"Retry_After": "99999999999999999999"}, 600),
        ({"Retry_After": "Wed, 21 Oct 2126 07:30:00 GMT"}, 600),
        ({"Retry_After": "-3"}, 5),
        ({"Retry_After": "soon"}, 5),
        ({"Retry_After": "1"}, 5),
    ],
)
def test_retry_after_header_is_honoured_within_bounds(world: SenderWorld, headers: dict[str, str], wait_s: float) -> None:
    def busy(request: BaseHTTPRequestHandler, _accept: Callable[[], None]) -> None:
        request.send_response_only(429)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()

    world.receiver.behaviour = busy
    world.box.put(about(notice(1)))
    world.after(0)
    world.receiver.behaviour = 200
    # later messages wait, too
    world.box.put(about(notice(1, run="other")))
    assert (world.after(wait_s - 0.5), world.after(1)) == (0, 2)


def test_refused_connection_is_retried(world: SenderWorld, free_port: Callable[[], int]) -> None:
    sender = world.restarted(url=Secret(value=f"http://127.0.0.1:{free_port()}/{SECRET}"))
    world.box.put(about(notice(1)))
    sender.run_due()
    [message] = world.box.list_messages()
    assert (message.state, message.attempts) == ("waiting", 1)
    assert "Connection refused" in message.last_error
    # An alert that was certainly not delivered needs no end
    assert world.box.put(about(notice(1, ended=True))) == 0
    assert world.states() == {"overtaken": 1}
    assert SECRET not in "".join(world.reports)


def huge(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
    accept()
    request.send_response(200)
    request.end_headers()
    for _ in range(10_000):
        request.wfile.write(b"x" * 100_000)


def silent(request: BaseHTTPRequestHandler, _accept: Callable[[], None]) -> None:
    time.sleep(0.6)


def garbage(request: BaseHTTPRequestHandler, _accept: Callable[[], None]) -> None:
    request.wfile.write(b"\0\xff not http\r\n\r\n")


def hanging_up(request: BaseHTTPRequestHandler, _accept: Callable[[], None]) -> None:
    request.close_connection = True


def test_huge_answer_does_not_block_delivery(world: SenderWorld) -> None:
    world.receiver.behaviour = huge
    world.box.put(about(notice(1)))
    world.after(0)
    assert world.states() == {"delivered": 1}


@pytest.mark.parametrize("behaviour", [never_ending, silent, garbage, hanging_up])
def test_missing_or_invalid_answer_counts_as_possibly_delivered(world: SenderWorld, behaviour: Behaviour) -> None:
    world.restarted(timeout_s=0.3)
    world.receiver.behaviour = behaviour
    world.box.put(about(notice(1)))
    world.after(0)
    [message] = world.box.list_messages()
    assert (message.state, message.attempts) == ("waiting", 1)
    # so the end is sent, too, after the firing
    world.box.put(about(notice(1, ended=True)))
    world.receiver.behaviour = 200
    world.restarted(timeout_s=30.0)
    assert world.after(200) == 2
    assert world.receiver.states == [("1", "firing"), ("1", "resolved")]
    assert world.receiver.ids[0] == message.id


def test_unavailable_receiver_is_probed_with_one_message_at_a_time(world: SenderWorld) -> None:
    world.receiver.behaviour = 503
    world.box.put(about(*(notice(1, run=str(run)) for run in range(100))))
    world.after(0)
    for _ in range(10):
        world.after(120)
    assert len(world.receiver.tried) <= 3 + 10
    world.receiver.behaviour = 200
    world.after(120)
    world.after(120)
    assert world.states() == {"delivered": 100}
    assert len(world.receiver.ids) == 100


def test_failing_message_delays_only_its_group(world: SenderWorld) -> None:
    def poisoned(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
        answer_with(500 if b'"run_id":"bad"' in world.receiver.bodies[-1] else 200)(request, accept)

    world.receiver.behaviour = poisoned
    world.box.put(about(notice(1, run="bad")))
    world.after(0)
    world.box.put(about(notice(2, run="bad"), *(notice(1, run=str(run)) for run in range(40))))
    for _ in range(12):
        world.after(5)
    assert len(world.receiver.accepted) == 40
    assert world.states() == {"delivered": 40, "waiting": 2}


def test_rate_limit_is_kept(world: SenderWorld) -> None:
    world.restarted(rate=Rate(2, 60))
    for rank in range(6):
        world.box.put(about(notice(rank)))
        world.after(0)
    assert len(world.receiver.ids) == 2
    assert (world.after(29), world.after(2)) == (0, 1)
    assert [alert["labels"]["rank"] for _, payload in world.receiver.accepted for alert in payload["alerts"]] == ["0", "1", "2"]


def test_slow_receiver_delays_no_other_target(receiver: WebhookReceiver) -> None:
    release: list[bool] = []

    def slow(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
        while not release:
            time.sleep(0.01)
        answer_with(200)(request, accept)

    with receiving() as other:
        receiver.behaviour = slow
        box = Outbox(AlertStore(None))
        targets = [
            Target(name=name, label=name, url=Secret(value=where.url), timeout_s=30.0)
            for name, where in (("slow", receiver), ("quick", other))
        ]
        sender = Sender(box, targets, report=pytest.fail)
        sender.start()
        box.put([*about(notice(1), target="slow"), *about(notice(1), notice(1, run="other"), target="quick")])
        wait_until(lambda: sender.drain(0.1) == ["slow"])
        assert len(other.ids) == 2
        release.append(True)
        assert sender.drain(120) == []
        sender.stop()
    assert len(receiver.ids) == 1


def test_one_process_at_a_time_sends_from_an_outbox(receiver: WebhookReceiver, tmp_path: Path) -> None:
    first = SenderWorld(receiver, tmp_path / "state")
    first.sender.run_due()
    second = SenderWorld(receiver, tmp_path / "state")
    second.box.put(about(notice(1)))
    assert second.sender.run_due() == 0
    [report] = second.reports
    assert report.startswith(f"{tmp_path}/state/alerts.sqlite: another process")
    assert first.sender.run_due() == 1
    first.box.store.close()
    second.box.put(about(notice(2)))
    assert second.sender.run_due() == 1


def test_message_of_an_unconfigured_target_is_given_up_after_an_hour(world: SenderWorld) -> None:
    world.box.put(about(notice(1), target="gone"))
    world.after(0)
    [report] = world.reports
    assert all(fact in report for fact in ("1 message", "gone"))
    world.after(3700)
    assert world.box.counts() == {("gone", "dead"): 1}


def test_message_accepted_during_full_disk_is_not_sent_again(receiver: WebhookReceiver, tmp_path: Path) -> None:
    world = SenderWorld(receiver, tmp_path / "state")
    world.box.put(about(notice(1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(request: BaseHTTPRequestHandler, accept: Callable[[], None]) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        answer_with(200)(request, accept)

    receiver.behaviour = fill
    try:
        with pytest.raises(StoreError, match="cannot be used"):
            world.after(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert world.after(60) == 0
    assert world.states() == {"delivered": 1}
    assert len(receiver.tried) == 1


def test_unreadable_payload_blocks_no_other_message(world: SenderWorld) -> None:
    world.restarted(template="slack")
    world.box.put(about(notice(1)))
    with world.box.store.transaction() as database:
        database.execute("UPDATE messages SET body = 'no payload'")
    world.box.put(about(notice(1, run="other")))
    world.after(0)
    assert world.states() == {"dead": 1, "delivered": 1}


def test_retry_pauses_grow_with_jitter_up_to_a_limit() -> None:
    assert [pause_s(failures, chance=1.0) for failures in (1, 2, 3, 6, 1000)] == [5, 10, 20, 120, 120]
    assert all(0.75 * pause_s(n, chance=1.0) == pause_s(n, chance=0.0) for n in range(1, 20))
    assert judge_status(100).kind == judge_status(599).kind == "retry"
