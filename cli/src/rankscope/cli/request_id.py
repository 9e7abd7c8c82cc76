"""Requests that are asked under an id that was settled before: whoever was ended while it waited goes on with the same one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from rankscope.runs.control import ControlRequest
from rankscope.runs.control_names import REQUEST_ID, answer_name, made_ns
from rankscope.runs.paths import control_dir

_ID: Final = re.compile(REQUEST_ID, re.ASCII)


class _RequestId(click.ParamType[Any]):
    """``1700000000000000000-0123abcd``: when it was made, and eight digits."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what is none: it becomes the name of a file."""
        if _ID.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is no id of a request: unix nanoseconds in 19 digits, a dash, 8 digits of 0-9a-f", param, ctx)
        return str(value)


REQUEST: Final = _RequestId()


def named_request(request: ControlRequest, request_id: str | None) -> ControlRequest:
    """The request under that id, as old as the id says."""
    if request_id is None:
        return request
    return msgspec.structs.replace(request, id=request_id, created_unix_ns=made_ns(request_id))


def was_answered(run: Path, request_id: str) -> bool:
    """Whether anybody has answered it: then there may be something to show though the run is over."""
    names = (answer_name(request_id, None), Path(answer_name(request_id, 0)).parent.name)
    return any((control_dir(run) / name).exists() for name in names)
