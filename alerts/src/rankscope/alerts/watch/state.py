"""The watcher's state file: the ledger as JSON, replaced atomically."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.watch.ledger import LEDGER_SCHEMA, Ledger
from rankscope.base.errors import InputError
from rankscope.base.locks import lock_file
from rankscope.runs.segments import open_regular
from rankscope.runs.writer import write_record


def state_home() -> Path:
    """``$XDG_STATE_HOME/rankscope`` (``~/.local/state`` when the variable is not set)."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "rankscope"


_BEGINNING: Final = b'{"schema":"rankscope.alerts-state/'


def default_state_file(watched: Path) -> Path:
    """``alerts-….json`` among what is kept, one per watched folder."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(watched))).hexdigest()[:16]
    return state_home() / f"alerts-{name}.json"


def load_ledger(path: Path, *, report: Callable[[str], None]) -> Ledger:
    """The ledger in ``path``; an empty one when there is no such file. Raises ``InputError`` for anything else.

    What a crash of the machine left of a state file, nothing or its beginning, is moved to ``….bad`` and reported: better some
    alerts told twice than none at all.
    """
    try:
        # A device, too, has a beginning and no end, or is empty: read it would not be, and moved away it must not be.
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    try:
        ledger = msgspec.json.decode(data, type=Ledger)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if _is_remnant(data):
            _set_aside(path, report)
            return Ledger()
        raise InputError(path, f"not the state of a watcher: {error}; remove it to start afresh") from error
    if ledger.schema != LEDGER_SCHEMA:
        raise InputError(path, f"written in format {ledger.schema!r}; this version reads {LEDGER_SCHEMA!r}")
    return ledger


def hold(path: Path, watched: Path) -> None:
    """Keep the state file ``path`` to this process until it ends. Raises ``InputError`` where another watcher has it.

    Where it cannot be locked at all, as on some file servers, it is shared.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = lock_file(path.with_name(f"{path.name}.lock"))
    except OSError:
        return  # whoever saves it says so, if it cannot be written
    if handle is None:
        raise InputError(watched, f"another watcher follows it already, with the state in {path}; --state names another")
    _held.append(handle)


_held: list[int] = []
"""Open as long as this process lives."""


def _is_remnant(data: bytes) -> bool:
    """Whether a state file was to be here and is incomplete. Anything else may be a file that somebody still needs."""
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        beginning = b"".join(data[: 4 * len(_BEGINNING)].replace(b"\0", b"").split())
        return beginning.startswith(_BEGINNING) or _BEGINNING.startswith(beginning)
    return False


def _set_aside(path: Path, report: Callable[[str], None]) -> None:
    aside = path.with_name(f"{path.name}.bad")
    try:
        path.replace(aside)
    except OSError as error:
        raise InputError(path, f"damaged, and cannot be moved away: {error.strerror or error}") from error
    report(f"{path}: damaged, moved to {aside.name}; alerts may be sent again")


def save_ledger(path: Path, ledger: Ledger) -> None:
    """Replace ``path``. Raises ``OSError``."""
    write_record(path, ledger, share=False)
