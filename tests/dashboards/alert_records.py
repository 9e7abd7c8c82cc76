"""Alerts of one rank as the pages get them, and as the watcher writes them into a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.dashboards.recorded_run import START_NS

from rankscope.alerts.alert import fingerprint
from rankscope.alerts.watch.announcements import FINDING_SCHEMA, FindingRecord, append_finding
from rankscope.dashboards.alerts.record import AlertRecord, alert_record

SECOND = 10**9
LABELS = {"alertname": "TrainingStraggler", "severity": "warning", "run_id": "run-1", "run": "bert", "rank": "2", "host": "n1"}
TEXTS = {"summary": "Rank 2 is slow.", "evidence": "imposed wait"}


def alert(state: Any = "resolved", start_s: int = 0, end_s: int | None = 60, **labels: str) -> AlertRecord:
    """Return an alert. Times are in seconds after ``START_NS``; ``end_s``: ``None`` while it goes on."""
    return alert_record(
        {**LABELS, **labels},
        TEXTS,
        state=state,
        started_unix_ns=START_NS + start_s * SECOND,
        ended_unix_ns=None if end_s is None else START_NS + end_s * SECOND,
        source="watcher",
    )


def write_finding(run: Path | str, status: Any, at_s: int = 0, texts: dict[str, str] | None = None, **labels: str) -> None:
    """Append a line of the watcher to the findings of a run. Each alert has its own labels."""
    identity = {**LABELS, **labels}
    record = FindingRecord(
        schema=FINDING_SCHEMA,
        time_unix_ns=START_NS + at_s * SECOND,
        status=status,
        fingerprint=fingerprint(identity),
        labels=identity,
        annotations=TEXTS if texts is None else texts,
    )
    append_finding(Path(run), record)
