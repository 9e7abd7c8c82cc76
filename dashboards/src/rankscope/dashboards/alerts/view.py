"""View of firing and past alerts."""

from __future__ import annotations

import time
from functools import partial
from shlex import quote
from typing import Final

from rankscope.alerts.rules.rule_file import runbooks
from rankscope.dashboards.alerts.data import alerts_about
from rankscope.dashboards.alerts.figures import alert_table, alert_times
from rankscope.dashboards.alerts.record import AlertRecord, AlertSource, AlertState, CollectedAlerts
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.drawn import DrawnFigure
from rankscope.dashboards.model.line import PageLink, badge
from rankscope.dashboards.model.page import AdviceItem, Block, Details, FigureBlock, Group, Inline, Markdown, Part, Section, Text
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.words.units import duration
from rankscope.dashboards.words.wording import utc_time

MOST_ALERTS: Final = 50

STATES: Final[dict[AlertState, tuple[str, str]]] = {
    "firing": ("Fires", "bad"),
    "pending": ("Pending", "fair"),
    "lost": ("End unknown", "unknown"),
    "resolved": ("Past", "plain"),
}
_SOURCES: Final[dict[AlertSource, str]] = {"watcher": "the watcher", "prometheus": "Prometheus"}


def alert_list(collected: CollectedAlerts) -> list[Block]:
    """Return notes on unreadable sources, then the alerts in the given order, ``MOST_ALERTS`` at most."""
    parts: list[Block] = [Text(problem, "reason", role="note") for problem in collected.problems]
    parts += [alert_article(alert) for alert in collected.alerts[:MOST_ALERTS]]
    if len(collected.alerts) > MOST_ALERTS:
        parts.append(Text(f"{len(collected.alerts) - MOST_ALERTS} older ones are in the figure's CSV.", "help"))
    return parts


def alert_article(alert: AlertRecord) -> Block:
    """Return an article with all details of one alert."""
    label, tone = STATES[alert.state]
    badges = [badge(label, tone=tone), badge(alert.name, title="Name of the alert")]
    if alert.severity:
        badges.append(badge(alert.severity, title="Severity"))
    if alert.rank is not None:
        badges.append(badge(f"rank {alert.rank}"))
    parts: list[Block] = [
        Inline(badges),
        Text(alert.summary or _labels(alert), "alert-says"),
        Text(f"{_when(alert)}; reported by {_SOURCES[alert.source]}.", "help"),
    ]
    if alert.description:
        parts.append(Details("Description", [Text(alert.description)]))
    if alert.evidence is not None:
        parts.append(Text(PageLink("Overview of the run", alert.evidence)))
    if alert.runbook_url is not None:
        parts.append(Text(PageLink("Runbook", alert.runbook_url, elsewhere=True)))
    elif (page := runbooks().get(alert.name)) is not None:
        parts.append(Details("Runbook", [Markdown(page)]))
    return Group(parts, "alert", "article")


def _labels(alert: AlertRecord) -> str:
    """Return the labels as text, for an alert without a summary; its name if it has no labels."""
    hidden = ("alertname", "severity")
    return ", ".join(f"{name} {value}" for name, value in alert.labels.items() if name not in hidden) or alert.name


def _when(alert: AlertRecord) -> str:
    began = utc_time(alert.started_unix_ns)
    if alert.ended_unix_ns is None:
        return f"Since {began}"
    return f"From {began}, for {duration((alert.ended_unix_ns - alert.started_unix_ns) / 1e3)}"


def _times(run: RunData, colors: Palette) -> DrawnFigure:
    alerts = alerts_about(run).alerts
    firing = sum(alert.state == "firing" for alert in alerts)
    return DrawnFigure(
        alert_times(alerts, colors, now_unix_ns=time.time_ns()),
        alert_table(alerts),
        f"Alerts: {firing} firing, {len(alerts) - firing} pending or past" if alerts else "No alert is known",
    )


def _blocks(run: RunData, state: PageState) -> list[Block]:
    del state
    return [
        Section(
            name="alert-times",
            title="When alerts fired",
            help="One row per alert and subject. Alerts that began together often have one cause. Firing alerts come first, then "
            "the newest.",
            blocks=[
                FigureBlock(
                    name="alert-times",
                    reads=(),
                    label="Bars of the times at which alerts fired",
                    draw=partial(_times, run),
                    height=44,
                    long=True,
                ),
                Part("alert-list", lambda: alert_list(alerts_about(run))),
                AdviceItem(f"When the watcher would have fired over this run: rankscope alerts replay {quote(run.summary.path)}"),
            ],
        )
    ]


VIEW: Final = View(
    slug="alerts",
    label="Alerts",
    help=Help(
        shows="Alerts about this run, its GPUs and hosts, from the watcher's files and, with --prometheus, from Prometheus.",
        formula="The watcher fires after three evaluations with a finding, a rule after its time. Each alert has one owner.",
        do="Open the runbook of a firing alert. If an alert is missing, replay the watcher over the run on the command line.",
    ),
    blocks=_blocks,
)
