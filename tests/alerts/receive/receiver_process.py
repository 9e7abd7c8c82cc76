"""A receiver as a process of its own, with a target that listens, for tests."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
from tests.local_http import answering, respond

PATIENCE_S = 180.0


class Target:
    """Takes what a sender brings, slowly if told; keeps ids and alerts."""

    def __init__(self) -> None:
        self.url = ""
        self.alerts: list[dict[str, Any]] = []
        self.alert_ids: list[str] = []
        """Of each of them, the ``webhook-id`` it came with."""
        self._lock = threading.Lock()

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Take it."""
        payload = msgspec.json.decode(body)
        with self._lock:
            self.alert_ids += [request.headers["webhook-id"]] * len(payload["alerts"])
            self.alerts += payload["alerts"]
        respond(request, 200)


@contextmanager
def listening_target() -> Iterator[Target]:
    """A target."""
    target = Target()
    with answering(target.answer) as target.url:
        yield target


class ReceiverProcess:
    """``rankscope alerts serve``, with one folder for its state, and the port that it chose at the first start.

    As a context manager it is started at the beginning, and killed at the end. ``settings`` are statements that run before it.
    """

    def __init__(self, folder: Path, config: str, *arguments: str, settings: str = "") -> None:
        self.folder = folder
        self.port = 0
        self.launch = ["-c", f"{settings}\nfrom rankscope.cli.main import main\nmain()"] if settings else ["-m", "rankscope"]
        self.errors = folder / "receiver.err"
        self.shown = folder / "receiver.out"
        file = folder / "alerts.toml"
        file.write_text(config)
        self.arguments = ["--config", str(file), "--state", str(folder / "state"), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._largest_file: int | None = None

    @property
    def command(self) -> list[str]:
        """What is started."""
        return [sys.executable, *self.launch, "alerts", "serve", "--listen", f"127.0.0.1:{self.port}", *self.arguments]

    @property
    def url(self) -> str:
        """Its address, which it reports when it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *, wait: bool = True) -> None:
        """Begin, and wait until it serves."""
        with self.shown.open("ab") as out, self.errors.open("ab") as errors:
            self._process = subprocess.Popen(self.command, stdout=out, stderr=errors, preexec_fn=self._limited)  # noqa: PLW1509
        if not self.port:
            until(self._listening)
        if wait:
            until(self.healthy)

    def limit_files(self, size: int | None) -> None:
        """From the next start on no file may become larger: to who writes it, the disk is full."""
        self._largest_file = size

    def _limited(self) -> None:
        if self._largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._largest_file, self._largest_file))

    def _listening(self) -> bool:
        """Whether it has reported its port."""
        found = re.search(r"listening on https?://127\.0\.0\.1:(\d+)/", self.errors.read_text())
        self._check_running()
        self.port = int(found[1]) if found else 0
        return bool(self.port)

    def _check_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, (self._process.returncode, self.errors.read_text())

    def healthy(self) -> bool:
        """Whether it serves."""
        self._check_running()
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/-/healthy").status_code == 200
        return False

    def memory_mib(self) -> float:
        """Its resident memory, 0 when it is gone."""
        if self._process is not None:
            with suppress(OSError):
                pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
                return pages * resource.getpagesize() / 2**20
        return 0.0

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def post(self, *alerts: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
        """One delivery."""
        body = msgspec.json.encode({"version": "4", "status": "firing", "alerts": alerts})
        return httpx.post(f"{self.url}/webhook", content=body, headers=headers, timeout=30)

    def count(self, name: str) -> float:
        """A number of its page, 0 where it is not on it."""
        page = httpx.get(f"{self.url}/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"rankscope_receiver_{name}"))


def until(question: Any) -> Any:
    """Its answer, when that is true."""
    patience = time.monotonic() + PATIENCE_S
    while not (answer := question()):
        assert time.monotonic() < patience, f"still {answer!r}"
        time.sleep(0.05)
    return answer


def straggler(run_id: str, **labels: str) -> dict[str, Any]:
    """An alert as Prometheus' rule makes it."""
    known = {"alertname": "TrainingStraggler", "severity": "warning", "run_id": run_id, "rank": "1"}
    return {
        "status": "firing",
        "labels": known | labels,
        "annotations": {"summary": "Rank 1 makes the others wait."},
        "startsAt": "2026-01-01T00:00:00Z",
    }
