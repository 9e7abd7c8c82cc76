"""Checks of ``rankscope doctor``: formats of runs, stores of alerts and exporter states, and the versions that wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.store.database import read_only
from rankscope.alerts.store.folders import STORE_FILE, default_folders
from rankscope.alerts.store.schema import SCHEMA as STORE_SCHEMA
from rankscope.alerts.store.schema import VERSION as STORE_VERSION
from rankscope.base.errors import InputError
from rankscope.cli.verbs.check import Check
from rankscope.exporter.fleet import inventory
from rankscope.exporter.settings import default_state_dir
from rankscope.exporter.xid import journal_file
from rankscope.exporter.xid.entry import SCHEMA as XID_SCHEMA
from rankscope.runs.reader import RunReader, is_run, is_visible_run

_EXPORTER_FILES: Final = (inventory.FILE_NAME, journal_file.FILE_NAME)


def examine_files(paths: Iterable[Path]) -> Iterator[Check]:
    """Examine runs, folders of runs and state folders; without any, the default state folders that exist.

    Raises ``InputError`` for a path that is none of these, ``OSError`` for a folder that cannot be listed.
    """
    named = tuple(paths)
    for path in named or (*default_folders(), default_state_dir()):
        examined = list(_examine(path))
        if named and not examined:
            reason = "no run, no folder of runs, and no state folder of alerts or of an exporter"
            raise InputError(path, reason if path.exists() else "no such file or folder")
        yield from examined


def _examine(path: Path) -> Iterator[Check]:
    if is_run(path):
        yield _run(path)
        return
    if (path / STORE_FILE).exists():
        yield _store(path)
    for name in _EXPORTER_FILES:
        if (path / name).exists():
            yield _exporter_file(path / name)
    if path.is_dir():
        yield from map(_run, sorted(below for below in path.iterdir() if is_visible_run(below)))


def _run(path: Path) -> Check:
    try:
        run = RunReader(path)
        attempts = [attempt for number in run.attempts() if (attempt := run.attempt(number)) is not None]
    except InputError as error:
        return Check(str(path), "unreadable", error.reason)
    writers = {attempt.versions["rankscope"] for attempt in attempts if "rankscope" in attempt.versions}
    own_version = version("rankscope")
    text = f"{run.info.schema}, recorded by rankscope {' and '.join(sorted(writers)) or '(unknown version)'}"
    if writers <= {own_version}:
        return Check(str(path), "ok", text)
    return Check(str(path), "other", f"{text}; {own_version} reads it")


def _store(folder: Path) -> Check:
    path = folder / STORE_FILE
    try:
        with read_only(folder):
            return Check(str(path), "ok", f"{STORE_SCHEMA}/{STORE_VERSION}")
    except InputError as error:
        return Check(str(path), "unreadable", error.reason)


def _exporter_file(path: Path) -> Check:
    try:
        if path.name == inventory.FILE_NAME:
            inventory.load(path)
            return Check(str(path), "ok", inventory.SCHEMA)
        journal_file.JournalFile(path.parent).load()
    except (OSError, ValueError, msgspec.MsgspecError, journal_file.JournalError) as error:
        return Check(str(path), "unreadable", str(error).removeprefix(f"{path}: "))
    return Check(str(path), "ok", XID_SCHEMA)
