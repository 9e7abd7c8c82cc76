"""Page with the alerts of all runs: firing ones first, then past ones."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rankscope.alerts.alert import host_of
from rankscope.dashboards.alerts.figures import alert_counts
from rankscope.dashboards.alerts.record import AlertRecord, CollectedAlerts
from rankscope.dashboards.alerts.view import STATES, alert_article
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.model.columns import LOCAL_TIME, Column, number_column, text_column
from rankscope.dashboards.model.page import (
    AdviceItem,
    Block,
    FigureBlock,
    Group,
    Heading,
    Part,
    RedrawMark,
    SearchTable,
    Section,
    Text,
)
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import SitePage
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.inert import MAX_TEXT, sanitize
from rankscope.dashboards.words.units import date_and_time

COLUMNS: Final[list[Column]] = [
    text_column("state", "State", width=150, renderer="Badge", narrow=146),
    text_column(
        "alert",
        "Alert",
        width=230,
        renderer="Alert",
        hover_field="summary",
        tooltip="In words below the table, and on hover",
        narrow=180,
    ),
    text_column("severity", "Severity", width=96),
    text_column("at_fault", "Rank or host", width=130, hover=True, renderer="Place"),
    text_column("name", "Run", width=170, renderer="Name", tooltip="Its page with the rank picked out"),
    text_column("started", "Since", width=168, renderer="LocalTime", tooltip=LOCAL_TIME),
    number_column("minutes", "Minutes", "From its beginning to its end, or to when the table was filled", digits=1, width=96),
    text_column("runbook", "Runbook", width=104, renderer="Runbook"),
    text_column("gpu", "GPU", width=130, hover=True, fills=130),
    text_column("host", "Host", width=110, hover=True),
    text_column("ended", "Ended", width=168, renderer="LocalTime", tooltip=LOCAL_TIME),
    text_column("summary", "In words", width=420, hover=True),
]


def alert_row(alert: AlertRecord, names: Mapping[str, str], *, now_unix_ns: int) -> dict[str, Any]:
    """Return the row of an alert, without unknown fields. ``names``: run id to name."""
    label, tone = STATES[alert.state]
    goes_on = alert.state in ("firing", "pending")
    end = alert.ended_unix_ns if alert.ended_unix_ns is not None or not goes_on else now_unix_ns
    labels = alert.labels
    host = _text(host_of(labels))
    row: dict[str, Any] = {
        "id": row_id(alert),
        "state": label,
        "state_tone": tone,
        "severity": _text(alert.severity),
        "alert": _text(alert.name),
        "name": _text(names.get(alert.run_id or "") or labels.get("run") or alert.run_id),
        "href": alert.evidence,
        "at_fault": f"rank {alert.rank}" if alert.rank is not None else None if host is None else f"host {host}",
        "host": host,
        "gpu": _text(labels.get("gpu_uuid") or labels.get("uuid")),
        "started": _utc(alert.started_unix_ns),
        "ended": None if alert.ended_unix_ns is None else _utc(alert.ended_unix_ns),
        "minutes": None if end is None else round(max(0, end - alert.started_unix_ns) / 6e10, 2),
        "summary": sanitize(alert.summary, MAX_TEXT) if alert.summary else None,
        "runbook": alert.runbook_url,
    }
    return {name: value for name, value in row.items() if value is not None}


def _utc(unix_ns: int) -> str | None:
    text = date_and_time(unix_ns)
    return None if text is None else f"{text} UTC"


def row_id(alert: AlertRecord) -> str:
    """Return the stable id of an alert's row."""
    key = repr((alert.identity, alert.started_unix_ns))
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()


def revision_of_rows(alerts: Sequence[AlertRecord], problems: Sequence[str]) -> str:
    """Return a hash that changes when an alert is added, removed or changed, or the list of problems changes."""
    content = repr([(row_id(alert), alert.state, alert.ended_unix_ns, alert.summary) for alert in alerts] + list(problems))
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _text(text: str | None) -> str | None:
    return sanitize(text) if text else None


