"""Page of the cluster's ledger: GPU time lost per host and cause over all runs, and GPUs that are allocated but unused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.source import RunSource, RunSummary
from rankscope.dashboards.lost_hours.data import (
    DAY_NS,
    ClusterLedger,
    HostLoss,
    IdleGpus,
    by_holder,
    cluster_ledger,
    told,
    total_cost,
)
from rankscope.dashboards.lost_hours.figures import LOOKS, NO_HOST
from rankscope.dashboards.many_state import LedgerState
from rankscope.dashboards.pages.facts import fact
from rankscope.dashboards.pages.live import figure
from rankscope.dashboards.pages.pieces import advice, badge, first_of, run_link, section, table
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording

SHOWN: Final = 200
"""Maximum number of hosts in the table. The CSV has all of them."""
_NAMED: Final = 6

WINDOWS: Final = (("", "All runs"), ("1", "Last day"), ("7", "Last 7 days"), ("30", "Last 30 days"), ("90", "Last 90 days"))


def ledger_page(source: RunSource, search: str | None, config: DashboardConfig) -> Component:
    """Return the page. Raises ``RankscopeError``."""
    state = LedgerState.parse(search)
    ledger = ledger_of(source, state)
    days = "" if state.days is None else str(state.days)
    known = {value for value, _ in WINDOWS}
    options = [*WINDOWS, *([(days, f"Last {days} days")] if days not in known else [])]
    return html.Div(
        [
            html.H1("Ledger", className="page-title"),
            section(
                "ledger",
                "GPU time lost, by host and cause",
                "Summed over the verdicts of all runs here: what each says was lost, charged to the host of the rank it blames. "
                "A host that several runs blame comes first (⚑): drain it, and look at what its runs have in common.",
                [
                    html.Div(ledger_body(ledger), id="ledger-body"),
                    figure("ledger-bars", "Bars of the GPU-hours lost per host, by cause", many=True),
                ],
                tools=[
                    dmc.Select(
                        id="ledger-since",
                        label="Runs started in",
                        data=[{"value": value, "label": label} for value, label in options],
                        value=days,
                        allowDeselect=False,
                        size="xs",
                        w=150,
                        comboboxProps={"withinPortal": True},
                    )
                ],
            ),
            section(
                "idle",
                "Held and not used",
                "GPUs that a job holds and no process uses, by who holds them: ask them, or let the scheduler take them back.",
                _idle(config.idle_gpus),
            ),
            dcc.Location(id="ledger-address", refresh="callback-nav", search=search or ""),
            dcc.Store(id="many-shown", data={"search": search or ""}),
            dcc.Interval(id="ledger-work", interval=1500, disabled=True),
        ],
        className="stack",
    )


def ledger_of(source: RunSource, state: LedgerState) -> ClusterLedger:
    """Return the ledger of the time range in the address, up to now. Raises ``RankscopeError``."""
    since = None if state.days is None else time.time_ns() - state.days * DAY_NS
    return cluster_ledger(told(source), since_unix_ns=since)


def ledger_body(ledger: ClusterLedger) -> list[Component]:
    """Return the sum, its coverage, and a row per host."""
    parts: list[Component] = [html.Dl(_facts(ledger), className="facts"), _coverage(ledger)]
    if ledger.hosts:
        parts.append(_table(ledger.hosts))
    return [html.Div(parts, className="stack inner")]


def _facts(ledger: ClusterLedger) -> list[Component]:
    cost = total_cost(ledger.hosts)
    facts = [
        ("GPU time lost", wording.gpu_hours(ledger.gpu_hours) if ledger.counted else wording.UNKNOWN),
        (
            "Cost of it",
            ", ".join(wording.money(amount, currency) for currency, amount in sorted(cost.items())) or wording.UNKNOWN,
        ),
        ("Repeat offenders", wording.count(sum(host.repeated for host in ledger.hosts), "host")),
        ("Runs counted", f"{len(ledger.counted):,} of {_all(ledger):,}"),
    ]
    return [fact(name, value) for name, value in facts]


def _all(ledger: ClusterLedger) -> int:
    return sum(len(runs) for _, runs in _left_out(ledger)) + len(ledger.counted)


def _left_out(ledger: ClusterLedger) -> list[tuple[str, list[RunSummary]]]:
    return [
        ("not analysed", ledger.not_analysed),
        ("unreadable", ledger.unreadable),
        ("too little data for a verdict", ledger.too_little),
        ("without GPUs, so without GPU time", ledger.without_gpus),
        ("without a known start, so in no window of time", ledger.undated),
    ]


def _coverage(ledger: ClusterLedger) -> Component:
    """Return the list of runs that are not in the sum, by reason."""
    lines: list[Component] = [html.Li(_missing(why, runs)) for why, runs in _left_out(ledger) if runs]
    if not lines:
        return html.Div(
            "Every run is counted." if ledger.counted else "There is no run in this window of time.", className="help"
        )
    button = dmc.Button(
        "Analyse them", id="ledger-analyse", size="compact-xs", variant="default", disabled=not ledger.not_analysed
    )
    return html.Div(
        [html.Strong("Not in the sum"), html.Ul(lines), html.Div(button, hidden=not ledger.not_analysed)], className="covers"
    )


def _missing(why: str, runs: Sequence[RunSummary]) -> list[Component | str]:
    """Return ``3 runs not analysed: a, b, c``. Each name is a link unless the run cannot be read."""
    names = [html.Span(run.name, title=run.problem) if run.problem else run_link(run.run_id, run.name) for run in runs]
    return [f"{wording.count(len(runs), 'run')} {why}: ", *first_of(names, _NAMED)]


def _table(hosts: Sequence[HostLoss]) -> Component:
    columns = (
        ("Host", "names"), ("GPU time lost", "number"), ("Per GPU-h trained on it", "number"), ("Cost", "number"), ("Causes", ""),
        ("Blamed in", "names"),
    )  # fmt: skip
    more = [html.P(f"{len(hosts) - SHOWN:,} more hosts are in the CSV.", className="help")] if len(hosts) > SHOWN else []
    return html.Div([table(columns, map(_row, hosts[:SHOWN])), *more])


def _row(host: HostLoss) -> tuple[Any, ...]:
    causes = sorted(host.by_cause.items(), key=lambda item: -item[1])
    name: list[Component | str] = [host.host or NO_HOST]
    if host.repeated:
        name += [" ", badge(f"⚑ {len(host.runs)} runs", tone="bad", title="Blamed in several runs")]
    if host.gpus:
        name.append(html.Div(f"{wording.count(len(host.gpus), 'GPU')}: {', '.join(sorted(host.gpus)[:2])}", className="help"))
    return (
        name,
        wording.gpu_hours(host.gpu_hours),
        "-" if host.rate is None else f"{host.rate:,.3g} GPU-h",
        _cost(host),
        "; ".join(f"{LOOKS[cause][0]} {wording.gpu_hours(hours)}" for cause, hours in causes),
        first_of([run_link(run_id, run_name) for run_id, run_name in host.runs.items()], _NAMED),
    )


def _cost(host: HostLoss) -> str:
    if not host.cost:
        return "-"
    text = ", ".join(wording.money(amount, currency) for currency, amount in sorted(host.cost.items()))
    return f"{text} + {wording.gpu_hours(host.unpriced_hours)} without a price" if host.unpriced_hours else text


def _idle(idle_gpus: IdleGpus | None) -> list[Component]:
    if idle_gpus is None:
        return [
            html.P("Not known: this needs a Prometheus that scrapes rankscope's exporter. Start with:", className="help"),
            advice("rankscope dashboard PATH --prometheus URL"),
        ]
    try:
        holders = by_holder(idle_gpus())
    except RankscopeError as error:
        return [html.P(str(error), className="reason")]
    if not holders:
        return [html.P("No GPU is held without being used right now.", className="help")]
    columns = (
        ("User", ""), ("Account", ""), ("Idle GPUs", "number"), ("Idle GPU-hours in 24 h", "number"), ("Hosts", "names"),
        ("Jobs", "names"),
    )  # fmt: skip
    rows = (
        (
            holder.user or wording.UNKNOWN,
            holder.account or wording.UNKNOWN,
            f"{holder.gpus:,}",
            "-" if holder.idle_hours is None else f"{holder.idle_hours:,.1f}",
            ", ".join(holder.hosts) or "-",
            ", ".join(holder.jobs) or "-",
        )
        for holder in holders
    )
    return [table(columns, rows)]
