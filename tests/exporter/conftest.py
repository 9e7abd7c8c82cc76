"""The real exporter as a process, and a driver library whose answers a test decides."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

FAKE_NVML_SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"
MIB = 2**20

SeriesKey = tuple[str, frozenset[tuple[str, str]]]


def _uuid(index: int) -> str:
    return f"GPU-{index}0000000-aaaa-bbbb-cccc-000000000000"


def gpu_state(index: int) -> dict[str, object]:
    """One healthy GPU in NVML's units: °C, bytes, percent, mW, mJ, MHz."""
    return {
        "uuid": _uuid(index),
        "name": "Test GPU",
        "serial": f"16500{index}",
        "bus": f"00000000:{0x1A + index:02X}:00.0",
        "temperature": 40 + index,
        "memory_temperature": 50 + index,
        "memory_total": 81559 * MIB,
        "memory_used": 1000 * MIB,
        "memory_free": 80000 * MIB,
        "memory_reserved": 559 * MIB,
        "utilization": 93,
        "memory_utilization": 41,
        "power": 251250,
        "power_limit": 700000,
        "energy": 123456789,
        "clock_graphics": 1700,
        "clock_sm": 1710,
        "clock_memory": 2619,
        "max_clock_graphics": 1980,
        "max_clock_sm": 1980,
        "max_clock_memory": 2619,
    }


@dataclass
class FakeNvml:
    """The state file of the fake driver; change ``gpus`` or ``calls`` and ``write``."""

    path: Path
    library: Path
    gpus: list[dict[str, object]]
    calls: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        lines = [f"count {len(self.gpus)}"]
        lines += [f"gpu{index}.{key} {value}" for index, gpu in enumerate(self.gpus) for key, value in gpu.items()]
        lines += [f"call.{name} {what}" for name, what in self.calls.items()]
        replacement = self.path.with_suffix(".new")
        replacement.write_text("\n".join(lines) + "\n")
        replacement.replace(self.path)

    @property
    def env(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_STATE": str(self.path)}


@pytest.fixture(scope="session")
def build_fake_nvml(require_program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``build_fake_nvml("-DWITHOUT_ENERGY")`` compiles the fake driver and returns the library."""

    def build(*flags: str) -> Path:
        library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
        command = [require_program("gcc"), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *flags]
        subprocess.run([*command, "-o", str(library), str(FAKE_NVML_SOURCE)], check=True)
        return library

    return build


@pytest.fixture(scope="session")
def fake_nvml_library(build_fake_nvml: Callable[..., Path]) -> Path:
    return build_fake_nvml()


@pytest.fixture
def fake_nvml(fake_nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """Two healthy GPUs."""
    fake = FakeNvml(tmp_path / "nvml-state", fake_nvml_library, [gpu_state(0), gpu_state(1)])
    fake.write()
    return fake


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class RunningExporter:
    """One ``rankscope exporter`` process on a port of its own choice."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.stderr = ""
        assert process.stderr is not None
        # Read without blocking for ever: a process that neither listens nor ends is a failure, not a hang of the tests.
        until = time.monotonic() + 30
        while not (match := re.search(r"listening on http://(\S+):(\d+)/metrics", self.stderr)):
            readable, _, _ = select.select([process.stderr], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(process.stderr.fileno(), 4096) if readable else b""
            assert piece, f"the exporter did not start: {self.stderr}"
            self.stderr += piece.decode()
        self.host, self.port = match[1].strip("[]"), int(match[2])
        self._reader = threading.Thread(target=self._read, args=(process.stderr.fileno(),), daemon=True)
        self._reader.start()

    def _read(self, fd: int) -> None:
        while piece := os.read(fd, 4096):
            self.stderr += piece.decode()

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        finally:
            connection.close()

    def page(self) -> dict[SeriesKey, float]:
        """All series of /metrics; a series that appears twice fails here."""
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
        """Values of the series of a metric that have these labels, among others."""
        wanted = set(labels.items())
        return [value for (name, have), value in self.page().items() if name == metric and wanted <= have]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not condition():
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < until, f"it did not come to that\n{self.stderr}\n{self.get('/metrics').text}"
            time.sleep(0.05)

    def stop(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        status = self.process.wait(20)
        self.close()
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        # Before its descriptor is closed: a reader that is late would read from whatever gets that number next.
        self._reader.join()


@pytest.fixture
def start_exporter(tmp_path: Path) -> Iterator[Callable[..., RunningExporter]]:
    """``start_exporter("--simulate", "2", env=…)`` runs the real command until the test ends.

    ``prelude`` is Python to run first, in the same process.
    """
    with contextlib.ExitStack() as stack:

        def start(*args: str | Path, env: Mapping[str, str] | None = None, prelude: str | None = None) -> RunningExporter:
            defaults = ["--listen", "127.0.0.1:0", "--interval", "0.5", "--host", "node1", "--spool", tmp_path / "spool"]
            launch = ["-m", "rankscope"] if prelude is None else ["-c", f"{prelude}; from rankscope.cli.main import main; main()"]
            command = [sys.executable, *launch, "exporter", *map(str, [*defaults, *args])]
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}))
            stack.callback(process.kill)
            exporter = RunningExporter(process)
            stack.callback(exporter.close)
            return exporter

        yield start
