"""Handler of uncaught errors, including those from requests that no page sends: one generic answer, and the log."""

from __future__ import annotations

import logging

import flask
from dash.exceptions import DependencyException
from werkzeug.exceptions import HTTPException

_LOG = logging.getLogger(__name__)

ANSWER = "This could not be answered: an error in rankscope, or a request that no page of it sends. The log says more.\n"


def register(server: flask.Flask) -> None:
    """Register the error handler."""

    def answer(error: Exception) -> flask.typing.ResponseReturnValue:
        if isinstance(error, HTTPException):
            return error
        if isinstance(error, DependencyException):  # request for an unknown script
            return flask.Response("There is no such file.\n", 404, mimetype="text/plain")
        path = flask.request.path.encode("unicode_escape").decode()
        _LOG.error("%s %s", flask.request.method, path, exc_info=error)
        return flask.Response(ANSWER, 500, mimetype="text/plain")

    server.register_error_handler(Exception, answer)
