"""View of firing and past alerts, with a replay of the watcher."""

from __future__ import annotations

import time
from functools import partial
from shlex import quote
from typing import Final

from rankscope.alerts.owners import WATCHER_ALERTS
from rankscope.alerts.replay.result import Replay, Replayed, Spell
from rankscope.alerts.rules.rule_file import runbooks
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.alerts.data import AlertRecord, AlertsFound, Source, State, alerts_about
from rankscope.dashboards.alerts.figures import about, alert_table, alert_times, chosen, nothing_fired, replay_times, spells_of
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.drawn import Drawn
from rankscope.dashboards.model.page import (
    Advice,
    Block,
    Details,
    Figure,
    Group,
    Items,
    Link,
    Markdown,
    Part,
    Pieces,
    Rows,
    Section,
    Text,
    badge,
    choice,
)
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.words.inert import sanitize
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
        Text(alert.summary or _labels(alert), "alert-says"),
        Text(f"{_when(alert)}; reported by {_SOURCES[alert.source]}.", "help"),
    ]
    if alert.description:
        parts.append(Details("Evidence", [Text(alert.description)]))
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
    ("Alert", ""), ("About", ""), ("Pending", ""), ("Fired", ""), ("Ended", ""), ("Summary", "names"),
)  # fmt: skip


def replay_list(replay: Replay, rule: str | None) -> list[Block]:
    """Return the replay's limits, a row per spell, and the policies of the rules."""
    asked = chosen(replay, rule)
    whole = duration((replay.end_unix_ns - replay.start_unix_ns) / 1e3)
    policies = dict.fromkeys(f"{one.rule}: {one.policy}." for one in asked if one.policy)
    how: list[Block] = [
        Text(f"Replayed over {whole} of the run, as of when it was read.", "help"),
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


ALL: Final = "all"
"""Value in the address for all alerts."""
_CHOICES: Final = [
    {"value": ALL, "label": "All alerts"},
    *({"value": rule, "label": rule} for rule in WATCHER_ALERTS),
]


def _times(run: RunData, colors: Palette) -> Drawn:
    alerts = alerts_about(run).alerts
    firing = sum(alert.state == "firing" for alert in alerts)
    return Drawn(
        alert_times(alerts, colors, now_unix_ns=time.time_ns()),
        alert_table(alerts),
        f"Alerts: {firing} firing, {len(alerts) - firing} pending or past" if alerts else "No alert is known",
    )


def _rule(state: PageState) -> str | None:
    """Return the chosen alert; ``None`` for all. Raises ``RankscopeError`` if none is chosen or the name is unknown."""
    if state.replay is None:
        raise RankscopeError("Nothing is replayed: choose an alert, or all.")
    if state.replay == ALL:
        return None
    if state.replay not in WATCHER_ALERTS:
        raise RankscopeError(f"There is no alert {sanitize(state.replay)!r}; there are {', '.join(WATCHER_ALERTS)}.")
    return state.replay


def _replay_times(run: RunData, state: PageState, colors: Palette) -> Drawn:
    rule = _rule(state)
    try:
        clock = run.hardware.clock
    except RankscopeError:
        clock = None  # steps are optional: the figure has times without them
    return replay_times(run.replay, rule, colors, clock)


def _replay(run: RunData, state: PageState) -> list[Block]:
    path = quote(run.summary.path)
    commands: list[Block] = [
        Advice(f"The same on the command line: rankscope alerts replay {path}"),
        Advice(f"With a longer delay before firing: rankscope alerts replay {path} --fire-after 6 --interval 10s"),
    ]
    if state.replay is None:
        return commands
    rule = _rule(state)
    return [*replay_list(run.replay, rule), *commands]


def _blocks(run: RunData, state: PageState) -> list[Block]:
    return [
        Section(
            name="alert-times",
            title="When alerts fired",
            help="One row per alert and subject. Alerts that began together often have one cause. Firing alerts come first, then "
            "the newest.",
            blocks=[
                Figure(
                    name="alert-times",
                    label="Bars of the times at which alerts fired",
                    draw=partial(_times, run),
                    height=44,
                    long=True,
                ),
                Part("alert-list", lambda: alert_list(alerts_about(run))),
            ],
        ),
        Section(
            name="alert-replay",
            title="Would it have fired?",
            help="Replays the watcher over this run as it grew. Nothing is delivered, and the run is not changed. A large run "
            "takes minutes in the background; the result is kept until the run changes.",
            blocks=[
                Figure(
                    name="replay-times",
                    label="Bars of the times at which alerts would have been pending and fired",
                    draw=partial(_replay_times, run, state),
                    height=44,
                    long=True,
                ),
                Part("alert-replay", lambda: _replay(run, state)),
            ],
            tools=[choice("replay", "Replay", _CHOICES, state, width=230, nothing="choose an alert")],
        ),
    ]


VIEW: Final = View(
    slug="alerts",
    label="Alerts",
    help=Help(
        shows="Alerts about this run, its GPUs and hosts, from the watcher's files and, with --prometheus, from Prometheus.",
        formula="The watcher fires after three evaluations with a finding, a rule after its time. Each alert has one owner.",
        do="Open the runbook of a firing alert. If an alert is missing, replay the rules over the run.",
    ),
    blocks=_blocks,
)
