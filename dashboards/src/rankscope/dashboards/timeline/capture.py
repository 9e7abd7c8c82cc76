"""Requests for a profile of a live run's next steps, as by ``rankscope capture``, and their state."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.source import RunSource, RunSummary
from rankscope.dashboards.web.access import NotAllowedError
from rankscope.dashboards.words.inert import MAX_TEXT, sanitize
from rankscope.runs.control import MAX_AGE_SECONDS, MAX_STEPS, new_request, post, read_answer
from rankscope.runs.control_names import REQUEST_ID, made_ns, request_name
from rankscope.runs.paths import control_dir

SILENT_S: Final = 300.0
"""Time without a new record after which a run counts as not training; a single step may take minutes."""

_ID: Final = re.compile(REQUEST_ID, re.ASCII)
_BY: Final = "requested on the dashboard"


class NotLiveError(RankscopeError):
    """The run cannot take a request now; the message gives the reason."""


class UnknownRequestError(RankscopeError):
    """There is no such request."""


class CaptureStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for a capture. ``first_step`` and ``last_step`` are the steps that will be profiled, both inclusive."""

    request_id: str
    run_id: str
    state: Literal["asked", "accepted", "refused", "void"]
    """``asked``: not answered yet. ``void``: not answered in time, so it never will be."""
    steps: int | None = None
    """Number of requested steps, if known."""
    first_step: int | None = None
    last_step: int | None = None
    reason: str | None = None
    """Reason why the request was refused, or is void."""


def request_capture(source: RunSource, run_id: str, steps: int, *, user: str | None = None) -> CaptureStatus:
    """Request a profile of the run's next ``steps`` steps (1 to ``MAX_STEPS``), the same steps on all ranks.

    ``user`` is recorded in the request. Raises ``UnknownRunError``, ``NotLiveError``, and ``NotAllowedError`` if this server may
    not write into the run.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps: {steps} is not between 1 and {MAX_STEPS}")
    run = source.summary(run_id)
    if (why := _why_not(run)) is not None:
        raise NotLiveError(why)
    request = new_request("capture", steps=steps, note=_BY if user is None else f"{_BY} by {user}")
    folder = control_dir(Path(run.path))
    if folder.is_symlink():
        raise NotAllowedError(f"{sanitize(str(folder), MAX_TEXT)}: a symbolic link; no job takes requests from there")
    try:
        post(Path(run.path), request)
    except OSError as error:
        where, why = sanitize(str(error.filename or folder), MAX_TEXT), error.strerror or str(error)
        raise NotAllowedError(f"{where}: cannot write a request here: {why}; requests need write access to the run") from error
    return CaptureStatus(request_id=request.id, run_id=run_id, state="asked", steps=steps)


def capture_state(source: RunSource, run_id: str, request_id: str) -> CaptureStatus:
    """Return the state of a request. Raises ``UnknownRunError`` and ``UnknownRequestError``."""
    run = source.summary(run_id)
    folder = control_dir(Path(run.path))
    if _ID.fullmatch(request_id) is None or run.problem is not None or folder.is_symlink():
        raise UnknownRequestError("there is no such request")
    answer = read_answer(Path(run.path), request_id)
    if answer is not None:
        return CaptureStatus(
            request_id=request_id,
            run_id=run_id,
            state="accepted" if answer.accepted else "refused",
            first_step=answer.first_step,
            last_step=answer.last_step,
            reason=None if answer.accepted else sanitize(answer.reason or "no reason given", MAX_TEXT),
        )
    if not (folder / request_name(request_id)).is_file():
        raise UnknownRequestError("there is no such request; it was taken back, or cleared away as old")
    why = _why_not(run)
    if why is None and abs(time.time_ns() - made_ns(request_id)) > MAX_AGE_SECONDS * 1e9:
        why = "the job did not answer: it records no profiles, or the clocks of its first host and this one are far apart"
    return CaptureStatus(request_id=request_id, run_id=run_id, state="asked" if why is None else "void", reason=why)


def _why_not(run: RunSummary) -> str | None:
    if run.problem is not None:
        return run.problem
    if run.status == "starting":
        return "nothing has been recorded yet: no rank has finished its first step"
    if run.status in ("finished", "failed"):
        return "the run is over; only a live run can be profiled"
    silent_s = 0.0 if run.last_write_unix_ns is None else time.time() - run.last_write_unix_ns / 1e9
    if run.status == "silent" and silent_s > SILENT_S:
        return f"no step has been recorded for {silent_s / 60:.0f} min: the job hangs, or has vanished with its nodes"
    return None
