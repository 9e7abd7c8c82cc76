"""Errors that end the GPU's process, a collector, or a metric; Xid errors; and a driver that is unloaded and reloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state
from tests.exporter.nvml.asked_gpu import AskedGpu, DownError, asking, opened, sample_of


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path, build_library(), [h100_state(0), h100_state(1)])


def why(gpu_process: AskedGpu, step: str) -> tuple[str, str]:
    with pytest.raises(DownError) as caught:
        getattr(gpu_process, step)()
    return caught.value.reason, str(caught.value)


def test_a_gpu_lost_in_the_middle_of_a_pass_gives_no_half_sample(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        gpu_process.sample()
        fake.fail("nvmlDeviceGetPowerUsage", 15, gpu=0)

        reason, text = why(gpu_process, "sample")

    assert reason == "lost"
    assert text == "nvmlDeviceGetPowerUsage: gpu_is_lost"
    assert gpu_process.marks[-2:] == ["nvmlDeviceGetPowerUsage", "nvmlEventSetWait_v2"]


@pytest.mark.parametrize(
    ("call", "code", "reason"),
    [
        ("nvmlDeviceGetFieldValues", 16, "lost"),
        ("nvmlDeviceGetUUID", 1, "no_driver"),
        ("nvmlGpmMetricsGet", 15, "lost"),
        ("nvmlEventSetWait_v2", 15, "lost"),
        ("nvmlDeviceGetNvLinkState", 15, "lost"),
        ("nvmlDeviceGetMemoryInfo_v2", 18, "library_mismatch"),
    ],
)
def test_codes_that_end_everything_do_so_wherever_they_come_from(fake: FakeDriver, call: str, code: int, reason: str) -> None:
    with asking(fake) as gpu_process:
        if call == "nvmlDeviceGetUUID":
            fake.fail(call, code)
            assert why(gpu_process, "open")[0] == reason
        else:
            gpu_process.open()
            fake.fail(call, code)
            assert why(gpu_process, "sample")[0] == reason


def test_a_lost_gpu_says_so_in_a_field_too(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        fake.change(0, {"field.82": "err:15"})

        assert why(gpu_process, "sample") == ("lost", "nvmlDeviceGetFieldValues(82): gpu_is_lost")


def test_a_lost_gpu_says_so_between_two_samples(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        gpu_process.sample()
        # GPM takes no second sample within a tenth of a second.
        fake.lose(0)
        fake.slow("nvmlDeviceGetTemperature", 100)

        assert why(gpu_process, "sample")[0] == "lost"


@pytest.mark.parametrize(
    ("call", "code", "reason"),
    [
        ("nvmlInitWithFlags", 9, "no_driver"),
        ("nvmlInitWithFlags", 18, "library_mismatch"),
        ("nvmlInitWithFlags", 999, "nvml_error"),
        ("nvmlDeviceGetHandleByPciBusId_v2", 6, "missing"),
        ("nvmlDeviceGetHandleByPciBusId_v2", 15, "lost"),
        ("nvmlDeviceGetHandleByPciBusId_v2", 4, "nvml_error"),
        ("nvmlDeviceGetName", 999, "nvml_error"),
    ],
)
def test_why_a_gpu_cannot_be_opened(fake: FakeDriver, call: str, code: int, reason: str) -> None:
    fake.fail(call, code)
    with asking(fake) as gpu_process:
        assert why(gpu_process, "open")[0] == reason

        # The same process can retry.
        fake.heal()
        assert gpu_process.open().index == 0


def test_a_version_mismatch_is_named(fake: FakeDriver) -> None:
    fake.fail("nvmlInitWithFlags", 18)
    with asking(fake) as gpu_process:
        assert "lib_rm_version_mismatch" in why(gpu_process, "open")[1]


def test_without_the_library_there_is_no_driver(fake: FakeDriver, tmp_path: Path) -> None:
    fake.library = tmp_path / "empty" / "libnvidia-ml.so.1"
    with asking(fake) as gpu_process:
        reason, text = why(gpu_process, "open")

    assert reason == "no_driver"
    assert "library_not_found" in text


def test_a_driver_that_is_reloaded_ends_the_session(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        gpu_process.sample()
        fake.reload("999.1")
        assert why(gpu_process, "sample")[0] == "no_driver"
        gpu_process.close()

        gpu_process.open()
        assert gpu_process.sample().value("gpu_power_watts") == 251.25


def test_a_driver_that_vanished(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        fake.vanish()
        assert why(gpu_process, "sample")[0] == "no_driver"
        gpu_process.close()
        assert why(gpu_process, "open")[0] == "no_driver"


def test_an_unknown_error_costs_that_metric_and_is_told_as_the_collectors(fake: FakeDriver) -> None:
    fake.fail("nvmlDeviceGetPowerUsage", 999, gpu=0)

    sample = sample_of(fake)

    assert sample.absent["gpu_power_watts",] == "unknown"
    assert sample.errors == {"power": "gpu_power_watts: unknown"}
    assert sample.value("gpu_power_limit_watts") == 700


def test_a_code_newer_than_the_table_is_told_by_its_number(fake: FakeDriver) -> None:
    fake.fail("nvmlDeviceGetPowerUsage", 345, gpu=0)

    assert sample_of(fake).absent["gpu_power_watts",] == "error_345"


def test_permission_denied_is_a_reason_and_no_error(fake: FakeDriver) -> None:
    fake.fail("nvmlDeviceGetPowerUsage", 4, gpu=0)

    sample = sample_of(fake)

    assert sample.absent["gpu_power_watts",] == "no_permission"
    assert sample.errors == {}


def test_a_topic_that_fails_costs_itself_and_not_half_of_itself(fake: FakeDriver) -> None:
    fake.change(0, {"fans": 2, "fan.0": 30, "fan.1": "err:999"})

    sample = sample_of(fake)

    assert sample.all("gpu_fan_speed_ratio") == {}
    assert sample.absent["gpu_fan_speed_ratio",] == "unknown"
    assert sample.errors == {"fan": "Unknown Error (unknown)"}


def test_all_fields_fail_when_their_call_does(fake: FakeDriver) -> None:
    fake.fail("nvmlDeviceGetFieldValues", 3)

    sample = sample_of(fake)

    assert sample.absent["gpu_throttle_seconds_total",] == "not_supported"
    assert sample.absent["gpu_nvlink_transmit_bytes_total",] == "not_supported"
    assert sample.absent["gpu_recovery_action",] == "not_supported"
    assert sample.value("gpu_temperature_celsius") == 40


def test_a_failure_that_passes_is_forgotten_at_once(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        fake.fail("nvmlDeviceGetMaxClockInfo", 999)
        assert gpu_process.sample().errors == {"clocks": "gpu_clock_max_hertz: unknown"}
        fake.heal()

        assert gpu_process.sample().value("gpu_clock_max_hertz", clock="sm") == 1.98e9


def test_xid_errors_since_somebody_listens_each_once_and_in_order(fake: FakeDriver) -> None:
    fake.xid(0, 13)
    with opened(fake) as gpu_process:
        assert gpu_process.sample().xids == []
        fake.xid(0, 79, 48, 48)
        fake.xid(1, 31)
        assert gpu_process.sample().xids == [79, 48, 48]
        assert gpu_process.sample().xids == []
        fake.xid(0, 94)
        assert gpu_process.sample().xids == [94]


def test_a_burst_of_xid_errors_is_not_lost(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        gpu_process.sample()
        fake.xid(0, *[31] * 600)
        passes = [gpu_process.sample().xids for _ in range(4)]

    assert sum(len(xids) for xids in passes) == 600
    assert passes[-1] == []


def test_nobody_listening_is_an_error_of_the_collector(fake: FakeDriver) -> None:
    fake.change(0, {"no_events": 1})

    sample = sample_of(fake)

    assert sample.errors.keys() == {"xid"}
    assert "not_supported" in sample.errors["xid"]
    assert fake.counts()["nvmlEventSetFree"] == fake.counts()["nvmlEventSetCreate"]
