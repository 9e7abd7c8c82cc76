"""The inbox: which deliveries and ids it keeps, and which it prunes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.alerts.receive.receiver_heard import STRAGGLER, Heard, S

from rankscope.alerts.alert import fingerprint
from rankscope.alerts.receive import inbox as inbox_module
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.store.database import AlertStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_of_alerts_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_EPISODES", 3)
    heard = Heard()
    for number in range(6):
        heard.hear(heard.alert(number=str(number)), after_s=1)
    heard.inbox.prune(now_unix_ns=int(heard.now_s * S))
    collected = [heard.inbox.episode(fingerprint(STRAGGLER | {"number": str(number)})) is not None for number in range(6)]
    assert collected == [False] * 3 + [True] * 3


def test_an_inbox_forgets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_KEPT", 5)
    monkeypatch.setattr(inbox_module, "MAX_KNOWN", 8)
    with AlertStore(folder, report=pytest.fail) as store:
        inbox = Inbox(store)
        for number in range(1, 13):
            inbox.accept(b"x" * 1000, key=str(number), now_unix_ns=number)
        with store.transaction() as db:
            db.execute("UPDATE deliveries SET done_unix_ns = 0 WHERE number < 12")
        inbox.prune(now_unix_ns=1)
        # bodies of the last five, ids of the last eight
        assert [item.number for item in inbox.kept_deliveries()[1]] == [8, 9, 10, 11, 12]
        assert [inbox.accept(b"x", key=str(number), now_unix_ns=1) for number in (4, 5)] == [True, False]
        inbox.prune(now_unix_ns=2 * 86400 * S)
        assert inbox.accept(b"x", key="6", now_unix_ns=1)  # ids are kept for a day only
        assert [number for number, _ in inbox.waiting()] == [12, 13, 14]


def test_kept_bodies_are_bounded_in_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_KEPT_BYTES", 2500)
    with AlertStore(folder, report=pytest.fail) as store:
        inbox = Inbox(store)
        for number in range(1, 6):
            inbox.accept(b"x" * 1000, key=None, now_unix_ns=number)
        with store.transaction() as db:
            db.execute("UPDATE deliveries SET done_unix_ns = 0 WHERE number <> 2")
        inbox.prune(now_unix_ns=1)
        # the last two, and one delivery that is not processed yet
        assert store.query("SELECT number FROM deliveries WHERE body IS NOT NULL ORDER BY number") == [(2,), (4,), (5,)]
