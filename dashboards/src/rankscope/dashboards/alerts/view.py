"""View of firing and past alerts, with a replay of the watcher."""

from __future__ import annotations

import time
from functools import partial
from shlex import quote
from typing import Final

from rankscope.alerts.owners import WATCHER_ALERTS
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.alerts.data import alerts_about
from rankscope.dashboards.alerts.figures import alert_table, alert_times, replay_times
from rankscope.dashboards.alerts.listed import alert_list, replay_list
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.drawn import Drawn
from rankscope.dashboards.model.page import Advice, Block, Figure, Part, Section, choice
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.words.inert import shown

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
        raise RankscopeError(f"There is no alert {shown(state.replay)!r}; there are {', '.join(WATCHER_ALERTS)}.")
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
        Advice(f"A watcher that is slower to fire: rankscope alerts replay {path} --fire-after 6 --interval 10s"),
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
            help="One row per alert and what it is about. What began or ended together has one cause.",
            blocks=[
                Figure(name="alert-times", label="Bars of the times at which alerts fired", draw=partial(_times, run), long=True)
            ],
        ),
        Section(
            name="alert-list",
            title="What they say",
            help="Those that fire come first, then the newest. Do what the runbook says.",
            blocks=[Part("alert-list", lambda: alert_list(alerts_about(run)))],
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
                    height=160,
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
        do="Open the runbook of what fires. With no alert where there should have been one, replay them over the run.",
    ),
    blocks=_blocks,
)
