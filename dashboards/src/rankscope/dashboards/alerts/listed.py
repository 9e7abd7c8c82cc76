"""Alerts and replays in words."""

from __future__ import annotations

from typing import Final

from rankscope.alerts.replay.result import Replay, Replayed, Spell
from rankscope.alerts.rules.rule_file import runbooks
from rankscope.dashboards.alerts.figures import about, chosen, nothing_fired, spells_of
from rankscope.dashboards.alerts.record import AlertRecord, AlertsFound, Source, State
from rankscope.dashboards.model.page import Block, Details, Group, Items, Link, Markdown, Pieces, Rows, Span, Text, badge
from rankscope.dashboards.words.units import duration
from rankscope.dashboards.words.wording import moment

MOST_ALERTS: Final = 50

STATES: Final[dict[State, tuple[str, str]]] = {
    "firing": ("Fires", "bad"),
    "pending": ("Pending", "fair"),
    "lost": ("End unknown", "unknown"),
    "resolved": ("Past", "plain"),
}
_SOURCES: Final[dict[Source, str]] = {"watcher": "the watcher", "prometheus": "Prometheus"}


def alert_list(found: AlertsFound) -> list[Block]:
    """Return notes on unreadable sources, then the alerts in the given order, ``MOST_ALERTS`` at most."""
    parts: list[Block] = [Text(problem, "reason", role="note") for problem in found.problems]
    if not found.alerts:
        parts.append(Text("No alert is known: nothing was found, or nobody watched.", "help"))
    parts += [alert_article(alert) for alert in found.alerts[:MOST_ALERTS]]
    if len(found.alerts) > MOST_ALERTS:
        parts.append(Text(f"{len(found.alerts) - MOST_ALERTS} older ones are in the figure's CSV.", "help"))
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
        Pieces(badges),
        Text(Span(alert.summary or _labels(alert), "strong")),
        Text(f"{_when(alert)}; reported by {_SOURCES[alert.source]}.", "help"),
    ]
    if alert.description:
        parts.append(Details("What it rests on", [Text(alert.description)]))
    if alert.evidence is not None:
        parts.append(Text(Link("Show the evidence", alert.evidence)))
    if alert.runbook_url is not None:
        parts.append(Text(Link("Runbook", alert.runbook_url, elsewhere=True)))
    elif (page := runbooks().get(alert.name)) is not None:
        parts.append(Details("Runbook", [Markdown(page)]))
    return Group(parts, "alert", "article")


def _labels(alert: AlertRecord) -> str:
    """Return the labels as text, for an alert without a summary; its name if it has no labels."""
    hidden = ("alertname", "severity")
    return ", ".join(f"{name} {value}" for name, value in alert.labels.items() if name not in hidden) or alert.name


def _when(alert: AlertRecord) -> str:
    began = moment(alert.started_unix_ns)
    if alert.ended_unix_ns is None:
        return f"Since {began}"
    return f"From {began}, for {duration((alert.ended_unix_ns - alert.started_unix_ns) / 1e3)}"


MOST_SPELLS: Final = 100
_COLUMNS: Final = (
    ("Alert", ""), ("About", ""), ("Pending", ""), ("Fired", ""), ("Ended", ""), ("What it says", "names"),
)  # fmt: skip


def replay_list(replay: Replay, rule: str | None) -> list[Block]:
    """Return the replay's limits, a row per spell, and the policies of the rules."""
    asked = chosen(replay, rule)
    whole = duration((replay.end_unix_ns - replay.start_unix_ns) / 1e3)
    policies = dict.fromkeys(f"{one.rule}: {one.policy}." for one in asked if one.policy)
    how: list[Block] = [
        Text(f"Replayed over {whole}, of the run as it was when it was read.", "help"),
        Details("When they fire and end", [Items(list(policies))]),
    ]
    spells = spells_of(replay, rule)
    if not spells:
        return [Text(nothing_fired(replay, rule)), *how]
    parts: list[Block] = [Text(line, "reason", role="note") for line in replay.notes]
    parts.append(Rows(_COLUMNS, [_row(one, spell, replay) for one, spell in spells[:MOST_SPELLS]]))
    if len(spells) > MOST_SPELLS:
        parts.append(Text(f"{len(spells) - MOST_SPELLS:,} later ones are in the figure's CSV.", "help"))
    return [*parts, *how]


def _row(one: Replayed, spell: Spell, replay: Replay) -> tuple[str, ...]:
    return (
        one.rule,
        about(spell),
        _after(spell.pending_unix_ns, replay, "-"),
        _after(spell.fired_unix_ns, replay, "would not have fired"),
        _after(spell.ended_unix_ns, replay, "not by the end of the replay"),
        spell.annotations.get("summary") or "-",
    )


def _after(unix_ns: int | None, replay: Replay, otherwise: str) -> str:
    return otherwise if unix_ns is None else f"{duration((unix_ns - replay.start_unix_ns) / 1e3)} into the run"
