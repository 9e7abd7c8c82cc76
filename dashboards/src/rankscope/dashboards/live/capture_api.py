"""Captures over HTTP: ``POST /api/run/RUN_ID/capture`` and ``GET /api/run/RUN_ID/capture/REQUEST_ID``, in JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import flask
import msgspec

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.source import RunSource, UnknownRunError
from rankscope.dashboards.timeline.capture import CaptureStatus, NotLiveError, UnknownRequestError, capture_state, request_capture
from rankscope.dashboards.web.access import NotAllowedError, require_change, visitor
from rankscope.dashboards.web.config import DashboardConfig
from rankscope.dashboards.words.inert import sanitize
from rankscope.runs.control import MAX_STEPS

MAX_BODY_BYTES: Final = 4096

_STATUSES: Final[dict[type[RankscopeError], int]] = {
    NotAllowedError: 403, UnknownRunError: 404, UnknownRequestError: 404, NotLiveError: 409,
}  # fmt: skip


class _CaptureBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] = 3


def register(server: flask.Flask, source: RunSource, config: DashboardConfig) -> None:
    """Add both endpoints."""

    def post_capture(run_id: str) -> flask.typing.ResponseReturnValue:
        request = flask.request
        request.max_content_length = MAX_BODY_BYTES
        try:
            require_change(config)
        except NotAllowedError as error:
            return {"error": str(error)}, 403
        if request.mimetype != "application/json":
            return {"error": "send JSON, with Content-Type: application/json"}, 415
        try:
            wanted = msgspec.json.decode(request.get_data(), type=_CaptureBody)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return {"error": f'not {{"steps": N}} with N from 1 to {MAX_STEPS}: {error}'}, 400
        return _answer(202, lambda: request_capture(source, run_id, wanted.steps, user=visitor().user))

    def get_capture(run_id: str, request_id: str) -> flask.typing.ResponseReturnValue:
        return _answer(200, lambda: capture_state(source, run_id, request_id))

    def unknown(path: str) -> flask.typing.ResponseReturnValue:
        return {"error": f"there is no /api/{sanitize(path)}; docs/dashboard-access.md has what there is"}, 404

    server.add_url_rule("/api/<path:path>", "unknown_to_scripts", unknown, methods=["GET", "POST"])
    server.add_url_rule("/api/run/<path:run_id>/capture", "ask_for_capture", post_capture, methods=["POST"])
    server.add_url_rule("/api/run/<path:run_id>/capture/<request_id>", "tell_of_capture", get_capture, methods=["GET"])


def _answer(status: int, make: Callable[[], CaptureStatus]) -> flask.typing.ResponseReturnValue:
    try:
        return flask.Response(msgspec.json.encode(make()), status, mimetype="application/json")
    except RankscopeError as error:
        return {"error": str(error)}, next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)
