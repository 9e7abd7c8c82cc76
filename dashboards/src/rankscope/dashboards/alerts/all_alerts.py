"""Page with the alerts of all runs: firing ones first, then past ones."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.alerts.listed import STATES, alert_article
from rankscope.dashboards.alerts.record import AlertRecord, AlertsFound
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.many_state import ListState
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.grid import number_column, text_column
from rankscope.dashboards.pages.listing import listing_grid, listing_tools
from rankscope.dashboards.pages.live import figure
from rankscope.dashboards.pages.pieces import advice, section
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording
from rankscope.dashboards.words.inert import MAX_TEXT, shown
from rankscope.dashboards.words.units import moment

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


MOST_ROWS: Final = 2_000
"""Maximum number of rows in the table. The figure's CSV has all alerts."""
POLL_MS: Final = 10_000


def alerts_page(source: RunSource, search: str | None, config: DashboardConfig) -> Component:
    """Return the page, which polls for new alerts. Raises ``RankscopeError``."""
    del config
    found = source.all_alerts()
    return html.Div(
        [
            html.Div([html.H1("Alerts", className="page-title"), html.Div(alert_notes(found), id="alerts-notes")]),
            html.Div(_empty(), id="alerts-empty", hidden=bool(found.alerts)),
            html.Div(
                _shown(source, found, ListState.parse(search)), id="alerts-list", className="stack inner", hidden=not found.alerts
            ),
            dcc.Location(id="alerts-address", refresh="callback-nav", search=search or ""),
            dcc.Store(id="many-shown", data={"search": search or ""}),
            dcc.Store(id="alerts-revision", data=revision_of_rows(found.alerts, found.problems)),
            dcc.Interval(id="alerts-poll", interval=POLL_MS),
        ],
        className="stack wide",
    )


def alert_notes(found: AlertsFound) -> list[Component]:
    """Return notes on unreadable sources, and on the number of alerts that the table leaves out."""
    notes: list[Component] = [html.P(problem, className="reason", role="note") for problem in found.problems]
    if len(found.alerts) > MOST_ROWS:
        left = f"{len(found.alerts) - MOST_ROWS:,} older alerts are not in the table; the CSV of the figure has all of them."
        notes.append(html.P(left, className="help"))
    return notes


def alert_rows(source: RunSource, found: AlertsFound) -> list[dict[str, Any]]:
    """Return a row per alert, firing ones first, ``MOST_ROWS`` at most. Raises ``RankscopeError``."""
    names = {run.run_id: run.name for run in source.runs()}
    now = time.time_ns()
    return [alert_row(alert, names, now_unix_ns=now) for alert in found.alerts[:MOST_ROWS]]


def counted(found: AlertsFound) -> str:
    """Return the number of alerts, and of firing ones, in words."""
    firing = sum(alert.state == "firing" for alert in found.alerts)
    return f"{wording.count(len(found.alerts), 'alert')}, {firing:,} firing"


def picked(found: AlertsFound, identifiers: tuple[str, ...]) -> list[Component]:
    """Return the details of the alert in the selected row, with its runbook; a hint if no row is selected."""
    alert = next((alert for alert in found.alerts[:MOST_ROWS] if row_id(alert) in identifiers), None)
    if alert is None:
        return [html.P("Select a row to read what it rests on and its runbook.", className="help")]
    return [alert_article(alert)]


def _shown(source: RunSource, found: AlertsFound, state: ListState) -> list[Component]:
    return [
        html.Div(
            [
                listing_tools("alerts", counted(found), state, []),
                listing_grid(
                    "alerts",
                    COLUMNS,
                    alert_rows(source, found),
                    state,
                    height=f"max(240px, min({100 + 41 * len(found.alerts)}px, calc(70dvh - 120px)))",
                    rowSelection={"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
                ),
            ],
            className="card",
        ),
        section(
            "alert-picked",
            "The selected alert",
            "What it says, what that rests on, and what to do.",
            [html.Div(picked(found, state.picked), id="alerts-picked", **aria(live="polite"))],
        ),
        section(
            "alert-counts",
            "When alerts began",
            "How many began at what time, by severity. Many at once have one cause: look for what they have in common.",
            [figure("alert-counts", "Bars of how many alerts began over time", many=True)],
        ),
    ]


def _empty() -> Component:
    return html.Section(
        [
            html.H2("No alert is known"),
            html.P(
                "Nothing was found, or nobody watched: a watcher writes what it finds into each run. Start one beside the jobs:",
                className="help",
            ),
            advice("rankscope alerts watch RUNS"),
            html.P(
                "Alerts about hardware come from a Prometheus with rankscope's rules (rankscope alerts rules export):",
                className="help",
            ),
            advice("rankscope dashboard RUNS --prometheus URL"),
        ],
        className="card empty",
    )
