"""Traces behind a URL: the errors when nothing can be read from there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rankscope.analysis.engine import analyze
from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.base.errors import InputError

pytest.importorskip("aiohttp")


class _Answers(BaseHTTPRequestHandler):
    """Handler that answers ``/403/…`` with status 403."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"{}")

    do_HEAD = do_GET  # noqa: N815  # as the server wants it

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as served:
        threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


@pytest.fixture
def nobody() -> str:
    """Address at which no server listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers, bind_and_activate=True) as closed:
        return f"http://127.0.0.1:{closed.server_port}"


@pytest.mark.parametrize("name", ["rank-0.json", "rank-*.json", ""])
def test_a_server_that_is_not_there_is_not_a_missing_file(nobody: str, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be reached: .*check the address, the network and the proxy"):
        analyze([f"{nobody}/{name}"])


def test_every_verb_that_reads_traces_says_the_same(nobody: str) -> None:
    url = f"{nobody}/rank-0.json"
    with pytest.raises(InputError, match="cannot be reached"):
        whatif([url])
    with pytest.raises(InputError, match="cannot be reached"):
        export_perfetto([url], lambda _: None)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"access denied: .*credentials for http://"),
        (403, r"access denied: .*credentials for http://"),
        (404, "no such file, nor a folder"),
        (500, "the server does not give it: 500"),
        (200, "JSON, but not a trace"),
    ],
)
def test_a_server_that_refuses_is_told_from_one_that_has_nothing(server: str, status: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        analyze([f"{server}/{status}/rank-0.json"])


class NoCredentialsError(Exception):
    """Exception with the name of one from an optional package."""


class _Locked(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    protocol = "locked"
    cachable = False
    raises: ClassVar[Exception]

    def info(self, path: str, **_: Any) -> Any:
        raise self.raises


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Forbidden"), "access denied: Forbidden; give credentials for locked://"),
        (NoCredentialsError("Unable to locate credentials"), "access denied: Unable to locate credentials; give credentials"),
        (TimeoutError("timed out"), "cannot be reached: timed out"),
        (ValueError("odd bucket"), ": odd bucket$"),
    ],
)
def test_errors_of_filesystems_are_told_by_what_they_are(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, tmp_path: Path
) -> None:
    # given a filesystem that fails in its own way
    fsspec.register_implementation("locked", _Locked, clobber=True)
    monkeypatch.setattr(_Locked, "raises", error, raising=False)
    # then that error is reported, instead of a missing file
    with pytest.raises(InputError, match=message):
        analyze([f"locked://{tmp_path.name}/rank-0.json"])
