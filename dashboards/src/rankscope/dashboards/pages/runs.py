"""The list of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component

from rankscope.analysis.result import Analysis
from rankscope.dashboards.config import DashboardConfig
from rankscope.dashboards.data.source import RunSummary
from rankscope.dashboards.pages import wording
from rankscope.dashboards.pages.pieces import advice, badge, status_badges
from rankscope.dashboards.url_state import run_path

SHOWN = 200
"""Newest runs that are listed."""
WITH_VERDICT = 24
"""Newest runs that are analysed for the list; the others when they are opened."""


def runs_page(runs: Sequence[RunSummary], config: DashboardConfig) -> Component:
    """The list; it looks for new runs by itself."""
    return html.Div(
        [
            html.H1("Runs", className="page-title"),
            html.Div(run_list(runs), id="run-list"),
            dcc.Store(id="run-list-revision", data=list_revision(runs)),
            dcc.Interval(id="run-list-poll", interval=int(config.poll_interval_s * 1000)),
        ],
        className="stack",
    )


def list_revision(runs: Sequence[RunSummary]) -> str:
    """Changes when the list would look different."""
    return hashlib.blake2b(repr([(run.run_id, run.revision, run.status) for run in runs]).encode(), digest_size=12).hexdigest()


def run_list(runs: Sequence[RunSummary]) -> list[Component]:
    """One row per run, in the order given."""
    if not runs:
        return [_empty()]
    rows: list[Component] = [_row(run, with_verdict=index < WITH_VERDICT) for index, run in enumerate(runs[:SHOWN])]
    hidden = len(runs) - SHOWN
    more = [html.P(f"{wording.count(hidden, 'older run')} not listed.", className="help")] if hidden > 0 else []
    return [html.Ul(rows, className="runs"), *more]


def _row(run: RunSummary, *, with_verdict: bool) -> Component:
    size = wording.count(run.world_size, "rank") if run.world_size is not None else "size not known"
    facts = [wording.moment(run.start_unix_ns), size, *([wording.count(run.hosts, "host")] if run.hosts else [])]
    folder = Path(run.path).name
    title: list[Component] = [dcc.Link(run.name, href=run_path(run.run_id), className="run-name")]
    if folder != run.name:  # jobs of one name are told apart by their folders
        title.append(html.Code(folder, className="path", title=run.path))
    if run.problem is not None:
        verdict: Component = html.Div(run.problem, className="run-verdict help")
    elif with_verdict:
        verdict = html.Div("Looking …", id={"type": "run-verdict", "run": run.run_id}, className="run-verdict help")
    else:
        verdict = html.Div("Open it to see its verdict.", className="run-verdict help")
    return html.Li(
        [
            html.Div([*title, *status_badges(run)], className="run-head"),
            verdict,
            *([] if run.problem is not None else [html.Div(" · ".join(facts), className="run-facts")]),
        ],
        className="card run",
    )


def verdict_line(run: RunSummary, analysis: Analysis) -> list[Component]:
    """Verdict of a run in the list, and the first of what is missing or damaged."""
    verdict, warnings = analysis.verdict, analysis.source.warnings
    tone = wording.verdict_tone(verdict.kind, may_be_well=run.may_be_well)
    line: list[Component] = [badge(wording.KIND_LABELS[verdict.kind], tone=tone), html.Span(verdict.summary)]
    if warnings:
        more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        line.append(html.Div(f"{warnings[0]}{more}", className="run-warning"))
    return line


def _empty() -> Component:
    return html.Section(
        [
            html.H2("No run here yet"),
            html.P("Record a training job; it needs no change to its code. The run appears here by itself.", className="help"),
            advice("rankscope run -- torchrun --nproc-per-node 8 train.py"),
        ],
        className="card empty",
    )
