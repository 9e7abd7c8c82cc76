"""What each receiver of the watcher has yet to get: notices that wait, repeat and end."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from tests.alerts.watch.watched_world import RecordingWebhook

from rankscope.alerts.deliver.endpoint import Endpoint
from rankscope.alerts.deliver.notifiers import Alertmanager, Webhook
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.post import DeliveryError
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.targets import webhook_target
from rankscope.alerts.payload import Notice
from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.watch.conditions.candidate import Subject
from rankscope.alerts.watch.delivery import RESOLVED_FOR_S, RETRY_S, Delivery
from rankscope.alerts.watch.ledger import AlertLedger, FiringPolicy
from rankscope.alerts.watcher_alerts import STRAGGLER

HERE = "http://127.0.0.1"
STARTED_NS = 1_700_000_000_000_000_000


class Elapsed:
    """A monotonic clock in seconds that the test advances."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Manager(Alertmanager):
    """An Alertmanager that records its posts, or refuses them."""

    def __init__(self) -> None:
        super().__init__(Endpoint(url=Secret(value=HERE)), valid_s=None)
        self.name = "Alertmanager"
        self.broken = False
        self.posts: list[list[tuple[str, bool]]] = []

    def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
        del now_unix_ns
        if self.broken:
            raise DeliveryError("answered 500")
        self.posts.append([(notice.alert.labels["rank"], notice.alert.status == "resolved") for notice in notices])


def test_resolved_is_sent_only_to_receivers_of_the_firing() -> None:
    # Given two receivers, of which one is broken while rank 2 fires
    working, broken = RecordingWebhook(), RecordingWebhook()
    broken.broken = True
    reports: list[str] = []
    delivery = Delivery(webhooks=[working, broken], interval_s=1, report=reports.append)

    ledger = firing(2)
    delivery.deliver(ledger, now_unix_ns=0)
    assert delivery.undelivered(ledger) == [broken.name]
    # When both fail to receive its end, recover, and rank 3 of the same run fires
    working.broken = True
    ledger.resolve("r", now_unix_ns=2, because="over")
    delivery.deliver(ledger, now_unix_ns=0)
    working.broken = broken.broken = False
    ledger.entries += firing(3).entries
    delivery.deliver(ledger, now_unix_ns=0)
    # Then only the receiver that got the firing gets the end, and the ended alert is forgotten
    assert sorted(working.heard) == [("firing", "2"), ("firing", "3"), ("resolved", "2")]
    assert broken.heard == [("firing", "3")]
    assert [entry.alert.labels["rank"] for entry in ledger.entries] == ["3"]
    assert len([line for line in reports if "not delivered" in line]) == 2
    assert all("answered 500" in line for line in reports)


def firing(*ranks: int) -> AlertLedger:
    """Return a ledger in which these ranks fire and no receiver was notified."""
    ledger = AlertLedger()
    candidates = [Subject(run_id="r1").candidate(STRAGGLER, {"summary": "It is slow."}, rank=rank) for rank in ranks]
    ledger.update("r", candidates, now_unix_ns=STARTED_NS, policy=FiringPolicy(1, 1))
    return ledger


def test_watcher_killed_before_saving_repeats_no_delivery() -> None:
    outbox, target = Outbox(AlertStore(None)), webhook_target("http://hooks.example/x")
    # Given a second watcher that begins with a ledger saved before the webhook was notified
    for _ in range(2):
        ledger = firing(2, 3)
        delivery = Delivery(webhooks=[Webhook(target, outbox, wake=lambda: None)], interval_s=1, report=pytest.fail)
        while delivery.undelivered(ledger):
            delivery.deliver(ledger, now_unix_ns=0)
    [message] = outbox.list_messages()
    assert message.alerts == 2


def test_alerts_stay_in_the_ledger_while_the_outbox_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, target, ledger = Outbox(AlertStore(None)), webhook_target("http://hooks.example/x"), firing(2)
    reports: list[str] = []
    delivery = Delivery(webhooks=[Webhook(target, outbox, wake=lambda: None)], interval_s=1, report=reports.append)
    with monkeypatch.context() as patch:
        patch.setattr("rankscope.alerts.store.database.MAX_FILE_BYTES", 0)
        for _ in range(5):
            delivery.deliver(ledger, now_unix_ns=0)
        assert delivery.undelivered(ledger) == [f"{target.name} http://hooks.example/…"]
    delivery.deliver(ledger, now_unix_ns=0)
    assert delivery.undelivered(ledger) == []
    assert len(outbox.list_messages()) == 1
    assert len(reports) == 1


