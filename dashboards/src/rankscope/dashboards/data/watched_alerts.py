"""Alerts that a watcher found in runs: from the runs' files, and from this user's watcher state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.store.folders import watcher_state
from rankscope.alerts.watch.announcements import FindingRecord
from rankscope.alerts.watch.ledger import Entry, read_entries
from rankscope.base.errors import InputError
from rankscope.dashboards.data.alert_record import AlertRecord, alert_record
from rankscope.runs.paths import findings_file
from rankscope.runs.segments import decode_blocks, open_regular, read_blocks

READ_BYTES: Final = 8 * 2**20
"""Bytes read from the end of a ``findings.jsonl``: some thousand alerts."""


def findings_of(run: Path, *, over: bool) -> list[AlertRecord]:
    """Return the alerts in ``findings.jsonl`` of a run by start time; ``over``: the run has ended. Raises ``InputError``."""
    found: list[AlertRecord] = []
    open_: dict[str, int] = {}
    for line in _findings(findings_file(run)):
        known = open_.pop(line.fingerprint, None)
        if line.status == "resolved" and known is not None:
            found[known] = replace(found[known], state="resolved", ended_unix_ns=line.time_unix_ns)
        elif line.status == "firing":
            # A repeated firing record updates the same alert; it may come from another watcher that saw it later.
            alert = alert_record(
                line.labels,
                line.annotations,
                state="lost" if over else "firing",
                started_unix_ns=line.time_unix_ns if known is None else found[known].started_unix_ns,
                source="watcher",
            )
            if known is None:
                known = len(found)
                found.append(alert)
            else:
                found[known] = alert
            open_[line.fingerprint] = known
    return sorted(found, key=lambda alert: alert.started_unix_ns)


def revision_of(run: Path) -> str:
    """Return a revision that changes with the ``findings.jsonl`` of a run."""
    try:
        status = findings_file(run).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def followed(watched: Path) -> list[Entry]:
    """Return the alerts that the watcher of ``watched`` (a run or a folder of runs) follows now, from this user's state folders.

    Raises ``InputError``.
    """
    return read_entries(watcher_state(watched))


def alert_of(entry: Entry, *, seen_unix_ns: int) -> AlertRecord:
    """Return the record of an alert that a watcher follows. A pending one has no start time and gets ``seen_unix_ns``."""
    return alert_record(
        entry.alert.labels,
        entry.alert.annotations,
        state=entry.track.state,
        started_unix_ns=seen_unix_ns if entry.starts_at_unix_ns is None else entry.starts_at_unix_ns,
        ended_unix_ns=entry.ends_at_unix_ns,
        source="watcher",
    )


def _findings(path: Path) -> Iterator[FindingRecord]:
    """Yield the records in the last ``READ_BYTES`` of a file; invalid lines are skipped."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - READ_BYTES))
            decoder = msgspec.json.Decoder(FindingRecord)
            for records, _ in decode_blocks((lines for lines, _ in read_blocks(file)), decoder):
                yield from records
    except FileNotFoundError:
        return  # nothing was found, or no watcher ran
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
