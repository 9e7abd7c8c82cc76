"""A receiver as a separate process, a target that listens, and senders that retry while the receiver is killed."""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
from tests.local_http import answering, respond
from tests.waiting import wait_until

PATIENCE_S = 180.0
TOKEN = "a token of twenty-four b"
JSON = {"Content-Type": "application/json"}
CONFIG = """
[[target]]
name = "chat"
url = "{url}"
"""


class ListeningTarget:
    """A webhook target that accepts every message and keeps its ids and alerts."""

    def __init__(self) -> None:
        self.url = ""
        self.alerts: list[dict[str, Any]] = []
        self.alert_ids: list[str] = []
        """``webhook-id`` of the message that brought each of ``alerts``."""
        self._lock = threading.Lock()

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Accept a message and answer 200."""
        payload = msgspec.json.decode(body)
        with self._lock:
            self.alert_ids += [request.headers["webhook-id"]] * len(payload["alerts"])
            self.alerts += payload["alerts"]
        respond(request, 200)


@contextmanager
def listening_target() -> Iterator[ListeningTarget]:
    """Yield a target that listens."""
    target = ListeningTarget()
    with answering(target.answer) as target.url:
        yield target


class ReceiverProcess:
    """``rankscope alerts serve``, with one state folder, and the port that it chose at the first start.

    As a context manager it is started on entry and killed on exit. ``settings`` are Python statements that run before it. A
    configuration with targets that names no credentials gets a token, which ``headers`` contains.
    """

    def __init__(self, folder: Path, config: str, *arguments: str, settings: str = "") -> None:
        self.folder = folder
        self.port = 0
        self.launch = ["-c", f"{settings}\nfrom rankscope.cli.main import main\nmain()"] if settings else ["-m", "rankscope"]
        self.errors = folder / "receiver.err"
        self.shown = folder / "receiver.out"
        self.headers = dict(JSON)
        self.configure(config)
        self.arguments = ["--config", str(folder / "alerts.toml"), "--state", str(folder / "state"), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._largest_file: int | None = None

    def configure(self, config: str) -> None:
        """Write the configuration, for the next start or reload."""
        if "[[target]]" in config and not re.search("bearer|basic|_secrets", config):
            (self.folder / "sender.token").write_text(TOKEN)
            self.headers["Authorization"] = f"Bearer {TOKEN}"
            if "[receive]" not in config:
                config = f"[receive]\n{config}"
            config = config.replace("[receive]\n", '[receive]\nbearer = [{ file = "sender.token" }]\n', 1)
        (self.folder / "alerts.toml").write_text(config)

    @property
    def command(self) -> list[str]:
        """Command line of the receiver."""
        return [sys.executable, *self.launch, "alerts", "serve", "--listen", f"127.0.0.1:{self.port}", *self.arguments]

    @property
    def url(self) -> str:
        """Address of the receiver; its port is known once it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *, wait: bool = True) -> None:
        """Start the process and wait until it listens and, with ``wait``, is healthy."""
        with self.shown.open("ab") as out, self.errors.open("ab") as errors:
            self._process = subprocess.Popen(self.command, stdout=out, stderr=errors, preexec_fn=self._limited)  # noqa: PLW1509
        if not self.port:
            wait_until(self._listening)
        if wait:
            wait_until(self.healthy)

    def limit_files(self, size: int | None) -> None:
        """Limit the size of files from the next start on; to the receiver the disk then seems full."""
        self._largest_file = size

    def _limited(self) -> None:
        if self._largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._largest_file, self._largest_file))

    def _listening(self) -> bool:
        """Return whether the process has reported its port, and keep the port."""
        match = re.search(r"listening on https?://127\.0\.0\.1:(\d+)/", self.errors.read_text())
        self._check_running()
        self.port = int(match[1]) if match else 0
        return bool(self.port)

    def _check_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, (self._process.returncode, self.errors.read_text())

    def healthy(self) -> bool:
        """Return whether the receiver answers its health check with 200."""
        self._check_running()
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/-/healthy").status_code == 200
        return False

    def memory_mib(self) -> float:
        """Return the resident memory of the process in MiB, 0 if it has exited."""
        if self._process is not None:
            with suppress(OSError):
                pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
                return pages * resource.getpagesize() / 2**20
        return 0.0

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def post(self, *alerts: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
        """Post one delivery of ``alerts``."""
        body = msgspec.json.encode({"version": "4", "status": "firing", "alerts": alerts})
        return self.send(body, headers=headers)

    def send(self, body: bytes, *, headers: dict[str, str] | None = None) -> httpx.Response:
        """Post a body."""
        return httpx.post(f"{self.url}/webhook", content=body, headers=self.headers | (headers or {}), timeout=30)

    def deliveries(self) -> Any:
        """Return the listing of the last deliveries."""
        return httpx.get(f"{self.url}/deliveries", headers=self.headers, timeout=30).raise_for_status().json()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit status."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def count(self, name: str) -> float:
        """Return the sum of the series ``rankscope_receiver_{name}…`` of the metrics page, 0 without such series."""
        page = httpx.get(f"{self.url}/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"rankscope_receiver_{name}"))


def straggler(run_id: str, **labels: str) -> dict[str, Any]:
    """Return a straggler alert as the Prometheus rule sends it."""
    by_key = {"alertname": "TrainingStraggler", "severity": "warning", "run_id": run_id, "rank": "1"}
    return {
        "status": "firing",
        "labels": by_key | labels,
        "annotations": {"summary": "Rank 1 makes the others wait."},
        "startsAt": "2026-01-01T00:00:00Z",
    }


@dataclass(frozen=True, slots=True)
class Course:
    """Counts of one run of ``send_while_killed``."""

    acknowledged: int
    attempts: int
    kills: int
    ids_of_alerts: Counter[str]
    """Number of different message ids under which the target got each alert, by the alert's number."""
    seconds: float


def firing(number: int) -> dict[str, Any]:
    """Return an alert that differs from all others in its label ``number``."""
    return {"status": "firing", "labels": {"alertname": "GpuDown", "number": str(number)}, "startsAt": "2026-01-01T00:00:00Z"}


def send_while_killed(
    receiver: ReceiverProcess, target: ListeningTarget, *, deliveries: int, senders: int, kills: int, pause_s: Callable[[], float]
) -> Course:
    """Send deliveries in parallel while the receiver is killed; each is sent until acknowledged, and then once more."""
    began = time.monotonic()
    over = threading.Event()
    attempts = Counter[str]()

    def send(number: int) -> bool:
        # Like two redundant Alertmanagers: both send, and each retries until acknowledged.
        for _ in range(2):
            while not over.is_set():
                attempts["all"] += 1
                try:
                    if receiver.post(firing(number)).is_success:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        return True

    with ThreadPoolExecutor(senders) as pool:
        sent = [pool.submit(send, number) for number in range(deliveries)]
        try:
            killed = 0
            while killed < kills and not all(item.done() for item in sent):
                time.sleep(pause_s())
                receiver.kill()
                receiver.start(wait=random.random() < 0.7)
                killed += 1
            acknowledged = sum(item.result() for item in sent)
        finally:
            over.set()
    wait_until(receiver.healthy)
    wait_until(lambda: receiver.count("waiting") == 0)
    wait_until(lambda: {alert["labels"]["number"] for alert in target.alerts} >= {str(number) for number in range(deliveries)})
    # The alert that is sent last is forwarded after all others.
    receiver.post(firing(deliveries))
    wait_until(lambda: str(deliveries) in {alert["labels"]["number"] for alert in target.alerts})
    seen = {(alert_id, alert["labels"]["number"]) for alert_id, alert in zip(target.alert_ids, target.alerts, strict=True)}
    result = Counter(number for _, number in seen if number != str(deliveries))
    return Course(acknowledged, attempts["all"], killed, result, time.monotonic() - began)
