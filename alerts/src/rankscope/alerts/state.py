"""The watcher's state file: the ledger as JSON, replaced atomically."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from rankscope.alerts.ledger import LEDGER_SCHEMA, Ledger
from rankscope.runs.errors import InputError
from rankscope.runs.writer import write_record


def default_state_file(watched: Path) -> Path:
    """``$XDG_STATE_HOME/rankscope/alerts-….json``, one per watched folder (``~/.local/state`` when the variable is not set)."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    name = hashlib.sha256(os.fspath(watched.resolve()).encode()).hexdigest()[:16]
    return Path(base).expanduser() / "rankscope" / f"alerts-{name}.json"


def load_ledger(path: Path) -> Ledger:
    """The ledger in ``path``; an empty one when there is no such file. Raises ``InputError`` for anything else."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    try:
        ledger = msgspec.json.decode(data, type=Ledger)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(path, f"not the state of a watcher: {error}; remove it to start afresh") from error
    if ledger.schema != LEDGER_SCHEMA:
        raise InputError(path, f"written in format {ledger.schema!r}; this version reads {LEDGER_SCHEMA!r}")
    return ledger


def save_ledger(path: Path, ledger: Ledger) -> None:
    """Replace ``path``. Raises ``OSError``."""
    write_record(path, ledger)
