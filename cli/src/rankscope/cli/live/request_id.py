"""Requests with a given id: a caller that was killed while it waited can continue with the same id."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click
import msgspec

from rankscope.runs.control import ControlRequest
from rankscope.runs.control_names import REQUEST_ID, answer_name, made_ns
from rankscope.runs.paths import control_dir

_ID: Final = re.compile(REQUEST_ID, re.ASCII)


def parse_request_id(text: str) -> str:
    """Check an id, ``1700000000000000000-0123abcd``, which becomes a file name: unix nanoseconds and eight hexadecimal digits."""
    if _ID.fullmatch(text) is None:
        raise click.BadParameter(f"{text!r} is no id of a request: unix nanoseconds in 19 digits, a dash, 8 digits of 0-9a-f")
    return text


def named_request(request: ControlRequest, request_id: str | None) -> ControlRequest:
    """Return the request with the id ``request_id``, if given, and the creation time in that id."""
    if request_id is None:
        return request
    return msgspec.structs.replace(request, id=request_id, created_unix_ns=made_ns(request_id))


def was_answered(run: Path, request_id: str) -> bool:
    """Return whether a request has an answer: then there may be a result although the run is over."""
    names = (answer_name(request_id, None), Path(answer_name(request_id, 0)).parent.name)
    return any((control_dir(run) / name).exists() for name in names)
