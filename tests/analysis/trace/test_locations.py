"""Traces at URLs: on the filesystems of fsspec and behind servers, and the errors where nothing can be read from there."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.analysis.trace_events import text_of

from rankscope.analysis.engine import analyze
from rankscope.analysis.parallel.workers import LocalEngine
from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.base.errors import InputError, MissingError

pytest.importorskip("aiohttp")


@pytest.fixture
def remote() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    for rank in range(2):
        filesystem.pipe(f"/job/traces/rank-{rank}.json.gz", gzip.compress(text_of(100)))
    filesystem.pipe("/job/notes.txt", b"hello")
    yield filesystem
    filesystem.rm("/job", recursive=True)


@pytest.mark.parametrize(
    "path", ["memory://job", "memory://job/traces/", "memory://job/traces/rank-*.json.gz", "memory://job/**/*.gz"]
)
def test_traces_on_another_filesystem_are_found_and_read(remote: Any, path: str) -> None:
    analysis = analyze([path], engine=LocalEngine(2))
    assert [row.compute_us for row in analysis.ranks] == [500, 500]
    assert analysis.source.path == path


def test_remote_files_can_be_given_individually_beside_local_ones(remote: Any, tmp_path: Path) -> None:
    (tmp_path / "rank-2.json").write_bytes(text_of(100))
    names = ["memory://job/traces/rank-0.json.gz", "memory://job/traces/rank-1.json.gz"]
    assert analyze(names).source.path == "memory://job/traces"
    assert [row.rank for row in analyze([*names, tmp_path]).ranks] == [0, 1, 2]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://job/traces/rank-7.json", "no such file"),
        ("memory://job/*.json", "no file matches"),
        ("nonsense://job/rank-0.json", "nonsense"),
        ("memory://job/notes.txt", "not JSON"),
        ("file:///proc/self/nothing.json", "no such file"),
    ],
)
def test_problem_on_another_filesystem_is_a_one_line_error(remote: Any, url: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        analyze([url])
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)


class NoCredentialsError(Exception):
    """Exception with the name of one from an optional package."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoCredentialsError("403:\n  no credentials."), "access denied: 403: no credentials; give credentials for memory://"),
        (PermissionError(13, "Permission denied"), "access denied: Permission denied; give credentials for memory://"),
        (TimeoutError(), "cannot be reached: TimeoutError"),
        (ValueError("odd bucket"), ": odd bucket"),
    ],
)
@pytest.mark.parametrize("method", ["info", "open", "find"])
def test_errors_of_a_filesystem_are_one_line(
    remote: Any, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, reason: str
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(type(remote), method, refuse)
    url = "memory://job" if method == "find" else "memory://job/traces/rank-0.json.gz"
    with pytest.raises(InputError) as caught:
        analyze([url])
    assert str(caught.value).startswith(f"{url}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_package_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingError, match=r"pip install 'rankscope\[remote\]'"):
        analyze(["s3://bucket/traces"])


@pytest.mark.slow
def test_local_traces_do_not_import_optional_packages(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(text_of(10)))
    code = (
        "import sys\nfrom rankscope.analysis.engine import analyze\nanalyze([sys.argv[1]])\n"
        "print([name for name in ('fsspec', 'pyarrow', 'backports.zstd', 'torch', 'asyncio') if name in sys.modules])"
    )
    completed = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


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
def test_unreachable_server_is_distinguished_from_a_missing_file(nobody: str, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be reached: .*check the address, the network and the proxy"):
        analyze([f"{nobody}/{name}"])


def test_every_command_reports_an_unreachable_server_alike(nobody: str) -> None:
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
def test_refusing_server_is_distinguished_from_a_missing_file(server: str, status: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        analyze([f"{server}/{status}/rank-0.json"])
