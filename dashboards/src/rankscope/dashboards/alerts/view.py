"""View of firing and past alerts, with a replay of the watcher."""

from __future__ import annotations

import time
from shlex import quote
from typing import Final

from dash.development.base_component import Component

from rankscope.alerts.owners import WATCHER_ALERTS
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.alerts.data import alerts_about
from rankscope.dashboards.alerts.figures import alert_table, alert_times, replay_times
from rankscope.dashboards.alerts.listed import alert_list, replay_list
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.drawn import Drawn
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.pages.live import figure, part, select, when_there
from rankscope.dashboards.pages.pieces import advice, section
from rankscope.dashboards.views.view import Help, View
from rankscope.dashboards.words.inert import shown

ALL: Final = "all"
"""Value in the address for all alerts."""
_CHOICES: Final = [
    {"value": ALL, "label": "All alerts"},
    *({"value": rule, "label": rule} for rule in WATCHER_ALERTS),
]


def _times(run: RunData, _state: PageState, colors: Palette) -> Drawn:
    alerts = alerts_about(run).alerts
    firing = sum(alert.state == "firing" for alert in alerts)
    return Drawn(
        alert_times(alerts, colors, now_unix_ns=time.time_ns()),
        alert_table(alerts),
        f"Alerts: {firing} firing, {len(alerts) - firing} pending or past" if alerts else "No alert is known",
    )


def _list(run: RunData, _state: PageState) -> list[Component]:
    return alert_list(alerts_about(run))


def _rule(state: PageState) -> str | None:
    """Return the chosen alert; ``None`` for all. Raises ``RankscopeError`` if none is chosen or the name is unknown."""
    if state.replay is None:
        raise RankscopeError("Nothing is replayed: choose an alert, or all.")
    if state.replay == ALL:
        return None
    if state.replay not in WATCHER_ALERTS:
        raise RankscopeError(f"There is no alert {shown(state.replay)!r}; there are {', '.join(WATCHER_ALERTS)}.")
    return state.replay


def _replay_times(run: RunData, state: PageState, colors: Palette) -> Drawn:
    rule = _rule(state)
    try:
        clock = run.hardware.clock
    except RankscopeError:
        clock = None  # steps are optional: the figure has times without them
    return replay_times(run.replay, rule, colors, clock)


def _replay(run: RunData, state: PageState) -> list[Component]:
    path = quote(run.summary.path)
    commands = [
        advice(f"The same on the command line: rankscope alerts replay {path}"),
        advice(f"A watcher that is slower to fire: rankscope alerts replay {path} --fire-after 6 --interval 10s"),
    ]
    if state.replay is None:
        return commands
    rule = _rule(state)
    return [*replay_list(run.replay, rule), *commands]


def _layout(run: RunData, state: PageState) -> list[Component]:
    return [
        section(
            "alert-times",
            "When alerts fired",
            "One row per alert and what it is about. What began or ended together has one cause.",
            [figure("alert-times", "Bars of the times at which alerts fired", long=True)],
        ),
        section(
            "alert-list",
            "What they say",
            "Those that fire come first, then the newest. Do what the runbook says.",
            [part("alert-list", _list(run, state))],
        ),
        section(
            "alert-replay",
            "Would it have fired?",
            "Replays the watcher over this run as it grew. Nothing is delivered, and the run is not changed. A large run takes "
            "minutes in the background; the result is kept until the run changes.",
            [
                figure(
                    "replay-times", "Bars of the times at which alerts would have been pending and fired", height=160, long=True
                ),
                part("alert-replay", when_there("alert-replay", lambda: _replay(run, state))),
            ],
            tools=[select("replay", "Replay", _CHOICES, state, width=230, nothing="choose an alert")],
        ),
    ]


VIEW: Final = View(
    slug="alerts",
    label="Alerts",
    help=Help(
        shows="Alerts about this run, its GPUs and hosts, from the watcher's files and, with --prometheus, from Prometheus.",
        formula="The watcher fires after three evaluations with a finding, a rule after its time. Each alert has one owner.",
        do="Open the runbook of what fires. With no alert where there should have been one, replay them over the run.",
    ),
    layout=_layout,
    figures={"alert-times": _times, "replay-times": _replay_times},
    parts={"alert-list": _list, "alert-replay": _replay},
)
