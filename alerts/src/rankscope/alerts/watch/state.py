"""The watcher's part of the store: its ledger, one row for each alert that is followed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankscope.alerts.store.database import Store, read_only
from rankscope.alerts.store.folders import STORE_FILE
from rankscope.alerts.watch.ledger import Entry, Ledger
from rankscope.base.errors import InputError


def load_ledger(store: Store) -> Ledger:
    """Load the ledger from ``store``, empty for a new one. Raises ``StoreError``, and ``InputError`` for undecodable entries."""
    rows = store.query("SELECT entry FROM followed ORDER BY number")
    alive = store.query("SELECT run FROM alive ORDER BY run")
    return Ledger(entries=_decoded(rows, Path(store.name)), alive=[run for (run,) in alive])


def save_ledger(store: Store, ledger: Ledger) -> None:
    """Replace the ledger in ``store``. Raises ``StoreError``."""
    with store.transaction() as database:
        database.execute("DELETE FROM followed")
        database.execute("DELETE FROM alive")
        database.executemany("INSERT INTO followed (entry) VALUES (?)", [(msgspec.json.encode(one),) for one in ledger.entries])
        database.executemany("INSERT OR IGNORE INTO alive VALUES (?)", [(run,) for run in ledger.alive])


def read_entries(folder: Path) -> list[Entry]:
    """Read the alerts in the store in ``folder``, next to a running watcher; none without a store. Raises ``InputError``."""
    with read_only(folder) as database:
        rows = [] if database is None else database.execute("SELECT entry FROM followed ORDER BY number").fetchall()
    return _decoded(rows, folder / STORE_FILE)


def _decoded(rows: list[tuple[bytes]], path: Path) -> list[Entry]:
    try:
        return [msgspec.json.decode(entry, type=Entry) for (entry,) in rows]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(path, f"not the ledger of a watcher: {error}") from error
