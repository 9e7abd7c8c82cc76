"""Announcement of an alert's start and end: an event on standard output, and a line in the run's ``findings.jsonl``.

The ledger is saved first and records what was announced. After a crash in between, the restarted watcher announces it once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.alerts.output import Event
from rankscope.alerts.watch.ledger import AlertLedger, LedgerEntry, Status
from rankscope.analysis.result.analysis import Finding
from rankscope.base.problems import ProblemLog
from rankscope.base.regular_files import open_regular
from rankscope.runs.paths import findings_file
from rankscope.runs.small_files import open_to_append

FINDING_SCHEMA: Final = "rankscope.finding/1"
TAIL_BYTES: Final = 4 * 2**20
"""End of ``findings.jsonl`` to search: more than a watcher writes between two saves of its state."""


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``findings.jsonl``."""

    schema: str
    time_unix_ns: int
    status: Literal["firing", "resolved"]
    fingerprint: str
    labels: dict[str, str]
    annotations: dict[str, str]
    finding: Finding | None = None
    """Finding with its evidence when the alert fires; ``None`` when it is resolved or not based on a finding."""


def append_finding(run: Path, record: FindingRecord) -> None:
    """Append one line in a single write, so that lines of two watchers never mix. Raises ``OSError``."""
    line = msgspec.json.encode(record) + b"\n"
    # Does not create the folder: a removed run stays removed.
    with open_to_append(findings_file(run)) as file:
        size = os.fstat(file.fileno()).st_size
        # A line that a full disk cut short must not corrupt this one.
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" + line if torn else line)


def is_logged(run: Path, record: FindingRecord) -> bool:
    """Return whether the end of ``findings.jsonl`` holds this record; ``False`` if it cannot be read."""
    try:
        with open_regular(findings_file(run), links=False) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            tail = file.read(TAIL_BYTES)
    except OSError:
        return False
    wanted = (record.fingerprint, record.status, record.time_unix_ns)
    for line in tail.splitlines():
        try:
            logged = msgspec.json.decode(line, type=_AlertIdentity)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # the first line is usually incomplete
        if (logged.fingerprint, logged.status, logged.time_unix_ns) == wanted:
            return True
    return False


class _AlertIdentity(msgspec.Struct):
    fingerprint: str
    status: str
    time_unix_ns: int


class Announcer:
    """Announcer of the changes in a ledger.

    ``emit`` takes events, ``report`` takes problems, one line each; ``save`` persists the ledger.
    """

    def __init__(
        self,
        ledger: AlertLedger,
        *,
        emit: Callable[[Event], None],
        report: Callable[[str], None],
        save: Callable[[AlertLedger], None],
    ) -> None:
        self._ledger = ledger
        self._emit = emit
        self._save = save
        self._doubtful = {id(entry) for entry in ledger.unlogged()}
        """Entries that a previous watcher may have announced before it was killed."""
        self._emitted: set[tuple[str, str, int]] = set()
        self._problems = ProblemLog(report)

    def announce(self) -> None:
        """Announce every change that has not been announced yet."""
        entries = self._ledger.unlogged()
        if not entries:
            self._emitted.clear()
            return
        self._save(self._ledger)
        for entry in entries:
            self._announce(entry)

    def _announce(self, entry: LedgerEntry) -> None:
        status: Status = "resolved" if entry.ends_at_unix_ns is not None else "firing"
        # Time of the last change: a pending entry has none.
        moment = entry.ends_at_unix_ns or entry.revised_unix_ns or entry.starts_at_unix_ns
        assert moment is not None
        alert = entry.alert_now()
        record = FindingRecord(
            schema=FINDING_SCHEMA,
            time_unix_ns=moment,
            status=status,
            fingerprint=entry.fingerprint,
            labels=alert.labels,
            annotations=alert.annotations,
            finding=entry.finding if status == "firing" else None,
        )
        run = Path(entry.run)
        if id(entry) in self._doubtful and is_logged(run, record):
            self._mark_logged(entry, status)
            return
        self._emit_once(entry, status, moment)
        try:
            append_finding(run, record)
        except FileNotFoundError:
            pass  # the run has been removed: nothing to log
        except OSError as error:
            reason = f"{run}: findings.jsonl cannot be written: {error.strerror or error}; alerts are not affected"
            self._problems.report(reason, run)
            return
        self._problems.report(None, run)
        self._mark_logged(entry, status)

    def _mark_logged(self, entry: LedgerEntry, status: Status) -> None:
        entry.logged, entry.finding = status, None
        self._doubtful.discard(id(entry))

    def _emit_once(self, entry: LedgerEntry, status: Status, moment: int) -> None:
        """Emit the event once, also when writing the file fails and is retried."""
        key = (entry.run, f"{status} {entry.fingerprint}", moment)
        if key in self._emitted:
            return
        alert = entry.alert_now()
        self._emit(
            Event(
                event=status,
                time_unix_ns=moment,
                run=entry.run,
                run_id=alert.labels["run_id"],
                summary=alert.annotations.get("summary", ""),
                fingerprint=entry.fingerprint,
                labels=alert.labels,
                annotations=alert.annotations,
            )
        )
        self._emitted.add(key)
