"""A stalled reader of the log must not stop the exporter."""

from __future__ import annotations

import fcntl
import http.client
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.full_pipe import SMALLEST_PIPE, fill_pipe
from tests.waiting import wait_until


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.slow
def test_a_full_pipe_behind_the_log_stops_nothing(fake_nvml: Any, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    command: list[str | Path] = [sys.executable, "-m", "rankscope", "exporter", "--listen", "127.0.0.1:0", "--interval", "0.2"]
    command += ["--spool", tmp_path / "spool", "--state-dir", tmp_path / "state", "--control.socket", tmp_path / "control.sock"]
    environment = {**os.environ, **fake_nvml.env}
    with subprocess.Popen([*map(str, command), "--call-timeout", "0.5"], stderr=writer, env=environment) as exporter:
        try:
            log = ""
            while not (listening := re.search(r"127\.0\.0\.1:(\d+)/metrics", log)):
                log += os.read(reader, SMALLEST_PIPE).decode()
            port = int(listening[1])
            wait_until(lambda: _get(port, "/-/ready")[0] == 200)
            fill_pipe(writer)

            fake_nvml.hang("nvmlDeviceGetPowerUsage", gpu=1)

            wait_until(lambda: 'reason="hung"' in _get(port, "/metrics")[1])
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
