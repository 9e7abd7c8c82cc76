"""A stalled reader of the log must not stop the exporter."""

from __future__ import annotations

import fcntl
import http.client
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.exporter.log_writer import NeverWaitingHandler

_SMALLEST_PIPE = 4096


def _fill(fd: int) -> None:
    """Fill the pipe, through a separate file description so that the other writers still block."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        for size in (_SMALLEST_PIPE, 1):
            try:
                while True:
                    os.write(own, b"x" * size)
            except BlockingIOError:
                continue
    finally:
        os.close(own)


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_full_pipe_behind_the_log_stops_nothing(fake_nvml: Any, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _SMALLEST_PIPE)
    command: list[str | Path] = [sys.executable, "-m", "rankscope", "exporter", "--listen", "127.0.0.1:0", "--interval", "0.2"]
    command += ["--spool", tmp_path / "spool", "--state-dir", tmp_path / "state", "--control.socket", tmp_path / "control.sock"]
    environment = {**os.environ, **fake_nvml.env}
    with subprocess.Popen([*map(str, command), "--call-timeout", "0.5"], stderr=writer, env=environment) as exporter:
        try:
            log = ""
            while not (listening := re.search(r"127\.0\.0\.1:(\d+)/metrics", log)):
                log += os.read(reader, _SMALLEST_PIPE).decode()
            port = int(listening[1])
            _until(lambda: _get(port, "/-/ready")[0] == 200)
            _fill(writer)

            fake_nvml.hang("nvmlDeviceGetPowerUsage", gpu=1)

            _until(lambda: 'reason="hung"' in _get(port, "/metrics")[1])
            status, why = _get(port, "/-/ready")
            assert (status, "nvmlDeviceGetPowerUsage did not return" in why) == (503, True)
            assert _get(port, "/-/healthy") == (200, "healthy\n")
            # ... nor the other GPU
            assert f'gpu_up{{uuid="{fake_nvml.gpus[0]["uuid"]}"}} 1' in _get(port, "/metrics")[1]
            exporter.send_signal(signal.SIGTERM)
            assert exporter.wait(120) == 0
        finally:
            exporter.kill()
            os.close(reader)
            os.close(writer)


def test_lines_that_nobody_takes_are_dropped_and_counted_when_it_flows_again() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _SMALLEST_PIPE)
    _fill(writer)
    handler = NeverWaitingHandler(writer, most_lines=3)
    for number in range(10):
        handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "line %d", (number,), None))

    text = ""
    while "dropped" not in text:
        text += os.read(reader, 65536).decode()

    lines = text.replace("x", "").splitlines()
    kept = [line for line in lines if re.fullmatch(r"line \d", line)]
    assert kept == [f"line {number}" for number in range(len(kept))]
    assert 3 <= len(kept) <= 4  # one may be in the writer when the queue fills
    (dropped,) = lines[len(kept) :]
    assert dropped.endswith(f": {10 - len(kept)}")
    handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "all is well", (), None))
    handler.flush()
    assert os.read(reader, 65536) == b"all is well\n"
    os.close(reader)
    os.close(writer)
