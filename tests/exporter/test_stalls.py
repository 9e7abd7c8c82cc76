"""What hangs does not stop the exporter: a collector, whose last result becomes stale, and a reader of the log."""

from __future__ import annotations

import fcntl
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.full_pipe import SMALLEST_PIPE, fill_pipe
from tests.waiting import wait_until

from rankscope.exporter.loop import CollectorLoop


@pytest.mark.slow
def test_a_slow_collector_stays_fresh_and_one_that_hangs_does_not() -> None:
    # given a collector whose passes take many intervals, and a third pass that never ends
    passes = threading.Semaphore(0)
    entered = threading.Semaphore(0)
    release = threading.Event()

    def collect() -> str:
        entered.release()
        if not passes.acquire(blocking=False):
            release.wait(60)  # hangs until the test is over
            return "late"
        release.wait(0.4)
        return "reading"

    passes.release()
    passes.release()
    loop = CollectorLoop("gpu", collect, interval_s=0.02)
    loop.start()
    try:
        assert loop.wait_for_first_pass(60)
        # then the last result stays fresh during the next slow pass
        entered.acquire()
        entered.acquire()
        while not entered.acquire(blocking=False):
            assert loop.latest().fresh
        # and it becomes stale while the third pass hangs, with the reason
        while loop.latest().fresh:
            release.wait(0.01)
        assert "does not end" in str(loop.latest().reason)
    finally:
        release.set()
        loop.stop(60)


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
