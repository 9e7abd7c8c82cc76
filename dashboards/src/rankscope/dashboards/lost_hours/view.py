"""Page of lost GPU-hours: GPU time lost per host and cause over all runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rankscope.analysis.result.cause import Cause
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import RunSource, RunSummary
from rankscope.dashboards.lost_hours.data import DAY_NS, ClusterLosses, HostLoss, cluster_losses, run_losses, total_cost
from rankscope.dashboards.lost_hours.figures import NO_HOST, lost_hours_bars
from rankscope.dashboards.model.line import Line, Piece, Span, badge, first_pieces, named_link
from rankscope.dashboards.model.page import (
    Block,
    Button,
    Fact,
    Facts,
    FigureBlock,
    Group,
    Heading,
    Inline,
    Items,
    Part,
    Rows,
    Section,
    Text,
    choice,
)
from rankscope.dashboards.model.state import PageState, run_path
from rankscope.dashboards.model.view import SitePage
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words import wording

SHOWN: Final = 200
"""Maximum number of hosts in the table. The CSV has all of them."""
_NAMED: Final = 6

WINDOWS: Final = ((1, "Last day"), (7, "Last 7 days"), (30, "Last 30 days"), (90, "Last 90 days"))


def _blocks(source: RunSource, search: str | None, _config: DashboardConfig) -> list[Block]:
    state = PageState.parse(search)
    days = dict(WINDOWS) | ({} if state.since is None else {state.since: f"Last {state.since} days"}) | dict(WINDOWS)
    options = [{"value": f"{number}d", "label": label} for number, label in days.items()]
    return [
        Heading("Lost GPU-hours", 1, "page-title"),
        Section(
            name="lost-hours",
            title="GPU time lost, by host and cause",
            help="Sum over the findings of all runs, in typical and in rare steps, charged to the host of the blamed rank. The "
            "list of runs shows only what a verdict itself names. Hosts that several runs blame come first (⚑): drain them, and "
            "check what their runs have in common.",
            blocks=[
                Part("lost-hours-sum", lambda: lost_hours_body(lost_hours_of(source, state), source.backlog)),
                FigureBlock(
                    name="lost-hours-bars",
                    label="Bars of the GPU-hours lost per host, by cause",
                    draw=lambda colors: lost_hours_bars(lost_hours_of(source, state), colors),
                ),
            ],
            tools=[choice("since", "Runs started in", options, state, width=150, nothing="All runs")],
        ),
    ]


def lost_hours_of(source: RunSource, state: PageState) -> ClusterLosses:
    """Return the losses of the time range in the address, up to now. Raises ``RankscopeError``."""
    since = None if state.since is None else time.time_ns() - state.since * DAY_NS
    return cluster_losses(run_losses(source), since_unix_ns=since)


def lost_hours_body(losses: ClusterLosses, backlog: Progress) -> list[Block]:
    """Return the sum, its coverage, and a row per host. ``backlog``: progress of the analyses that a viewer has started."""
    parts: list[Block] = [Facts(_facts(losses)), _coverage(losses, backlog)]
    if losses.hosts:
        parts += _table(losses.hosts)
    return [Group(parts, "stack inner")]


def _facts(losses: ClusterLosses) -> list[Fact]:
    cost = total_cost(losses.hosts)
    counted, left_out = len(losses.counted), sum(len(runs) for _, runs in _left_out(losses))
    facts = [
        ("GPU time lost", wording.gpu_hours(losses.gpu_hours) if losses.counted else wording.UNKNOWN),
        ("Cost", ", ".join(wording.money(amount, currency) for currency, amount in sorted(cost.items())) or wording.UNKNOWN),
        ("Hosts blamed repeatedly", wording.count(sum(host.repeated for host in losses.hosts), "host")),
        ("Runs counted", f"{counted:,} of {counted + left_out:,}"),
    ]
    return [Fact(name, value) for name, value in facts]


def _left_out(losses: ClusterLosses) -> list[tuple[str, list[RunSummary]]]:
    return [
        ("not analysed", losses.not_analysed),
        ("live, counted while their pages are open and once they have ended", losses.live),
        ("unreadable", losses.unreadable),
        ("with too little data for a verdict", losses.too_little),
        ("without GPUs", losses.without_gpus),
        ("without a known start time", losses.undated),
    ]


def _coverage(losses: ClusterLosses, backlog: Progress) -> Block:
    """Return the list of runs that are not in the sum, by reason."""
    lines = [_missing(why, runs) for why, runs in _left_out(losses) if runs]
    if not lines:
        return Text("Every run is counted." if losses.counted else "There is no run in this time range.", "help")
    ask: list[Block] = [Button("lost-hours-analyse", "Analyse them")] if _to_analyse(losses) else []
    if remaining_runs := backlog.of - backlog.done:
        ask = [Text(f"{wording.count(remaining_runs, 'run')} still to be analysed …", "help", live=True)]
    return Group([Inline(Span("Not in the sum", "strong"), ""), Items(lines), *ask], "covers")


def _to_analyse(losses: ClusterLosses) -> list[str]:
    """Return the runs to analyse, without live ones: their analysis lasts while a page shows them."""
    return [run.run_id for run in losses.not_analysed]


def _missing(why: str, runs: Sequence[RunSummary]) -> list[Piece]:
    """Return ``3 runs not analysed: a, b, c``. Each name is a link unless the run cannot be read."""
    names = [Span(run.name, title=run.problem) if run.problem else named_link(run.name, run_path(run.run_id)) for run in runs]
    return [f"{wording.count(len(runs), 'run')} {why}: ", *first_pieces(names, _NAMED)]


def _table(hosts: Sequence[HostLoss]) -> list[Block]:
    columns = (
        ("Host", "names"), ("GPU time lost", "number"), ("Per GPU-h trained", "number"), ("Cost", "number"), ("Causes", ""),
        ("Blamed in", "names"),
    )  # fmt: skip
    more = [Text(f"{len(hosts) - SHOWN:,} more hosts are in the CSV.", "help")] if len(hosts) > SHOWN else []
    return [Rows(columns, [_row(host) for host in hosts[:SHOWN]]), *more]


def _row(host: HostLoss) -> tuple[Line, ...]:
    causes = sorted(host.by_cause.items(), key=lambda item: -item[1])
    name: list[Piece] = [host.host or NO_HOST]
    if host.repeated:
        name += [" ", badge(f"⚑ {len(host.runs)} runs", tone="bad", title="Blamed in several runs")]
    if host.gpus:
        gpus = sorted(host.gpus)
        name.append(Span(wording.count(len(gpus), "GPU"), style="help below", title=", ".join(gpus[:8])))
    return (
        name,
        wording.gpu_hours(host.gpu_hours),
        "-" if host.rate is None else f"{host.rate:,.3g}",
        _cost(host),
        "; ".join(f"{CAUSES[cause].label} {wording.gpu_hours(hours)}{_rare(host, cause)}" for cause, hours in causes),
        first_pieces([named_link(run_name, run_path(run_id)) for run_id, run_name in host.runs.items()], _NAMED),
    )


def _rare(host: HostLoss, cause: Cause) -> str:
    """Return how much of the loss to a cause is in rare steps; empty without any."""
    rare = host.rare_by_cause.get(cause, 0.0)
    if rare <= 0:
        return ""
    return " in rare steps" if rare >= host.by_cause[cause] else f", of which {wording.gpu_hours(rare)} in rare steps"


def _cost(host: HostLoss) -> str:
    if not host.cost:
        return "-"
    text = ", ".join(wording.money(amount, currency) for currency, amount in sorted(host.cost.items()))
    return f"{text} + {wording.gpu_hours(host.unpriced_hours)} without a price" if host.unpriced_hours else text


def _work(source: RunSource, search: str | None) -> None:
    source.analyse(_to_analyse(lost_hours_of(source, PageState.parse(search))))


def _version(source: RunSource, _search: str | None) -> str:
    return source.backlog.sentence


PAGE: Final = SitePage(path="/lost-hours", title="Lost GPU-hours", blocks=_blocks, version=_version, work=_work)
