"""Downloads: figures and tables as CSV, windows for Perfetto."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import flask
from dash import MATCH, ClientsideFunction, Dash, Input, Output

from rankscope.analysis.result.text import size
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.data.source import NotReadyError, RunSource, UnknownRunError
from rankscope.dashboards.live.components import identity
from rankscope.dashboards.live.pages import Pages
from rankscope.dashboards.model.drawn import csv_of
from rankscope.dashboards.model.state import PageState, run_of


def register(app: Dash, pages: Pages) -> None:
    """Serve the numbers of a page's figures at ``PAGE/data/FIGURE.csv``, and add the callback of the tables' save button."""
    _register_perfetto(app, pages.source)
    each: Any = MATCH

    def figure_data(page: str, name: str) -> flask.Response:
        """Return a figure's table. Without one, its sentence as plain text: status 404 if that is final, 503 if not."""
        path = "/" + "/".join(quote(part, safe="") for part in page.split("/"))
        query = flask.request.query_string.decode("utf-8", "replace")
        data = pages.figure(path, f"?{query}", name, palette(None))
        if data is None:
            flask.abort(404)
        drawn, ready = data
        if not drawn.table.columns:
            return flask.Response(f"{drawn.sentence}\n", 404 if ready else 503, mimetype="text/plain")
        file = quote(f"{(run_of(path) or ('rankscope',))[0]}-{name}.csv", safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{file}"}
        return flask.Response(csv_of(drawn.table), mimetype="text/csv", headers=headers)

    app.server.add_url_rule("/<path:page>/data/<name>.csv", view_func=figure_data)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "saveGrid"),
        Output(identity("grid", each), "exportDataAsCsv"),
        Input(identity("save-grid", each), "n_clicks"),
        prevent_initial_call=True,
    )


def _register_perfetto(app: Dash, source: RunSource) -> None:
    """Serve windows as files for Perfetto at ``/run/RUN_ID/perfetto?window=N``; with ``ask=1``, the progress in JSON."""

    def perfetto(run_id: str) -> flask.typing.ResponseReturnValue:
        state = PageState.parse(flask.request.query_string.decode("utf-8", "replace"))
        only_state = "ask" in flask.request.args
        try:
            run = source.summary(run_id)
            window = source.windows(run).chosen(state.window)
            if window is None:
                return {"error": "no window has been captured yet"}, 404
            file = source.perfetto(run, window)
            name = f"{run_id}-step-{window.first}.json.gz"
            if only_state:
                count = file.stat().st_size
                return {"bytes": count, "size": size(count), "file": name, "title": f"{run.name}, {window.steps}"}
            return flask.send_file(file, mimetype="application/gzip", as_attachment=True, download_name=name)
        except NotReadyError as error:
            return {"state": error.progress.sentence}, 200 if only_state else 503
        except UnknownRunError:
            return {"error": "there is no such run"}, 404
        except (RankscopeError, OSError) as error:
            return {"error": str(error)}, 500

    app.server.add_url_rule("/run/<run_id>/perfetto", view_func=perfetto)