class Posting:
    """A delivery to one Alertmanager, every ten seconds of a clock that the test advances."""

    def __init__(self, ledger: AlertLedger) -> None:
        self.manager, self.ledger, self.clock = Manager(), ledger, Elapsed()
        self.reports: list[str] = []
        self.step_s = 0
        """Seconds by which the clock of the machine has been set."""
        self.delivery = Delivery(alertmanagers=[self.manager], interval_s=10, report=self.reports.append, elapsed=self.clock)

    def unix_ns(self) -> int:
        return 10**18 + (self.step_s + int(self.clock.now_s)) * 10**9

    def deliver_after(self, seconds: float) -> int:
        """Deliver ``seconds`` later and return the number of posts so far."""
        self.clock.now_s += seconds
        self.delivery.deliver(self.ledger, now_unix_ns=self.unix_ns(), wait_s=30.0)
        return len(self.manager.posts)


@pytest.mark.parametrize("step_s", [0, -6 * 3600, 6 * 3600])
def test_alertmanager_gets_firing_alerts_at_every_interval_for_any_clock(step_s: int) -> None:
    posting = Posting(firing(2, 3))
    assert posting.deliver_after(0) == 1
    posting.step_s = step_s
    # Repeated at every interval only; a change is posted at once
    assert [posting.deliver_after(seconds) for seconds in (1, 9, 10)] == [1, 2, 3]
    posting.ledger.entries += firing(4).entries
    assert posting.deliver_after(1) == 4
    assert posting.manager.posts == [[("2", False), ("3", False)]] * 3 + [[("2", False), ("3", False), ("4", False)]]
    assert posting.reports == []


def test_resolved_alert_is_posted_for_a_limited_time() -> None:
    posting = Posting(firing(2))
    posting.deliver_after(0)
    posting.ledger.resolve("r", now_unix_ns=posting.unix_ns(), because="over")
    assert posting.deliver_after(1) == 2
    assert posting.deliver_after(RESOLVED_FOR_S - 2) == 3
    assert posting.manager.posts[1:] == [[("2", True)]] * 2
    posting.deliver_after(2)
    assert posting.ledger.entries == []
    posts = len(posting.manager.posts)
    assert posting.deliver_after(100) == posts
    assert posting.delivery.undelivered(posting.ledger) == []


def test_recovered_alertmanager_gets_the_firing_alerts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    posting = Posting(firing(2))
    posting.manager.broken = True
    for _ in range(5):
        assert posting.deliver_after(10) == 0
    assert posting.delivery.undelivered(posting.ledger) == ["Alertmanager"]
    posting.manager.broken = False
    assert posting.deliver_after(10) == 1
    assert posting.delivery.undelivered(posting.ledger) == []
    assert len(posting.reports) == len(caplog.messages) == 1


def test_a_failing_alertmanager_is_tried_again_after_a_pause() -> None:
    posting = Posting(firing(2))
    posting.manager.broken = True
    posting.deliver_after(0)
    posting.manager.broken = False
    assert [posting.deliver_after(seconds) for seconds in (1, RETRY_S - 2, 1)] == [0, 0, 1]


def test_alert_firing_again_is_no_longer_posted_as_resolved() -> None:
    posting, policy = Posting(AlertLedger()), FiringPolicy(1, 1)
    candidate = Subject(run_id="r1").candidate(STRAGGLER, {"summary": "It is slow."}, rank=2)
    for seconds, present in ((1, [candidate]), (2, []), (3, [candidate])):
        posting.ledger.update("r", present, now_unix_ns=seconds * 10**9, policy=policy)
        posting.deliver_after(10)
    assert posting.manager.posts == [[("2", False)], [("2", True)], [("2", False)]]


def test_a_slow_alertmanager_delays_neither_webhooks_nor_the_evaluation() -> None:
    class Slow(Manager):
        def send(self, notices: Sequence[Notice], *, now_unix_ns: int) -> None:
            assert release.wait(60)
            super().send(notices, now_unix_ns=now_unix_ns)

    release = threading.Event()
    slow, quick, clock, ledger = Slow(), RecordingWebhook(), Elapsed(), firing(2)
    delivery = Delivery(alertmanagers=[slow], webhooks=[quick], interval_s=1, report=pytest.fail, elapsed=clock)
    # Given an alert that ends before the slow receiver has answered to its firing
    delivery.deliver(ledger, now_unix_ns=10**9, wait_s=0)
    ledger.resolve("r", now_unix_ns=2 * 10**9, because="over")
    delivery.deliver(ledger, now_unix_ns=2 * 10**9, wait_s=0)
    assert quick.heard == [("firing", "2"), ("resolved", "2")]
    assert delivery.undelivered(ledger) == ["Alertmanager"]
    # Then the end is posted to the slow one, too
    release.set()
    while delivery.undelivered(ledger):
        clock.now_s += 1
        delivery.deliver(ledger, now_unix_ns=3 * 10**9, wait_s=30.0)
    assert slow.posts == [[("2", False)], [("2", True)]]
