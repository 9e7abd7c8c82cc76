"""Alerts in words: message, time, next steps, and the program that reported each."""

from __future__ import annotations

from typing import Final

from dash import dcc, html
from dash.development.base_component import Component

from rankscope.alerts.rules.rule_file import runbooks
from rankscope.dashboards.data.alert_record import AlertRecord, AlertsFound, Source, State
from rankscope.dashboards.figures.units import duration
from rankscope.dashboards.pages.pieces import badge
from rankscope.dashboards.pages.wording import moment

SHOWN: Final = 50

STATES: Final[dict[State, tuple[str, str]]] = {
    "firing": ("Fires", "bad"),
    "pending": ("Pending", "fair"),
    "lost": ("End unknown", "unknown"),
    "resolved": ("Past", "plain"),
}
_SOURCES: Final[dict[Source, str]] = {"watcher": "the watcher", "prometheus": "Prometheus"}


def alert_list(found: AlertsFound) -> list[Component]:
    """Return notes on unreadable sources, then the alerts in the given order, ``SHOWN`` at most."""
    parts: list[Component] = [html.P(problem, className="reason", role="note") for problem in found.problems]
    if not found.alerts:
        parts.append(html.P("No alert is known: nothing was found, or nobody watched.", className="help"))
    parts += [alert_article(alert) for alert in found.alerts[:SHOWN]]
    if len(found.alerts) > SHOWN:
        parts.append(html.P(f"{len(found.alerts) - SHOWN} older ones are in the figure's CSV.", className="help"))
    return parts


def alert_article(alert: AlertRecord) -> Component:
    """Return an article with all details of one alert."""
    label, tone = STATES[alert.state]
    badges = [badge(label, tone=tone), badge(alert.name, title="Name of the alert")]
    if alert.severity:
        badges.append(badge(alert.severity, title="Severity"))
    if alert.rank is not None:
        badges.append(badge(f"rank {alert.rank}"))
    parts: list[Component] = [
        html.Div(badges, className="badges"),
        html.P(html.Strong(alert.summary or _labels(alert))),
        html.P(f"{_when(alert)}; reported by {_SOURCES[alert.source]}.", className="help"),
    ]
    if alert.description:
        parts.append(html.Details([html.Summary("What it rests on"), html.P(alert.description)]))
    if alert.evidence is not None:
        parts.append(html.P(dcc.Link("Show the evidence", href=alert.evidence)))
    if alert.runbook_url is not None:
        parts.append(html.P(html.A("Runbook", href=alert.runbook_url, target="_blank", rel="noopener noreferrer")))
    elif (page := runbooks().get(alert.name)) is not None:
        parts.append(html.Details([html.Summary("Runbook"), dcc.Markdown(page)]))
    return html.Article(parts, className="alert")


def _labels(alert: AlertRecord) -> str:
    """Return the labels as text, for an alert without a summary; its name if it has no labels."""
    hidden = ("alertname", "severity")
    return ", ".join(f"{name} {value}" for name, value in alert.labels.items() if name not in hidden) or alert.name


def _when(alert: AlertRecord) -> str:
    began = moment(alert.started_unix_ns)
    if alert.ended_unix_ns is None:
        return f"Since {began}"
    return f"From {began}, for {duration((alert.ended_unix_ns - alert.started_unix_ns) / 1e3)}"
