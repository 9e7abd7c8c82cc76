"""Handler of uncaught errors, including those from requests that no page sends: one generic answer and a short log."""

from __future__ import annotations

import logging
import traceback

import flask
from dash.exceptions import DependencyException
from werkzeug.exceptions import HTTPException

_LOG = logging.getLogger(__name__)

ANSWER = "This could not be answered: an error in rankscope, or a request that no page of it sends. The log says more.\n"


def register(server: flask.Flask) -> None:
    """Register the error handler. It logs the traceback of the first error at a place in the code, later ones as one line."""
    seen: set[tuple[str, int | None]] = set()

    def answer(error: Exception) -> flask.typing.ResponseReturnValue:
        if isinstance(error, HTTPException):
            return error
        if isinstance(error, DependencyException):  # request for an unknown script
            return flask.Response("There is no such file.\n", 404, mimetype="text/plain")
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (last.filename, last.lineno)
        what = (flask.request.method, flask.request.path.encode("unicode_escape").decode(), type(error).__name__, *place)
        _LOG.error("%s %s: %s at %s:%s", *what, exc_info=None if place in seen else error)
        seen.add(place)
        return flask.Response(ANSWER, 500, mimetype="text/plain")

    server.register_error_handler(Exception, answer)
