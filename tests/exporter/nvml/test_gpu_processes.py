"""Processes on a GPU, and each one's share of the SMs for the tenants of a shared GPU."""

from __future__ import annotations

import os
import time
from ctypes import sizeof
from pathlib import Path

import pytest
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state
from tests.exporter.nvml.gpu_process import Sample, opened, sample_of

from rankscope.exporter.nvml import processes
from rankscope.exporter.nvml.gpu import load_nvml

JOBS, PROCESS = frozenset({"gpu", "jobs"}), frozenset({"gpu", "process"})
CALL = "nvmlDeviceGetProcessUtilization"


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    processes = {f"process.{index}": f"compute {501 + index} {1000 * (index + 1)} - -" for index in range(3)}
    utilization = {"process_util.0": "501 25 0 0 0", "process_util.1": "502 50 0 0 0"}
    return FakeDriver(tmp_path, build_library(), [h100_state(0) | processes | utilization])


def shares(fake: FakeDriver) -> tuple[dict[int, float | None], dict[str, str]]:
    sample = sample_of(fake, 0, JOBS)
    return shares_in(sample), sample.errors


def shares_in(sample: Sample) -> dict[int, float | None]:
    return {process.pid: process.sm_ratio for process in sample.processes or ()}


def test_process_without_a_sample_has_zero_share(fake: FakeDriver) -> None:
    assert shares(fake) == ({501: 0.25, 502: 0.5, 503: 0.0}, {})

    del fake.gpus[0]["process_util.0"], fake.gpus[0]["process_util.1"]
    fake.write()
    assert shares(fake) == ({501: 0.0, 502: 0.0, 503: 0.0}, {})


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_processes_are_listed_even_without_shares(fake: FakeDriver, code: int) -> None:
    fake.fail(CALL, code)

    assert shares(fake) == ({501: None, 502: None, 503: None}, {})


@pytest.mark.parametrize("count", [2**32 - 1, 2**31, 10**6])
def test_impossible_process_count_is_rejected(fake: FakeDriver, count: int) -> None:
    fake.change(0, {"process_util_count": count})
    assert shares(fake) == ({501: None, 502: None, 503: None}, {})

    fake.change(0, {"process_count": count})
    sample = sample_of(fake, 0, JOBS)
    assert sample.processes is None
    assert sample.raw.readings == ()


def test_struct_layouts_match_nvidia_ml_py() -> None:
    pynvml = load_nvml()
    sample, process = pynvml.c_nvmlProcessUtilizationSample_t, pynvml.c_nvmlProcessInfo_v2_t
    assert (processes._UTILIZATION.size, processes._PROCESS.size) == (sizeof(sample), sizeof(process))
    memory = bytearray(sizeof(sample))
    written = sample.from_buffer(memory)
    written.pid, written.timeStamp, written.smUtil, written.memUtil = 7, 2**40, 93, 5
    assert processes._UTILIZATION.unpack(memory) == (7, 2**40, 93)


def test_sample_from_the_future_hides_no_later_sample(fake: FakeDriver) -> None:
    """As after the wall clock was set back, or of a driver that returns a number with all bits set."""
    now_us = time.time_ns() // 1000
    stamps_us = {501: now_us + 3600 * 10**6, 502: 2**64 - 1}
    fake.change(0, {f"process_util.{index}": f"{pid} 25 0 0 0 {us}" for index, (pid, us) in enumerate(stamps_us.items())})
    fake.change(0, {"process_util.2": "503 75 0 0 0"})

    with opened(fake, 0, PROCESS) as gpu_process:
        assert shares_in(gpu_process.sample()) == {501: 0, 502: 0, 503: 0.75}
        fake.change(0, {"process_util.0": "501 50 0 0 0"})
        assert shares_in(gpu_process.sample()) == {501: 0.5, 502: 0, 503: 0.75}


def test_failure_to_read_shares_is_an_error_of_the_process_collector(fake: FakeDriver) -> None:
    fake.fail(CALL, 999)

    sample = sample_of(fake, 0, PROCESS)

    assert sample.absent["gpu_process_sm_utilization_ratio",] == "unknown"
    assert sample.errors == {"process": "gpu_process_sm_utilization_ratio: unknown"}
    assert len(sample.all("gpu_process_memory_used_bytes")) == 3


def test_shares_are_read_only_with_the_process_list(fake: FakeDriver) -> None:
    with opened(fake, 0, JOBS) as gpu_process:
        gpu_process.sample()
        assert CALL in gpu_process.marks
        gpu_process.sample()
        assert CALL not in gpu_process.marks


def test_shares_of_an_idle_gpu_are_not_read(fake: FakeDriver) -> None:
    for index in range(3):
        del fake.gpus[0][f"process.{index}"]
    fake.write()

    with opened(fake, 0, JOBS) as gpu_process:
        gpu_process.sample()
        assert CALL not in gpu_process.marks


def test_every_process_is_listed_once(fake: FakeDriver) -> None:
    fake.change(
        0,
        {
            "process.0": "compute 501 1000 - -",
            "process.1": "graphics 501 1000 - -",
            "process.2": "graphics 502 - - -",
            "process.3": "mps 503 2000 - -",
        }
        | {f"process.{4 + other}": f"compute {1000 + other} 1 - -" for other in range(100)},
    )

    processes = sample_of(fake).processes or ()

    assert [(process.pid, process.kind, process.used_bytes) for process in processes if process.pid < 1000] == [
        (501, "compute", 1000),
        (503, "mps", 2000),
        (502, "graphics", None),
    ]
    assert len(processes) == 103


def test_gpu_without_processes_has_an_empty_table(fake: FakeDriver) -> None:
    # nvidia-ml-py raises the error "SUCCESS" if no process has a utilisation.
    for name in [name for name in fake.gpus[0] if name.startswith("process")]:
        del fake.gpus[0][name]
    fake.write()

    sample = sample_of(fake, 0, PROCESS)

    assert sample.processes == ()
    assert sample.errors == {}
    assert sample.absent == {}


def test_process_name_is_the_kernel_comm(fake: FakeDriver) -> None:
    fake.change(0, {"process.0": f"compute {os.getpid()} 1000 - -"})

    sample = sample_of(fake, 0, PROCESS)

    name = Path("/proc/self/comm").read_text().strip()
    assert (str(os.getpid()), name) in sample.all("gpu_process_memory_used_bytes")