MOST_ROWS: Final = 2_000
"""Maximum number of rows in the table. The figure's CSV has all alerts."""


def _blocks(source: RunSource, search: str | None, _config: DashboardConfig) -> list[Block]:
    state = PageState.parse(search)
    heading, notes = Heading("Alerts", 1, "page-title"), Part("alert-notes", lambda: alert_notes(source.all_alerts()), reads=())
    if not source.all_alerts().alerts:
        return [heading, notes, _EMPTY, RedrawMark("alerts")]
    return [
        heading,
        notes,
        SearchTable(
            name="alerts",
            columns=COLUMNS,
            rows=lambda: alert_rows(source, source.all_alerts()),
            file_name="rankscope-alerts",
            pick=lambda row: replace(state, picked=row),
            q=state.q,
            tools=[Part("alerts-count", lambda: [Text(count_text(source.all_alerts()), "help", live=True)], reads=())],
            reads=(),
        ),
        Section(
            name="alert-picked",
            title="The selected alert",
            help="Its evidence and its runbook. Without a selection, the first alert of the table.",
            blocks=[Part("alert-picked", lambda: picked_alert(source.all_alerts(), state.picked), reads=("picked",))],
        ),
        Section(
            name="alert-counts",
            title="When alerts began",
            help="Number of alerts over time, by severity. Alerts that began at the same time often have one cause.",
            blocks=[
                FigureBlock(
                    name="alert-counts",
                    label="Bars of how many alerts began over time",
                    draw=lambda colors: alert_counts(source.all_alerts().alerts, colors),
                    reads=(),
                )
            ],
        ),
    ]


def _version(source: RunSource, _search: str | None) -> str:
    collected = source.all_alerts()
    return revision_of_rows(collected.alerts, collected.problems)


def alert_notes(collected: CollectedAlerts) -> list[Block]:
    """Return notes on unreadable sources, and on the number of alerts that the table leaves out."""
    notes: list[Block] = [Text(problem, "reason", role="note") for problem in collected.problems]
    if len(collected.alerts) > MOST_ROWS:
        note = f"{len(collected.alerts) - MOST_ROWS:,} older alerts are not in the table; the CSV of the figure has all of them."
        notes.append(Text(note, "help"))
    return notes


def alert_rows(source: RunSource, collected: CollectedAlerts) -> list[dict[str, Any]]:
    """Return a row per alert, firing ones first, ``MOST_ROWS`` at most. Raises ``RankscopeError``."""
    names = {run.run_id: run.name for run in source.runs()}
    now = time.time_ns()
    return [alert_row(alert, names, now_unix_ns=now) for alert in collected.alerts[:MOST_ROWS]]


def count_text(collected: CollectedAlerts) -> str:
    """Return the number of alerts, and of firing ones, in words."""
    firing = sum(alert.state == "firing" for alert in collected.alerts)
    return f"{wording.count(len(collected.alerts), 'alert')}, {firing:,} firing"


def picked_alert(collected: CollectedAlerts, row: str | None) -> list[Block]:
    """Return the details of the alert in the selected row, else of the first alert, with its runbook."""
    selected = (alert for alert in collected.alerts[:MOST_ROWS] if row_id(alert) == row)
    return [alert_article(alert) for alert in [next(selected, None) or next(iter(collected.alerts), None)] if alert is not None]


_EMPTY: Final = Group(
    [
        Heading("No alert is known", 2),
        Text(
            "There were no findings, or no watcher ran. A watcher writes its findings into each run; start one beside the jobs:",
            "help",
        ),
        AdviceItem("rankscope alerts watch RUNS"),
        Text("Alerts about hardware come from a Prometheus with rankscope's rules (rankscope alerts rules export):", "help"),
        AdviceItem("rankscope dashboard RUNS --prometheus URL"),
    ],
    "card empty",
    "section",
)

PAGE: Final = SitePage(path="/alerts", title="Alerts", blocks=_blocks, version=_version, wide=True)
