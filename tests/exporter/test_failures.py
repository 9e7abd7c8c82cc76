"""What fails or hangs costs itself only: the driver of the real exporter, a collector, a reader of the log."""

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

import pytest
from tests.command_line import Cli
from tests.exporter.conftest import IMPATIENT, WITHOUT_FIRST_SAMPLE, StartExporter
from tests.exporter.fake_driver import FakeDriver, uuid_of
from tests.full_pipe import SMALLEST_PIPE, fill_pipe
from tests.waiting import wait_until

from rankscope.exporter.loop import CollectorLoop

pytestmark = pytest.mark.slow  # each starts real processes, or waits

FIRST, SECOND = uuid_of(0), uuid_of(1)


def test_values_follow_the_driver_and_are_absent_for_a_lost_gpu(start_exporter: StartExporter, fake_nvml: FakeDriver) -> None:
    fake_nvml.slow("nvmlDeviceGetTemperature", 50)
    exporter = start_exporter(env=fake_nvml.env, prelude=IMPATIENT)
    assert exporter.values("gpu_power_watts", uuid=SECOND) == [251.25]
    assert exporter.values("gpu_temperature_celsius") == [40.0, 41.0]

    fake_nvml.change(1, {"power": 99000})
    exporter.wait_until(lambda: exporter.values("gpu_power_watts", uuid=SECOND) == [99.0])
    assert exporter.values("gpu_power_watts", uuid=FIRST) == [251.25]

    fake_nvml.lose(0)
    exporter.wait_until(lambda: exporter.values("gpu_up", uuid=FIRST) == [0.0])
    assert exporter.values("gpu_temperature_celsius", uuid=FIRST) == []
    assert exporter.values("gpu_info", uuid=FIRST, index="0") == [1.0]
    assert exporter.values("gpu_up", uuid=SECOND) == [1.0]
    assert exporter.values("gpu_temperature_celsius", uuid=SECOND) == [41.0]
    assert exporter.values("rankscope_exporter_collector_success", collector="gpu") == [1.0]

    # ... and the exporter recovers without a restart
    fake_nvml.heal()
    exporter.wait_until(lambda: exporter.values("gpu_temperature_celsius", uuid=FIRST) == [40.0])

    # a GPU that is lost in the middle of a pass shows no half sample
    fake_nvml.fail("nvmlDeviceGetPowerUsage", 15, gpu=0)
    exporter.wait_until(lambda: exporter.values("gpu_up", uuid=FIRST) == [0.0])
    assert exporter.values("gpu_temperature_celsius", uuid=FIRST) == []


def test_hung_call_affects_only_one_gpu(start_exporter: StartExporter, fake_nvml: FakeDriver) -> None:
    exporter = start_exporter("--call-timeout", "0.5", env=fake_nvml.env, prelude=IMPATIENT)
    assert exporter.get("/-/ready").status == 200

    fake_nvml.hang("nvmlDeviceGetPowerUsage", gpu=1, hold_lock=True)

    exporter.wait_until(
        lambda: exporter.values("gpu_down_info", uuid=SECOND, reason="hung", call="nvmlDeviceGetPowerUsage") == [1.0]
    )
    assert exporter.values("gpu_temperature_celsius", uuid=SECOND) == []
    assert exporter.values("gpu_up", uuid=SECOND) == [0.0]
    assert exporter.values("gpu_info", uuid=SECOND) == [1.0]
    assert exporter.values("gpu_temperature_celsius", uuid=FIRST) == [40.0]
    assert exporter.values("gpu_up", uuid=FIRST) == [1.0]
    assert exporter.get("/-/healthy").status == 200
    assert "nvmlDeviceGetPowerUsage" in exporter.get("/-/ready").text

    # when the driver recovers, so does the page
    fake_nvml.heal()
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 1.0])
    exporter.wait_until(lambda: exporter.get("/-/ready").status == 200)


def test_hung_driver_does_not_block_exporter_shutdown(start_exporter: StartExporter, fake_nvml: FakeDriver) -> None:
    fake_nvml.hang("nvmlInitWithFlags")
    exporter = start_exporter(env=fake_nvml.env, prelude=WITHOUT_FIRST_SAMPLE)
    assert exporter.get("/-/healthy").status == 200

    assert exporter.stop(signal.SIGTERM) == 0


def test_signal_before_the_first_sample_ends_the_exporter(fake_nvml: FakeDriver, tmp_path: Path) -> None:
    fake_nvml.hang("nvmlInitWithFlags")
    command = [sys.executable, "-m", "rankscope", "exporter", "--listen", "127.0.0.1:0", "--spool", str(tmp_path / "spool")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **fake_nvml.env})
    try:
        # given a process that waits for its driver: it creates the spool just before
        wait_until((tmp_path / "spool").exists, process=process)

        process.send_signal(signal.SIGTERM)

        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


def test_exporter_stays_up_without_a_driver(start_exporter: StartExporter, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")

    exporter = start_exporter(env={"LD_LIBRARY_PATH": str(tmp_path)})

    assert exporter.get("/-/healthy").status == 200
    assert exporter.get("/-/ready").status == 503
    assert exporter.values("rankscope_exporter_collector_success", collector="gpu") == [0.0]
    assert exporter.values("rankscope_exporter_collector_success", collector="spool") == [1.0]
    assert exporter.values("gpu_up") == []
    assert "library_not_found" in exporter.stderr


@pytest.mark.parametrize("shadow", ["package", pytest.param("old", marks=pytest.mark.full)])
def test_unofficial_pynvml_package_is_named_in_the_error(cli_process: Cli, tmp_path: Path, shadow: str) -> None:
    if shadow == "package":
        (tmp_path / "pynvml").mkdir()
        (tmp_path / "pynvml" / "__init__.py").write_text("nvmlMemory_v2 = 1\n")
    else:
        (tmp_path / "pynvml.py").write_text("class NVMLError(Exception): ...\n")

    completed = cli_process("exporter", "--once", "--spool", tmp_path / "spool", env={"PYTHONPATH": str(tmp_path)})

    assert completed.returncode == 4
    assert "pip uninstall -y pynvml" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_slow_collector_stays_fresh_and_hung_collector_becomes_stale() -> None:
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


def test_full_log_pipe_does_not_block_the_exporter(fake_nvml: FakeDriver, tmp_path: Path) -> None:
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
            assert f'gpu_up{{uuid="{FIRST}"}} 1' in _get(port, "/metrics")[1]
            exporter.send_signal(signal.SIGTERM)
            assert exporter.wait(120) == 0
        finally:
            exporter.kill()
            os.close(reader)
            os.close(writer)
