"""Export of the rule file and the runbooks to a folder; edited files are not overwritten."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.rules.rule_file import DEFAULT_DASHBOARD, DEFAULT_RUNBOOKS, RULES_FILE, rules_text, runbooks
from rankscope.alerts.rules.thresholds import Tables
from rankscope.base.errors import InputError
from rankscope.runs.segments import open_regular
from rankscope.runs.writer import write_atomically

WRITTEN_FILE: Final = ".rankscope-export.json"
"""Exported paths, relative to the folder, with the SHA-256 of the contents that were written there."""
_MOST_BYTES: Final = 1 << 24


def export(
    folder: Path,
    *,
    dashboard_url: str = DEFAULT_DASHBOARD,
    runbook_url: str = DEFAULT_RUNBOOKS,
    settings: Tables | None = None,
    force: bool = False,
) -> list[Path]:
    """Write the rule file and ``runbooks/*.md`` into ``folder``; return the written paths.

    Without ``force``, one file that was edited after an export, or not written by one, prevents the whole export. Raises
    ``InputError`` in that case and for a folder that cannot be written, ``ValueError`` for a bad address.
    """
    texts = {RULES_FILE: rules_text(dashboard_url=dashboard_url, runbook_url=runbook_url, settings=settings)}
    texts |= {f"runbooks/{name}.md": page for name, page in runbooks(settings).items()}
    contents = {name: text.encode() for name, text in texts.items()}
    written = _written(folder)
    changed = (
        [] if force else [name for name, content in contents.items() if _is_changed(folder / name, content, written.get(name))]
    )
    if changed:
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise InputError(folder / changed[0], f"was edited after the export, or not written by one{more}; --force replaces it")
    # Digests first: files of an interrupted export must not count as edited.
    marks = {name: [*dict.fromkeys((_mark(content), *written.get(name, [])[:1]))] for name, content in contents.items()}
    _write(folder / WRITTEN_FILE, msgspec.json.format(msgspec.json.encode(marks)) + b"\n")
    for name, content in contents.items():
        _write(folder / name, content)
    return [folder / name for name in contents]


def _is_changed(path: Path, content: bytes, marks: list[str] | None) -> bool:
    there = _content(path)
    return there not in (None, content) and _mark(there or b"") not in (marks or ())


def _mark(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _written(folder: Path) -> dict[str, list[str]]:
    """Read the digests of earlier exports; empty if there are none or they are damaged."""
    try:
        return msgspec.json.decode(_content(folder / WRITTEN_FILE) or b"{}", type=dict[str, list[str]])
    except msgspec.DecodeError:
        return {}


def _content(path: Path) -> bytes | None:
    try:
        with open_regular(path) as file:
            return file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
