"""Callbacks that draw figures, texts and tables of a run's views from the run, the selection in the address and the scheme."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dash import ALL, MATCH, Dash, Input, Output, State, ctx, html, no_update

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.frame import note
from rankscope.dashboards.charts.palette import Palette, palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import NotReadyError, RunSource
from rankscope.dashboards.model.drawn import NO_TABLE, Drawn
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.pages.live import identity, not_yet
from rankscope.dashboards.views.registry import FIGURES, GRIDS, PARTS

_LOG = logging.getLogger(__name__)

OUR_FAULT = "This could not be drawn: an error in rankscope, not in the run. The log of the server says more."


def register(app: Dash, source: RunSource) -> None:
    """Add the callbacks that draw figures and fill texts and tables."""
    each: Any = MATCH
    every: Any = ALL

    @app.callback(
        Output(identity("figure", each), "figure"),
        Output(identity("says", each), "children"),
        Output(identity("figure-again", each), "disabled"),
        Input("run", "data"),
        Input("address", "search"),
        Input("scheme", "data"),
        Input(identity("figure-again", each), "n_intervals"),
        State(identity("figure", each), "id"),
    )
    def draw_figure(
        run: dict[str, str] | None, search: str | None, scheme: str | None, _again: int | None, which: dict[str, str]
    ) -> tuple[Any, Any, Any]:
        if run is None or which["name"] not in FIGURES:
            return no_update, no_update, no_update
        drawn, ready = draw(source, run["run_id"], which["name"], PageState.parse(search), palette(scheme))
        return drawn.figure, drawn.says, ready

    @app.callback(
        Output(identity("part", each), "children"),
        Input("run", "data"),
        Input("address", "search"),
        Input({"type": "part-again", "name": each, "of": every}, "n_intervals"),
        State(identity("part", each), "id"),
        prevent_initial_call=True,  # the page is delivered with it
    )
    def write_part(run: dict[str, str] | None, search: str | None, again: list[int | None], which: dict[str, str]) -> Any:
        if run is None or which["name"] not in PARTS:
            return no_update
        if isinstance(ctx.triggered_id, dict) and not any(again):
            return no_update  # the polling timer was only just created
        try:
            return PARTS[which["name"]](RunData(source, source.summary(run["run_id"])), PageState.parse(search))
        except NotReadyError as error:
            return not_yet(which["name"], error.progress)
        except RankscopeError as error:
            return html.P(str(error), className="reason")
        except Exception:  # noqa: BLE001  other texts must still be shown; the log has the traceback
            _LOG.exception("part %s of run %s", which["name"], run["run_id"])
            return html.P(OUR_FAULT, className="reason", role="alert")

    _register_grids(app, source)


def _register_grids(app: Dash, source: RunSource) -> None:
    each: Any = MATCH

    @app.callback(
        Output(identity("grid", each), "rowData"),
        Input("run", "data"),
        Input("address", "search"),
        State(identity("grid", each), "id"),
        prevent_initial_call=True,
    )
    def fill_grid(run: dict[str, str] | None, search: str | None, which: dict[str, str]) -> Any:
        if run is None or which["name"] not in GRIDS:
            return no_update
        try:
            return GRIDS[which["name"]](RunData(source, source.summary(run["run_id"])), PageState.parse(search))
        except RankscopeError:
            return no_update  # another part of the page shows the error


def draw(source: RunSource, run_id: str, name: str, state: PageState, colors: Palette) -> tuple[Drawn, bool]:
    """Draw figure ``name`` of a run; see ``drawn_or_why``."""
    return drawn_or_why(
        lambda: FIGURES[name](RunData(source, source.summary(run_id)), state, colors), colors, f"{name} of run {run_id}"
    )


def drawn_or_why(make: Callable[[], Drawn], colors: Palette, name: str) -> tuple[Drawn, bool]:
    """Return the figure, or a note with the error, and whether it is final. If not, the client must request it again."""
    try:
        return make(), True
    except NotReadyError as error:
        return instead(f"{error.progress.sentence} …", colors), False
    except RankscopeError as error:
        return instead(str(error), colors), True
    except Exception:  # noqa: BLE001  other figures must still be drawn; the log has the traceback
        _LOG.exception("figure %s", name)
        return instead(OUR_FAULT, colors), True


def instead(text: str, colors: Palette) -> Drawn:
    """Return a figure without data that shows ``text`` as the reason."""
    return Drawn(note(text, colors), NO_TABLE, text)
