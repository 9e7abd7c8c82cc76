"""Alerts of all runs as rows of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankscope.dashboards.data.alert_record import AlertRecord
from rankscope.dashboards.figures.units import moment
from rankscope.dashboards.inert import MAX_TEXT, shown
from rankscope.dashboards.pages.alert_list import STATES
from rankscope.dashboards.pages.grid import number_column, text_column

COLUMNS: Final[list[dict[str, Any]]] = [
    {**text_column("state", "State", width=130), "cellRenderer": "RunState"},
    text_column("severity", "Severity", width=96),
    {**text_column("alert", "Alert", width=180), "tooltipField": "alert"},
    {**text_column("name", "Run", width=140), "cellRenderer": "RunName", "headerTooltip": "Its page with the rank picked out"},
    number_column("rank", "Rank", "The rank it is about", digits=0, width=76),
    {**text_column("summary", "What it says", width=320), "tooltipField": "summary", "flex": 1, "minWidth": 280},
    text_column("started", "Since (UTC)", width=166),
    number_column("minutes", "Minutes", "From its beginning to its end, or to when the table was filled", digits=1, width=96),
    {**text_column("runbook", "Runbook", width=104), "cellRenderer": "AlertRunbook"},
    {**text_column("host", "Host", width=110), "tooltipField": "host"},
    {**text_column("gpu", "GPU", width=120), "tooltipField": "gpu"},
    text_column("ended", "Ended (UTC)", width=166),
]


def alert_row(alert: AlertRecord, names: Mapping[str, str], *, now_unix_ns: int) -> dict[str, Any]:
    """Return the row of an alert, without unknown fields. ``names``: run id to name."""
    label, tone = STATES[alert.state]
    goes_on = alert.state in ("firing", "pending")
    end = alert.ended_unix_ns if alert.ended_unix_ns is not None or not goes_on else now_unix_ns
    labels = alert.labels
    row: dict[str, Any] = {
        "id": row_id(alert),
        "state": label,
        "state_tone": tone,
        "severity": _text(alert.severity),
        "alert": _text(alert.name),
        "name": _text(names.get(alert.run_id or "") or labels.get("run") or alert.run_id),
        "href": alert.evidence,
        "rank": alert.rank,
        "host": _text(labels.get("host") or labels.get("instance")),
        "gpu": _text(labels.get("gpu_uuid") or labels.get("uuid")),
        "started": moment(alert.started_unix_ns),
        "ended": None if alert.ended_unix_ns is None else moment(alert.ended_unix_ns),
        "minutes": None if end is None else round(max(0, end - alert.started_unix_ns) / 6e10, 2),
        "summary": shown(alert.summary, MAX_TEXT) if alert.summary else None,
        "runbook": alert.runbook_url,
    }
    return {name: value for name, value in row.items() if value is not None}


def row_id(alert: AlertRecord) -> str:
    """Return the stable id of an alert's row."""
    key = repr((alert.identity, alert.started_unix_ns))
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()


def revision_of_rows(alerts: Sequence[AlertRecord], problems: Sequence[str]) -> str:
    """Return a hash that changes when an alert is added, removed or changed, or the list of problems changes."""
    content = repr([(row_id(alert), alert.state, alert.ended_unix_ns, alert.summary) for alert in alerts] + list(problems))
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _text(text: str | None) -> str | None:
    return shown(text) if text else None
