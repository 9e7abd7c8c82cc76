"""Activity: GPM intervals have no gaps, minima and maxima come from their parts, busy seconds count every driver sample."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state
from tests.exporter.nvml.gpu_process import AskedGpu, opened, sample_of

NOT_ADJACENT, TOO_CLOSE = "gpm pair not adjacent", "gpm pair too close"
GPM = frozenset({"gpu", "gpm", "pcie"})


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path, build_library(), [h100_state(0)])


def let_a_part_pass() -> None:
    """Sleep 0.11 s: GPM needs a tenth of a second between two samples."""
    time.sleep(0.11)


def one_pass(gpu_process: AskedGpu, parts: int = 1) -> None:
    for _ in range(parts):
        let_a_part_pass()
        gpu_process.sample_activity()


@pytest.mark.slow
def test_activity_counters_integrate_every_interval(fake: FakeDriver) -> None:
    fake.change(0, {"gpm.1": 100, "gpm.2": 40, "gpm.5": 25, "gpm.10": 0})
    with opened(fake, 0, GPM) as gpu_process:
        for _ in range(2):
            sample = gpu_process.sample()
            one_pass(gpu_process, parts=2)
        let_a_part_pass()
        sample = gpu_process.sample()

    # The graphics engine was always busy: its counter equals the measured time.
    seconds = sample.value("gpu_graphics_active_seconds_total")
    assert seconds > 0.1 * 5
    assert sample.value("gpu_sm_active_seconds_total") == pytest.approx(0.4 * seconds)
    assert sample.value("gpu_tensor_active_seconds_total") == pytest.approx(0.25 * seconds)
    assert sample.value("gpu_dram_active_seconds_total") == 0


def test_intervals_are_adjacent(fake: FakeDriver) -> None:
    with opened(fake, 0, GPM) as gpu_process:
        gpu_process.sample()
        for _ in range(3):
            let_a_part_pass()
            gpu_process.sample()

    counts = fake.counts()
    assert counts["nvmlGpmMetricsGet"] == 4
    assert NOT_ADJACENT not in counts
    assert TOO_CLOSE not in counts


def test_first_sample_has_activity(fake: FakeDriver) -> None:
    with opened(fake, 0, GPM) as gpu_process:
        sample = gpu_process.sample()

    assert sample.value("gpu_graphics_active_ratio") == 0.98


def test_minimum_and_maximum_cover_every_part_sample(fake: FakeDriver) -> None:
    fake.change(0, {"gpm.2": "50,10,90,30,70"})
    with opened(fake, 0, GPM) as gpu_process:
        first = gpu_process.sample()
        one_pass(gpu_process, parts=3)
        let_a_part_pass()
        second = gpu_process.sample()

    assert [first.value(f"gpu_sm_active_{which}ratio") for which in ("", "min_", "max_")] == [0.5, 0.5, 0.5]
    assert [second.value(f"gpu_sm_active_{which}ratio") for which in ("", "min_", "max_")] == [0.5, 0.1, 0.9]


def test_samples_keep_the_minimum_gpm_interval(fake: FakeDriver) -> None:
    with opened(fake, 0, GPM) as gpu_process:
        gpu_process.sample()
        again = [gpu_process.sample() for _ in range(5)]
        for _ in range(5):
            gpu_process.sample_activity()

    # The last values are published again.
    assert again[-1].value("gpu_graphics_active_ratio") == 0.98
    assert TOO_CLOSE not in fake.counts()


def test_failed_sample_leaves_no_gap_in_the_counters(fake: FakeDriver) -> None:
    fake.change(0, {"gpm.1": 100, "gpm.2": 50})
    with opened(fake, 0, GPM) as gpu_process:
        gpu_process.sample()
        fake.fail("nvmlGpmSampleGet", 999)
        let_a_part_pass()
        failed = gpu_process.sample()
        fake.heal()
        let_a_part_pass()
        sample = gpu_process.sample()

    assert failed.errors == {"gpm": "Unknown Error (unknown)"}
    assert failed.absent["gpu_sm_active_ratio",] == "unknown"
    assert sample.value("gpu_graphics_active_seconds_total") > 0.3
    assert sample.value("gpu_sm_active_seconds_total") == pytest.approx(0.5 * sample.value("gpu_graphics_active_seconds_total"))


def test_missing_gpm_metric_affects_no_other_metric(fake: FakeDriver) -> None:
    fake.change(0, {"gpm.5": "err:3", "gpm.12": "err:3"})
    with opened(fake, 0, GPM) as gpu_process:
        sample = gpu_process.sample()

    assert {key for key, reason in sample.absent.items() if reason == "not_supported"} >= {
        ("gpu_tensor_active_ratio",),
        ("gpu_tensor_active_max_ratio",),
        ("gpu_tensor_active_seconds_total",),
        ("gpu_pipe_active_ratio", "fp32"),
    }
    assert sample.value("gpu_sm_active_ratio") > 0
    assert sample.value("gpu_pipe_active_ratio", pipe="fp16") == 0.02
    assert sample.errors == {}


def test_samples_are_freed_at_the_end(fake: FakeDriver) -> None:
    with opened(fake, 0, GPM) as gpu_process:
        for _ in range(2):
            gpu_process.sample()
            one_pass(gpu_process, parts=2)
        gpu_process.close()

    counts = fake.counts()
    assert counts["nvmlGpmSampleFree"] == counts["nvmlGpmSampleAlloc"]
    assert counts["nvmlGpmSampleAlloc"] <= 5
    assert counts["nvmlShutdown"] == 1


def test_pcie_bytes_come_from_gpm_without_driver_counters(fake: FakeDriver) -> None:
    del fake.gpus[0]["field.197"]
    fake.change(0, {"gpm.1": 100, "gpm.20": 10})
    with opened(fake, 0, GPM) as gpu_process:
        gpu_process.sample()
        let_a_part_pass()
        sample = gpu_process.sample()

    seconds = sample.value("gpu_graphics_active_seconds_total")
    assert sample.value("gpu_pcie_transmit_bytes_total") == pytest.approx(10 * 2**20 * seconds)


def test_error_in_the_first_pass_does_not_select_the_pcie_source(fake: FakeDriver) -> None:
    counted = fake.gpus[0]["field.197"]
    fake.change(0, {"field.197": "err:999"})
    with opened(fake, 0, GPM) as gpu_process:
        first = gpu_process.sample()
        fake.change(0, {"field.197": counted})
        second = gpu_process.sample()

    assert first.absent["gpu_pcie_transmit_bytes_total",] == "unknown"
    assert second.value("gpu_pcie_transmit_bytes_total") == float(str(counted).split()[0])


def test_busy_seconds_count_every_sample_of_the_driver(fake: FakeDriver) -> None:
    fake.change(0, {"samples.1": "100,0", "samples_period_us": 50000})
    began = time.monotonic()
    with opened(fake, 0, frozenset({"gpu", "utilization"})) as gpu_process:
        first = gpu_process.sample()
        time.sleep(0.5)
        second = gpu_process.sample()
    elapsed = time.monotonic() - began

    assert first.value("gpu_busy_seconds_total") == 0
    # Half of the samples are 1, the others 0; each covers 50 ms.
    busy = second.value("gpu_busy_seconds_total")
    assert busy == pytest.approx(0.05 * round(busy / 0.05))
    assert 0.2 <= busy <= elapsed / 2 + 0.05
    assert second.value("gpu_utilization_min_ratio") == 0
    assert second.value("gpu_utilization_max_ratio") == 1


def test_clock_change_adds_no_busy_time(fake: FakeDriver) -> None:
    fake.change(0, {"samples.1": 100, "samples_period_us": 50000})
    with opened(fake, 0, frozenset({"gpu", "utilization"})) as gpu_process:
        gpu_process.sample()
        fake.change(0, {"samples_shift_us": 3600 * 1_000_000})
        gpu_process.sample()
        time.sleep(0.2)
        sample = gpu_process.sample()

    assert 0.1 < sample.value("gpu_busy_seconds_total") < 60


def test_bounds_are_kept_between_driver_samples(fake: FakeDriver) -> None:
    fake.change(0, {"samples.1": 70, "utilization": 70, "samples_period_us": 3_000_000_000})
    with opened(fake, 0, frozenset({"gpu", "utilization"})) as gpu_process:
        gpu_process.sample()
        sample = gpu_process.sample()

    assert sample.value("gpu_utilization_max_ratio") == 0.7
    assert sample.errors == {}


@pytest.mark.parametrize("gauge", [10, 90])
def test_utilization_extends_the_bounds(fake: FakeDriver, gauge: int) -> None:
    fake.change(0, {"samples.1": "40,60", "samples_period_us": 50000, "utilization": gauge})
    sample = sample_of(fake, 0, frozenset({"gpu", "utilization"}))

    low, high = (sample.value(f"gpu_utilization_{bound}_ratio") for bound in ("min", "max"))
    assert sample.value("gpu_utilization_ratio") == gauge / 100
    assert gauge / 100 in (low, high)
    assert low < high


_PASSES = """
import sys, time
from rankscope.exporter.nvml.gpu import NvmlGpu, load_nvml
from rankscope.exporter.nvml.calls import NvmlCalls
from rankscope.exporter.nvml.sample_pass import SamplePass
from rankscope.exporter.nvml.utilization import BusySecondsTopic
nvml = load_nvml()
nvml.nvmlInit()
ask = NvmlCalls(nvml, lambda name: None)
ask.handle = nvml.nvmlDeviceGetHandleByIndex(0)
busy = BusySecondsTopic()
for line in sys.stdin:
    at = SamplePass(ask, "", float(line))
    busy.collect(at)
    print(at.readings[-1].value, flush=True)
