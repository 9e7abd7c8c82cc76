"""The inbox: what it keeps, for whom, and what it forgets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.alerts.receive.receiver_heard import STRAGGLER, Heard, S

from rankscope.alerts.alert import fingerprint
from rankscope.alerts.receive import inbox as inbox_module
from rankscope.alerts.receive.inbox import Inbox
from rankscope.base.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_an_inbox_has_one_receiver_and_outlives_it(folder: Path) -> None:
    with Inbox(folder, report=pytest.fail) as inbox:
        inbox.accept(b"{}", key="k", now_unix_ns=1)
        with pytest.raises(InputError, match="another receiver"):
            Inbox(folder, report=pytest.fail)
        assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o600"}
    with Inbox(folder, report=pytest.fail) as inbox:
        assert [one.body for one in inbox.waiting(9)] == [b"{}"]
        assert not inbox.accept(b"{}", key="k", now_unix_ns=2)


def test_a_damaged_inbox_is_set_aside_and_a_newer_one_left_alone(folder: Path) -> None:
    said: list[str] = []
    Inbox(folder, report=said.append).close()
    (folder / "inbox.sqlite").write_bytes(b"no database at all" * 1000)
    with Inbox(folder, report=said.append) as inbox:
        assert inbox.kept() == (0, [])
        with inbox.transaction() as db:
            db.execute("PRAGMA user_version = 9")
    assert len(said) == 1
    assert "damaged" in said[0]
    assert (folder / "inbox.sqlite.bad").read_bytes().startswith(b"no database")
    with pytest.raises(InputError, match="newer version"):
        Inbox(folder, report=said.append)


def test_of_alerts_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_EPISODES", 3)
    heard = Heard()
    for number in range(6):
        heard.hear(heard.alert(number=str(number)), after_s=1)
    heard.inbox.prune(now_unix_ns=int(heard.now_s * S))
    known = [heard.inbox.episode(fingerprint(STRAGGLER | {"number": str(number)})) is not None for number in range(6)]
    assert known == [False] * 3 + [True] * 3


def test_an_inbox_forgets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_KEPT", 5)
    monkeypatch.setattr(inbox_module, "MAX_KNOWN", 8)
    with Inbox(folder, report=pytest.fail) as inbox:
        for number in range(1, 13):
            inbox.accept(b"x" * 1000, key=str(number), now_unix_ns=number)
        with inbox.transaction() as db:
            db.execute("UPDATE delivery SET done_unix_ns = 0 WHERE number < 12")
        inbox.prune(now_unix_ns=1)
        # bodies of the last five, ids of the last eight
        assert [one.number for one in inbox.kept()[1]] == [8, 9, 10, 11, 12]
        assert [inbox.accept(b"x", key=str(number), now_unix_ns=1) for number in (4, 5)] == [True, False]
        inbox.prune(now_unix_ns=2 * 86400 * S)
        assert inbox.accept(b"x", key="6", now_unix_ns=1)  # known for a day only
        assert [one.number for one in inbox.waiting(9)] == [12, 13, 14]
