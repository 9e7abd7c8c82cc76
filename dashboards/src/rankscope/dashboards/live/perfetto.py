"""Windows as files for Perfetto: ``/run/RUN_ID/perfetto?window=N``. With ``ask=1`` the answer is the progress, in JSON."""

from __future__ import annotations

from urllib.parse import quote

import flask
from dash import Dash

from rankscope.analysis.result.text import size
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.source import NotReadyError, RunSource, UnknownRunError
from rankscope.dashboards.model.state import PageState


def register(app: Dash, source: RunSource) -> None:
    """Add the URL rule to the server."""

    def perfetto(run_id: str) -> flask.Response:
        state = PageState.parse(flask.request.query_string.decode("utf-8", "replace"))
        asks = "ask" in flask.request.args
        try:
            run = source.summary(run_id)
            window = source.windows(run).chosen(state.window)
            if window is None:
                return _said(404, error="no window has been captured yet")
            file = source.perfetto(run, window)
            if asks:
                count = file.stat().st_size
                return _said(200, bytes=count, size=size(count))
            name = quote(f"{run_id}-step-{window.first}.json.gz", safe="")
            response = flask.send_file(file, mimetype="application/gzip")
        except NotReadyError as error:
            return _said(200 if asks else 503, state=error.progress.sentence)
        except UnknownRunError:
            return _said(404, error="there is no such run")
        except (RankscopeError, OSError) as error:
            return _said(500, error=str(error))
        response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
        return response

    app.server.add_url_rule("/run/<run_id>/perfetto", view_func=perfetto)


def _said(status: int, **what: object) -> flask.Response:
    response = flask.jsonify(what)
    response.status_code = status
    return response
