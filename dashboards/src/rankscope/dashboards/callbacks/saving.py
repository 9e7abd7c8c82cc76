"""Download of figures and tables as CSV."""

from __future__ import annotations

import csv
import io
from typing import Any
from urllib.parse import quote

import flask
from dash import MATCH, ClientsideFunction, Dash, Input, Output

from rankscope.dashboards.callbacks.drawing import draw
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.model.drawn import Drawn, Table
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.pages.live import identity
from rankscope.dashboards.views.registry import FIGURES
from rankscope.dashboards.words.inert import safe_cell


def register(app: Dash, source: RunSource) -> None:
    """Serve the numbers of figures at ``/run/RUN_ID/data/FIGURE.csv``, and add the callback of the tables' save button."""
    each: Any = MATCH

    def figure_data(run_id: str, name: str) -> flask.Response:
        if name not in FIGURES:
            flask.abort(404)
        state = PageState.parse(flask.request.query_string.decode("utf-8", "replace"))
        return csv_answer(draw(source, run_id, name, state, palette(None)), f"{run_id}-{name}.csv")

    app.server.add_url_rule("/run/<run_id>/data/<name>.csv", view_func=figure_data)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "saveGrid"),
        Output(identity("grid", each), "exportDataAsCsv"),
        Input(identity("save-grid", each), "n_clicks"),
        prevent_initial_call=True,
    )


def csv_answer(drawn_and_ready: tuple[Drawn, bool], file: str) -> flask.Response:
    """Return the result of ``drawing.drawn_or_why`` as a CSV file.

    Without a table, return its sentence as plain text: status 404 if the result is final, 503 if not.
    """
    drawn, ready = drawn_and_ready
    if not drawn.table.columns:
        return flask.Response(f"{drawn.says}\n", 404 if ready else 503, mimetype="text/plain")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(file, safe='')}"}
    return flask.Response(csv_of(drawn.table), mimetype="text/csv", headers=headers)


def csv_of(table: Table) -> str:
    """Return header and rows as CSV. Unknown values are empty; cells that a spreadsheet would run as a formula are defused."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([safe_cell(cell) for cell in row] for row in (table.columns, *table.rows))
    return text.getvalue()
