"""The store file: creation, locking, checks, repair, and reading by other processes."""

from __future__ import annotations

import os
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.full_disk import disk_with_room_for
from tests.webhook_receiver import about, notice

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.store.database import AlertStore, StoreError, read_only
from rankscope.alerts.store.folders import STORE_FILE
from rankscope.alerts.watch.ledger import AlertLedger, load_ledger, read_entries, save_ledger
from rankscope.base.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def filled(folder: Path) -> AlertStore:
    """Return a store with data of the inbox, the outbox and the ledger."""
    store = AlertStore(folder, report=pytest.fail)
    Inbox(store).accept(b"{}", key="k", now_unix_ns=1)
    Outbox(store).put(about(*(notice(rank, run=str(rank)) for rank in range(20))))
    save_ledger(store, AlertLedger(active=["/runs/one"]))
    return store


def test_inbox_outbox_and_ledger_share_one_private_file(folder: Path) -> None:
    store = filled(folder)
    assert store.hold()
    assert {path.name for path in folder.iterdir()} == {f"{STORE_FILE}{suffix}" for suffix in ("", "-wal", "-shm", ".lock")}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    store.close()
    with AlertStore(folder, report=pytest.fail) as again:
        assert len(Inbox(again).waiting()) == 1
        assert Outbox(again).counts() == {("hook", "waiting"): 20}
        assert load_ledger(again).active == ["/runs/one"]


def test_store_id_is_persistent_and_unique(folder: Path) -> None:
    with filled(folder) as store, AlertStore(folder.with_name("other")) as other, AlertStore(None) as in_memory:
        kept = store.id
        assert len({kept, other.id, in_memory.id}) == 3
    with AlertStore(folder) as again:
        assert again.id == kept


def test_store_has_one_lock_holder_at_a_time(folder: Path) -> None:
    with AlertStore(folder) as first, AlertStore(folder) as second:
        assert (first.hold(), first.hold(), second.hold()) == (True, True, False)
        # the other one may still write
        Outbox(second).put(about(notice(1)))
        first.release()
        assert second.hold()


def test_an_inner_transaction_is_part_of_the_outer_one(folder: Path) -> None:
    def put_and_fail(store: AlertStore) -> None:
        with store.transaction():
            Outbox(store).put(about(notice(1)))
            raise RuntimeError

    with AlertStore(folder) as store:
        with pytest.raises(RuntimeError):
            put_and_fail(store)
        assert Outbox(store).counts() == {}
        with store.transaction():
            Outbox(store).put(about(notice(1)))
            Outbox(store).put(about(notice(2)))
        assert Outbox(store).counts() == {("hook", "waiting"): 2}


def test_queries_of_other_threads_do_not_wait_for_a_transaction(folder: Path) -> None:
    with filled(folder) as store, store.transaction() as database, ThreadPoolExecutor(1) as other:
        database.execute("DELETE FROM active_runs")
        assert other.submit(store.query, "SELECT run FROM active_runs").result(120) == [("/runs/one",)]
        assert store.query("SELECT run FROM active_runs") == []


def test_store_of_a_newer_version_is_refused_and_left_unchanged(folder: Path) -> None:
    filled(folder).close()
    with sqlite3.connect(folder / STORE_FILE) as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    before = (folder / STORE_FILE).read_bytes()
    with pytest.raises(InputError, match=r"/9.*/2.*upgrade rankscope"):
        AlertStore(folder, report=pytest.fail)
    with pytest.raises(InputError, match=r"/9.*/2.*upgrade rankscope"):
        read_entries(folder)
    assert (folder / STORE_FILE).read_bytes() == before


def test_file_that_is_no_store_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    def place(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name / STORE_FILE

    text, other, directory, fifo = map(place, ("text", "other", "directory", "fifo"))
    text.write_text("my novel")
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE accounts (name TEXT)")
    database.close()
    directory.mkdir()
    os.mkfifo(fifo)
    before = other.read_bytes()
    for path in (text, other):
        with pytest.raises(InputError, match="not a store"):
            AlertStore(path.parent, report=pytest.fail)
        with pytest.raises(InputError, match="not a store"):
            read_entries(path.parent)
    for path in (directory, fifo):
        with pytest.raises(StoreError, match=str(path)):
            AlertStore(path.parent, report=pytest.fail)
    with pytest.raises((InputError, StoreError), match=str(text)):
        AlertStore(text, report=pytest.fail)
    assert (text.read_text(), other.read_bytes()) == ("my novel", before)


@pytest.mark.parametrize("damage", ["zeros", "torn", "overwritten"])
def test_a_damaged_file_is_set_aside_and_reported_once(folder: Path, damage: str) -> None:
    filled(folder).close()
    path = folder / STORE_FILE
    content = path.read_bytes()
    damaged = {
        "zeros": bytes(len(content)),
        "torn": content[: len(content) // 2],
        "overwritten": content[:4096] + b"\xff" * (len(content) - 4096),
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(InputError, match="damaged"):
        AlertStore(folder, repair=False)
    reports: list[str] = []
    with AlertStore(folder, report=reports.append) as fresh:
        assert Outbox(fresh).counts() == {}
    [line] = reports
    assert all(fact in line for fact in (str(path), "damaged", f"{STORE_FILE}.bad"))
    assert (folder / f"{STORE_FILE}.bad").read_bytes() == damaged[damage]
    AlertStore(folder, report=pytest.fail).close()


def test_full_disk_is_a_one_line_error_and_changes_nothing(folder: Path) -> None:
    with filled(folder) as store, disk_with_room_for(20_000):
        with pytest.raises(StoreError, match=f"{STORE_FILE}: cannot be used") as caught:
            save_ledger(store, AlertLedger(active=["x" * 100_000]))
        assert "\n" not in str(caught.value)
        assert load_ledger(store).active == ["/runs/one"]


def test_readers_see_live_and_finished_watchers(folder: Path) -> None:
    with filled(folder) as store:
        with store.transaction(), read_only(folder) as database:
            assert database is not None
            assert database.execute("SELECT run FROM active_runs").fetchall() == [("/runs/one",)]
        assert store.hold()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    with read_only(folder) as database:
        assert database is not None
        assert database.execute("SELECT run FROM active_runs").fetchall() == [("/runs/one",)]
        with pytest.raises(sqlite3.OperationalError):
            database.execute("DELETE FROM active_runs")
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_readers_create_nothing(folder: Path) -> None:
    assert read_entries(folder) == []
    assert not folder.exists()
