"""GPUs: the real exporter over the real nvidia-ml-py, and a fake driver library with planted failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.conftest import IMPATIENT, WITHOUT_FIRST_SAMPLE, RunningExporter
from tests.exporter.fake_driver import FakeDriver
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # each starts real processes

FIRST, SECOND = "GPU-00000000-aaaa-bbbb-cccc-000000000000", "GPU-10000000-aaaa-bbbb-cccc-000000000000"


def test_values_follow_the_driver_and_end_while_a_gpu_is_lost(
    start_exporter: Callable[..., RunningExporter], fake_nvml: FakeDriver
) -> None:
    fake_nvml.slow("nvmlDeviceGetTemperature", 50)
    exporter = start_exporter(env=fake_nvml.env, prelude=IMPATIENT)
    assert exporter.values("gpu_power_watts", uuid=SECOND) == [251.25]
    assert exporter.values("gpu_temperature_celsius") == [40.0, 41.0]

    fake_nvml.gpus[1]["power"] = 99000
    fake_nvml.write()
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


def test_a_call_that_hangs_costs_that_gpu_only(start_exporter: Callable[..., RunningExporter], fake_nvml: FakeDriver) -> None:
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


def test_a_hanging_driver_does_not_keep_the_exporter_from_ending(
    start_exporter: Callable[..., RunningExporter], fake_nvml: FakeDriver
) -> None:
    fake_nvml.hang("nvmlInitWithFlags")
    exporter = start_exporter(env=fake_nvml.env, prelude=WITHOUT_FIRST_SAMPLE)
    assert exporter.get("/-/healthy").status == 200

    assert exporter.stop(signal.SIGTERM) == 0


def test_a_signal_before_the_first_sample_ends_it_as_well(fake_nvml: FakeDriver, tmp_path: Path) -> None:
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


def test_without_a_driver_the_exporter_stays_up(start_exporter: Callable[..., RunningExporter], tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")

    exporter = start_exporter(env={"LD_LIBRARY_PATH": str(tmp_path)})

    assert exporter.get("/-/healthy").status == 200
    assert exporter.get("/-/ready").status == 503
    assert exporter.values("rankscope_exporter_collector_success", collector="gpu") == [0.0]
    assert exporter.values("rankscope_exporter_collector_success", collector="spool") == [1.0]
    assert exporter.values("gpu_up") == []
    assert "library_not_found" in exporter.stderr


@pytest.mark.parametrize("shadow", ["package", pytest.param("old", marks=pytest.mark.full)])
def test_the_unofficial_package_in_place_of_nvidia_ml_py_is_named(
    cli_process: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, shadow: str
) -> None:
    if shadow == "package":
        (tmp_path / "pynvml").mkdir()
        (tmp_path / "pynvml" / "__init__.py").write_text("nvmlMemory_v2 = 1\n")
    else:
        (tmp_path / "pynvml.py").write_text("class NVMLError(Exception): ...\n")

    completed = cli_process("exporter", "--once", "--spool", tmp_path / "spool", env={"PYTHONPATH": str(tmp_path)})

    assert completed.returncode == 4
    assert "pip uninstall -y pynvml" in completed.stderr
    assert "Traceback" not in completed.stderr