"""


@contextmanager
def busy_seconds_at(fake: FakeDriver) -> Iterator[Callable[[float], float]]:
    """Yield a function: it runs a pass at a monotonic time and returns the counter. The test moves the wall clock."""
    command = [sys.executable, "-c", _PASSES]
    with subprocess.Popen(
        command, env={**os.environ, **fake.env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def busy_at(now_s: float) -> float:
            print(now_s, file=stdin, flush=True)
            return float(stdout.readline())

        yield busy_at
        stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [100, 20, 1])
@pytest.mark.parametrize("interval_s", [1, 9, 15, 60])
def test_busy_counter_is_correct_for_every_interval_and_buffer(fake: FakeDriver, interval_s: int, kept: int) -> None:
    fake.gpus[0] |= {"samples.1": 93, "samples_kept": kept}
    with busy_seconds_at(fake) as busy_at:
        passes = 6
        for number in range(passes + 1):
            fake.change(0, {"samples_shift_us": number * interval_s * 1_000_000})
            busy = busy_at(100 + number * interval_s)

    # The machine's own clock also advances between passes, by the duration of the test.
    assert 0.93 * passes * interval_s - 0.1 <= busy <= 0.93 * (passes * interval_s + 5)


def test_samples_with_equal_timestamps_count_once(fake: FakeDriver) -> None:
    fake.gpus[0] |= {"samples.1": 93, "samples_kept": 2, "samples_in_pairs": 1}
    with busy_seconds_at(fake) as busy_at:
        for number in range(9):
            # An odd number of samples lies between two passes, so that at times both kept samples have one time.
            fake.change(0, {"samples_shift_us": number * 1_100_000})
            busy = busy_at(100 + number * 1.1)

    assert busy == pytest.approx(0.93 * 8 * 1.1, abs=0.5)


def test_uncovered_time_uses_the_mean_of_the_buffer(fake: FakeDriver) -> None:
    fake.gpus[0] |= {"samples.1": "100,0,0,0", "samples_kept": 40}
    with busy_seconds_at(fake) as busy_at:
        for number in range(5):
            fake.change(0, {"samples_shift_us": number * 30 * 1_000_000})
            busy = busy_at(100 + number * 30)

    assert busy == pytest.approx(0.25 * 4 * 30, rel=0.1)


def test_clock_set_back_pauses_the_counter_only_briefly(fake: FakeDriver) -> None:
    fake.change(0, {"samples.1": 100, "samples_period_us": 20000})
    with busy_seconds_at(fake) as busy_at:
        assert busy_at(100) == 0
        fake.change(0, {"samples_shift_us": 1_000_000})
        before = busy_at(101)
        assert before > 0

        fake.change(0, {"samples_shift_us": 2**64 - 3600 * 1_000_000})

        assert busy_at(102) == before
        assert busy_at(120) == pytest.approx(before + 19, abs=0.1)


def test_a_driver_without_a_new_sample_stops_the_counter(fake: FakeDriver) -> None:
    fake.change(0, {"samples.1": 100, "samples_period_us": 3_000_000_000})
    with busy_seconds_at(fake) as busy_at:
        assert [busy_at(100 + 60 * number) for number in range(4)] == [0, 0, 0, 0]
