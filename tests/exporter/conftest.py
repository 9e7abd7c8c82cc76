"""The real exporter as a process, and a fake driver library whose answers a test sets."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.exporter.fake_driver import FakeDriver, build_library, gpu_state
from tests.waiting import wait_until

SeriesKey = tuple[str, frozenset[tuple[str, str]]]
StartExporter = Callable[..., "RunningExporter"]

DEADLINE_S = 120  # generous for a busy machine; its purpose is to end a hang

# Python to run before the exporter: shorter retry intervals ...
IMPATIENT = (
    "import functools; from rankscope.exporter import assembly;"
    " assembly.FleetTimeouts = functools.partial(assembly.FleetTimeouts, retry_s=(0.2,), survey_s=0.5, survey_retry_s=(0.2,))"
)
# ... and listen while a driver hangs. Not for a healthy driver, whose first values a test expects at once.
WITHOUT_FIRST_SAMPLE = "from rankscope.exporter import serving; serving._FIRST_SAMPLE_S = 0.2"


@pytest.fixture(scope="session")
def fake_nvml_library() -> Path:
    return build_library()


@pytest.fixture
def fake_nvml(fake_nvml_library: Path, tmp_path: Path) -> FakeDriver:
    """Fake driver with two healthy GPUs."""
    return FakeDriver(tmp_path / "driver", fake_nvml_library, [gpu_state(0), gpu_state(1)])


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class RunningExporter:
    """One ``rankscope exporter`` process on a port that it chose."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.process = process
        self._log = log
        listens = re.compile(r"listening on (https?)://(\S+):(\d+)/metrics")
        match = wait_until(lambda: listens.search(self.stderr), process=process, details=lambda: self.stderr)
        self.tls, self.host, self.port = match[1] == "https", match[2].strip("[]"), int(match[3])

    @property
    def stderr(self) -> str:
        """Everything that the process has written there so far: a file, not a pipe, of which a test may not have read the end."""
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode()

    def connect(self, context: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        """Return a connection; with TLS it verifies no certificate unless ``context`` does."""
        if not self.tls:
            return http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE_S)
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(self.host, self.port, timeout=DEADLINE_S, context=context)

    def get(
        self, path: str, *, method: str = "GET", context: ssl.SSLContext | None = None, port: int | None = None, **headers: str
    ) -> Answer:
        connection = self.connect(context)
        connection.port = port or self.port
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        finally:
            connection.close()

    def page(self) -> dict[SeriesKey, float]:
        """Return all series of /metrics; fail if a series appears twice."""
        answer = self.get("/metrics")
        assert answer.status == 200
        series: dict[SeriesKey, float] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in series, key
                series[key] = sample.value
        return series

    def values(self, metric: str, /, **labels: str) -> list[float]:
        """Return the values of the series of a metric that have at least these labels."""
        wanted = set(labels.items())
        return [value for (name, have), value in self.page().items() if name == metric and wanted <= have]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, process=self.process, details=self._details)

    def _details(self) -> str:
        return self.stderr if self.process.poll() is not None else f"{self.stderr}\n{self.get('/metrics').text}"

    def stop(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        status = self.process.wait(DEADLINE_S)
        self.close()
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def exporters(folder: Path) -> Iterator[StartExporter]:
    """Yield ``start("--simulate", "2", env=…)``, which runs the real command in this folder until the context ends.

    ``prelude`` is Python to run first, in the same process.
    """
    with contextlib.ExitStack() as stack:

        def start(*args: str | Path, env: Mapping[str, str] | None = None, prelude: str | None = None) -> RunningExporter:
            defaults: list[str | Path] = [] if "--listen" in args else ["--listen", "127.0.0.1:0"]
            defaults += ["--interval", "0.5", "--host", "node1", "--spool", folder / "spool"]
            defaults += ["--state-dir", folder / "state", "--control.socket", folder / "control.sock"]
            launch = ["-m", "rankscope"] if prelude is None else ["-c", f"{prelude}; from rankscope.cli.main import main; main()"]
            command = [sys.executable, *launch, "exporter", *map(str, [*defaults, *args])]
            log = stack.enter_context(tempfile.TemporaryFile())
            process = stack.enter_context(subprocess.Popen(command, stderr=log, env={**os.environ, **(env or {})}))
            stack.callback(process.kill)
            exporter = RunningExporter(process, log)
            stack.callback(exporter.close)
            return exporter

        yield start


@pytest.fixture
def start_exporter(tmp_path: Path) -> Iterator[StartExporter]:
    """Function ``start_exporter("--simulate", "2", env=…)`` that runs the real command until the test ends."""
    with exporters(tmp_path) as start:
        yield start
