"""``findings.jsonl`` of a run: what the watcher concluded, with the evidence, one line per change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.analysis.result import Finding
from rankscope.runs.paths import findings_file
from rankscope.runs.segments import open_regular

FINDING_SCHEMA: Final = "rankscope.finding/1"
TAIL_BYTES: Final = 4 * 2**20
"""Of a ``findings.jsonl``: more than a watcher writes between two saves of its state."""


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``findings.jsonl``."""

    schema: str
    time_unix_ns: int
    status: Literal["firing", "resolved"]
    fingerprint: str
    labels: dict[str, str]
    annotations: dict[str, str]
    finding: Finding | None = None
    """With its evidence when it fires; nothing when it is resolved, or where no finding of the analysis is behind it."""


def append_finding(run: Path, record: FindingRecord) -> None:
    """Append one line in one write, so that lines of two watchers never mix. Raises ``OSError``."""
    line = msgspec.json.encode(record) + b"\n"
    # Never creates the folder: a run that has been removed stays removed.
    handle = os.open(findings_file(run), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(handle).st_size
        # What a full disk cut short must not take this line with it.
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, b"\n" + line if torn else line)
    finally:
        os.close(handle)


def is_logged(run: Path, record: FindingRecord) -> bool:
    """Whether that line is there, among the last ones. Raises ``OSError``."""
    try:
        with open_regular(findings_file(run)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            tail = file.read(TAIL_BYTES)
    except FileNotFoundError:
        return False
    wanted = (record.fingerprint, record.status, record.time_unix_ns)
    for line in tail.splitlines():
        try:
            there = msgspec.json.decode(line, type=_Identity)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # the first is mostly a part of one
        if (there.fingerprint, there.status, there.time_unix_ns) == wanted:
            return True
    return False


class _Identity(msgspec.Struct):
    fingerprint: str
    status: str
    time_unix_ns: int
