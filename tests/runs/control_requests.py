"""Requests of the tests, and what is reported about them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankscope.runs.control import ControlRequest, new_request


class Reports(list[str]):
    """Reported lines."""

    def __call__(self, line: str) -> None:
        self.append(line)


def id_at(unix_ns: int, number: int = 0) -> str:
    return f"{unix_ns:019d}-{number:08x}"


def request_made(unix_ns: int, number: int = 0) -> ControlRequest:
    return msgspec.structs.replace(new_request("capture"), id=id_at(unix_ns, number), created_unix_ns=unix_ns)


def write(run: Path, name: str, content: bytes) -> Path:
    path = run / "control" / name
    path.write_bytes(content)
    return path
