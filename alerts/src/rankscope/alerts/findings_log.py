"""``findings.jsonl`` of a run: what the watcher concluded, with the evidence, one line per change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.analysis.result import Finding
from rankscope.runs.paths import findings_file

FINDING_SCHEMA: Final = "rankscope.finding/1"


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``findings.jsonl``."""

    schema: str
    time_unix_ns: int
    status: Literal["firing", "resolved"]
    fingerprint: str
    labels: dict[str, str]
    annotations: dict[str, str]
    finding: Finding | None = None
    """With its evidence when it fires; nothing when it is resolved."""


def append_finding(run: Path, record: FindingRecord) -> None:
    """Append one line in one write, so that lines of two watchers never mix. Raises ``OSError``."""
    line = msgspec.json.encode(record) + b"\n"
    # Never creates the folder: a run that has been removed stays removed.
    handle = os.open(findings_file(run), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)
