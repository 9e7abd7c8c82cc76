"""Callbacks of the pages about many runs: their figures and choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import flask
from dash import MATCH, Dash, Input, Output, State, ctx, no_update

from rankscope.analysis.compare.result import Comparison, Scaling
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.alerts.figures import alert_counts
from rankscope.dashboards.callbacks.drawing import drawn_or_why
from rankscope.dashboards.callbacks.saving import csv_answer
from rankscope.dashboards.charts.palette import Palette, palette
from rankscope.dashboards.compare.figures import (
    compared_with,
    own_times,
    part_differences,
    rank_changes,
    scaling_efficiency,
    scaling_losses,
    step_distributions,
)
from rankscope.dashboards.compare.view import compared_of
from rankscope.dashboards.data.source import NotReadyError, RunSource
from rankscope.dashboards.lost_hours.figures import ledger_bars
from rankscope.dashboards.lost_hours.view import ledger_body, ledger_of
from rankscope.dashboards.many_state import CompareState, LedgerState
from rankscope.dashboards.model.drawn import Drawn
from rankscope.dashboards.pages.live import identity

ASKED_AT_ONCE: Final = 4
"""Maximum number of runs that the ledger requests the analysis of at a time."""

Maker = Callable[[RunSource, str | None, Palette], Drawn]


def _ledger(source: RunSource, search: str | None, colors: Palette) -> Drawn:
    return ledger_bars(ledger_of(source, LedgerState.parse(search)), colors)


def _alerts(source: RunSource, _search: str | None, colors: Palette) -> Drawn:
    return alert_counts(source.all_alerts().alerts, colors)


def _distributions(source: RunSource, search: str | None, colors: Palette) -> Drawn:
    return step_distributions(compared_of(source, CompareState.parse(search)), colors)


def _of_pair(draw_pair: Callable[[Comparison, Palette], Drawn]) -> Maker:
    def make(source: RunSource, search: str | None, colors: Palette) -> Drawn:
        return draw_pair(_pair(source, CompareState.parse(search)), colors)

    return make


def _pair(source: RunSource, state: CompareState) -> Comparison:
    comparison = compared_with(compared_of(source, state).result)
    if comparison is None:
        raise RankscopeError("Runs of different world sizes are judged by their scaling efficiency.")
    return comparison


def _ranks(source: RunSource, search: str | None, colors: Palette) -> Drawn:
    state = CompareState.parse(search)
    sides = compared_of(source, state).result.sides
    return rank_changes(_pair(source, state), sides, colors, by=state.by)


def _of_scaling(draw_scaling: Callable[[Scaling, Palette], Drawn]) -> Maker:
    def make(source: RunSource, search: str | None, colors: Palette) -> Drawn:
        scaling = compared_of(source, CompareState.parse(search)).result.scaling
        if scaling is None:
            raise RankscopeError("These runs are of one world size: there is no scaling to judge.")
        return draw_scaling(scaling, colors)

    return make


FIGURES: Final[Mapping[str, Maker]] = {
    "ledger-bars": _ledger,
    "alert-counts": _alerts,
    "compare-steps": _distributions,
    "compare-parts": _of_pair(part_differences),
    "compare-own": _of_pair(own_times),
    "compare-ranks": _ranks,
    "scaling-efficiency": _of_scaling(scaling_efficiency),
    "scaling-losses": _of_scaling(scaling_losses),
}
"""Figure name to the function that draws it: (source, query part of the address, palette) → ``Drawn``."""


def register(app: Dash, source: RunSource) -> None:
    """Add the callbacks of these pages, and serve the numbers of their figures at ``/PAGE/data/FIGURE.csv``."""
    each: Any = MATCH

    @app.callback(
        Output(identity("many-figure", each), "figure"),
        Output(identity("many-says", each), "children"),
        Output(identity("many-figure-again", each), "disabled"),
        Input("many-shown", "data"),
        Input("scheme", "data"),
        Input(identity("many-figure-again", each), "n_intervals"),
        State(identity("many-figure", each), "id"),
    )
    def draw_figure(shown: Any, scheme: str | None, _again: int | None, which: dict[str, str]) -> tuple[Any, Any, Any]:
        if which["name"] not in FIGURES or not isinstance(shown, dict):
            return no_update, no_update, no_update
        drawn, ready = draw(source, which["name"], shown.get("search"), palette(scheme))
        return drawn.figure, drawn.says, ready

    def figure_data(name: str) -> flask.Response:
        if name not in FIGURES:
            flask.abort(404)
        search = f"?{flask.request.query_string.decode('utf-8', 'replace')}"
        return csv_answer(draw(source, name, search, palette(None)), f"rankscope-{name}.csv")

    for page in ("compare", "ledger", "alerts"):
        app.server.add_url_rule(f"/{page}/data/<name>.csv", endpoint=f"{page}-data", view_func=figure_data)
    _register_compare(app)
    _register_ledger(app, source)


def _register_compare(app: Dash) -> None:
    @app.callback(
        Output("compare-address", "search"),
        Output("compare-by", "value"),
        Output("many-shown", "data", allow_duplicate=True),
        Input("compare-by", "value"),
        Input("compare-address", "search"),
        prevent_initial_call=True,
    )
    def choose_by(by: Any, search: str | None) -> tuple[Any, Any, Any]:
        state = CompareState.parse(search)
        wanted = replace(state, by="rank" if by == "rank" else "host") if ctx.triggered_id == "compare-by" else state
        return (
            no_update if wanted == state else wanted.search,
            no_update if wanted.by == by else wanted.by,
            {"search": wanted.search},
        )


def _register_ledger(app: Dash, source: RunSource) -> None:
    @app.callback(Output("ledger-address", "search"), Input("ledger-since", "value"), prevent_initial_call=True)
    def choose(days: Any) -> str:
        return LedgerState(int(days) if isinstance(days, str) and days.isdecimal() else None).search

    @app.callback(
        Output("ledger-body", "children"),
        Output("many-shown", "data"),
        Output("ledger-work", "disabled"),
        Output("ledger-since", "value"),
        Input("ledger-work", "n_intervals"),
        Input("ledger-address", "search"),
        State("ledger-since", "value"),
        prevent_initial_call=True,
    )
    def show(ticks: int | None, search: str | None, chosen: str | None) -> tuple[Any, ...]:
        state = LedgerState.parse(search)
        days = "" if state.days is None else str(state.days)
        try:
            ledger = ledger_of(source, state)
            working = ctx.triggered_id == "ledger-work" and analyse_some(source, [run.run_id for run in ledger.not_analysed])
        except RankscopeError:
            return (no_update,) * 4  # the folder cannot be read at the moment
        return ledger_body(ledger), {"search": search or "", "ticks": ticks}, not working, no_update if days == chosen else days

    @app.callback(
        Output("ledger-work", "disabled", allow_duplicate=True), Input("ledger-analyse", "n_clicks"), prevent_initial_call=True
    )
    def begin(clicks: int | None) -> Any:
        return False if clicks else no_update


def analyse_some(source: RunSource, run_ids: list[str]) -> bool:
    """Request the analysis of the first ``ASKED_AT_ONCE`` readable runs. Return whether any may still be pending."""
    working, asked = False, 0
    for run_id in run_ids:
        try:
            source.brief(run_id)
        except NotReadyError:
            working = True
        except RankscopeError:
            continue  # the run's row in the list shows the error
        asked += 1
        if asked >= ASKED_AT_ONCE:
            return True
    return working


def draw(source: RunSource, name: str, search: str | None, colors: Palette) -> tuple[Drawn, bool]:
    """Draw figure ``name``; see ``drawn_or_why``."""
    return drawn_or_why(lambda: FIGURES[name](source, search, colors), colors, name)
