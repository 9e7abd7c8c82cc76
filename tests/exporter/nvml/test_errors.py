"""Errors and impossible answers of the driver: what each ends or costs; Xid errors; and a driver that is reloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.fake_driver import ALL_LINKS, FakeDriver, State, a100_state, build_library, gb200_state, gpu_state, h100_state
from tests.exporter.nvml.gpu_process import ALL, AskedGpu, DownError, asking, opened, sample_of


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path, build_library(), [h100_state(0), h100_state(1)])


def why(gpu_process: AskedGpu, step: str) -> tuple[str, str]:
    with pytest.raises(DownError) as caught:
        getattr(gpu_process, step)()
    return caught.value.reason, str(caught.value)


def test_gpu_lost_during_a_pass_gives_no_partial_sample(fake: FakeDriver) -> None:
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
def test_fatal_codes_end_the_session_from_any_call(fake: FakeDriver, call: str, code: int, reason: str) -> None:
    with asking(fake) as gpu_process:
        if call == "nvmlDeviceGetUUID":
            fake.fail(call, code)
            assert why(gpu_process, "open")[0] == reason
        else:
            gpu_process.open()
            fake.fail(call, code)
            assert why(gpu_process, "sample")[0] == reason


def test_lost_gpu_is_detected_from_a_field_value(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        fake.change(0, {"field.82": "err:15"})

        assert why(gpu_process, "sample") == ("lost", "nvmlDeviceGetFieldValues(82): gpu_is_lost")


def test_lost_gpu_is_detected_between_gpm_samples(fake: FakeDriver) -> None:
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
def test_open_failure_has_a_reason_and_can_be_retried(fake: FakeDriver, call: str, code: int, reason: str) -> None:
    fake.fail(call, code)
    with asking(fake) as gpu_process:
        assert why(gpu_process, "open")[0] == reason

        # The same process can retry.
        fake.heal()
        assert gpu_process.open().index == 0


def test_library_version_mismatch_is_named_in_the_error(fake: FakeDriver) -> None:
    fake.fail("nvmlInitWithFlags", 18)
    with asking(fake) as gpu_process:
        assert "lib_rm_version_mismatch" in why(gpu_process, "open")[1]


def test_missing_library_is_reported_as_no_driver(fake: FakeDriver, tmp_path: Path) -> None:
    fake.library = tmp_path / "empty" / "libnvidia-ml.so.1"
    with asking(fake) as gpu_process:
        reason, text = why(gpu_process, "open")

    assert reason == "no_driver"
    assert "library_not_found" in text


def test_driver_reload_ends_the_session(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        gpu_process.sample()
        fake.reload("999.1")
        assert why(gpu_process, "sample")[0] == "no_driver"
        gpu_process.close()

        gpu_process.open()
        assert gpu_process.sample().value("gpu_power_watts") == 251.25


def test_unloaded_driver_is_reported_as_no_driver(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        fake.vanish()
        assert why(gpu_process, "sample")[0] == "no_driver"
        gpu_process.close()
        assert why(gpu_process, "open")[0] == "no_driver"


@pytest.mark.parametrize(
    ("status", "reason", "is_error"),
    # 345 is newer than the table
    [(999, "unknown", True), (345, "error_345", True), (4, "no_permission", False)],
)
def test_failed_call_makes_only_that_metric_absent(fake: FakeDriver, status: int, reason: str, *, is_error: bool) -> None:
    fake.fail("nvmlDeviceGetPowerUsage", status, gpu=0)

    sample = sample_of(fake)

    assert sample.absent["gpu_power_watts",] == reason
    assert sample.errors == ({"power": f"gpu_power_watts: {reason}"} if is_error else {})
    assert sample.value("gpu_power_limit_watts") == 700


def test_failed_topic_publishes_no_partial_readings(fake: FakeDriver) -> None:
    fake.change(0, {"fans": 2, "fan.0": 30, "fan.1": "err:999"})

    sample = sample_of(fake)

    assert sample.all("gpu_fan_speed_ratio") == {}
    assert sample.absent["gpu_fan_speed_ratio",] == "unknown"
    assert sample.errors == {"fan": "Unknown Error (unknown)"}


def test_failed_field_call_makes_every_field_absent(fake: FakeDriver) -> None:
    fake.fail("nvmlDeviceGetFieldValues", 3)

    sample = sample_of(fake)

    assert sample.absent["gpu_throttle_seconds_total",] == "not_supported"
    assert sample.absent["gpu_nvlink_transmit_bytes_total",] == "not_supported"
    assert sample.absent["gpu_recovery_action",] == "not_supported"
    assert sample.value("gpu_temperature_celsius") == 40


def test_temporary_failure_clears_in_the_next_sample(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        fake.fail("nvmlDeviceGetMaxClockInfo", 999)
        assert gpu_process.sample().errors == {"clocks": "gpu_clock_max_hertz: unknown"}
        fake.heal()

        assert gpu_process.sample().value("gpu_clock_max_hertz", clock="sm") == 1.98e9


def test_impossible_values_are_absent_as_implausible(tmp_path: Path) -> None:
    nonsense: dict[str, object] = {
        "memory_temperature": 255,
        "utilization": 400,
        "power": 4294967295,
        "gpm.2": 4000,
        "gpm.3": "nan",
        "clock_sm": 4294967295,
    }
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0) | nonsense])

    sample = sample_of(fake)

    implausible = {key for key, reason in sample.absent.items() if reason == "implausible"}
    assert implausible == {
        ("gpu_memory_temperature_celsius",),
        ("gpu_utilization_ratio",),
        ("gpu_power_watts",),
        ("gpu_sm_active_ratio",),
        ("gpu_sm_active_min_ratio",),
        ("gpu_sm_active_max_ratio",),
        ("gpu_sm_active_seconds_total",),
        ("gpu_sm_occupancy_ratio",),
        ("gpu_clock_hertz", "sm"),
    }
    assert sample.value("gpu_clock_hertz", clock="memory") == 2.619e9
    assert sample.errors == {}


ONES_32, ONES_64 = 2**32 - 1, 2**64 - 1
NOT_READ = {"uuid", "name", "serial", "bus", "vbios", "nvlinks", "samples.1"}
"""Keys of a state that are no number of a reading: identity, the number of links, and a list."""


def _all_ones(value: object) -> object:
    """Return a value of the state, or each number of a list, with all bits set in the type that NVML gives it."""
    words = str(value).split()
    if words[0].startswith("err:"):
        return value
    kind = words[1] if len(words) > 1 else ""
    return f"{ {'us': 2**16 - 1, 'ui': ONES_32, 'd': 'nan'}.get(kind, ONES_64) } {kind}".strip()


@pytest.mark.parametrize("state", [h100_state, a100_state, gb200_state, gpu_state])
def test_numbers_with_all_bits_set_are_not_published(tmp_path: Path, state: Callable[[int], State]) -> None:
    # given a driver that answers every question about numbers with all bits set
    healthy = state(0)
    broken = {key: value if key in NOT_READ or key.startswith("process") else _all_ones(value) for key, value in healthy.items()}
    fake = FakeDriver(tmp_path, build_library(), [broken | {"samples.1": f"{ONES_32}"}])

    sample = sample_of(fake, 0, ALL)

    # then nothing is published but what the states of the links say, which the driver answers
    assert sample.metrics <= {
        "gpu_nvlink_links",
        "gpu_nvlink_link_up",
        "gpu_process_memory_used_bytes",
        "gpu_process_sm_utilization_ratio",
    }
    assert "implausible" in sample.absent.values()
    assert sample.errors == {}


@pytest.mark.parametrize(
    ("key", "value", "metrics"),
    [
        ("margin", ONES_32, set()),  # the threshold less the temperature takes its place
        ("throttle", ONES_64, {"gpu_throttle_active"}),
        ("pcie_replays", ONES_32, {"gpu_pcie_replays_total"}),
        ("field.142", f"{ONES_32} ui", {"gpu_remapped_rows_total"}),
        ("field.143", f"{ONES_64} ull", {"gpu_remapped_rows_total"}),
        ("field.161@3", f"{ONES_64} ull", {"gpu_nvlink_errors_total"}),
        (f"field.138@{ALL_LINKS}", f"{ONES_64} ull", {"gpu_nvlink_transmit_bytes_total"}),
        ("field.173", "-1 si", {"gpu_pcie_errors_total"}),
        ("field.230", f"{ONES_32} ui", {"gpu_recovery_action"}),
        ("field.270", f"{2**16 - 1} us", {"gpu_throttle_seconds_total"}),
        ("remap.low", ONES_32, {"gpu_row_remap_banks"}),
        ("ecc.1.0.7", ONES_64, {"gpu_ecc_errors_total"}),
        ("fabric", ONES_32, {"gpu_fabric_state", "gpu_fabric_healthy"}),
        ("fabric_health", ONES_32, {"gpu_fabric_healthy"}),
        ("fans", ONES_32, {"gpu_fan_speed_ratio"}),
        ("fans", 10**6, {"gpu_fan_speed_ratio"}),
        ("retired.0", ONES_32, {"gpu_retired_pages"}),
        ("mig", ONES_32, {"gpu_mig_enabled", "gpu_mig_instances"}),
        ("nvlink.5", ONES_32, {"gpu_nvlink_links", "gpu_nvlink_link_up", "gpu_nvlink_errors_total",
                               "gpu_nvlink_transmit_bytes_total", "gpu_nvlink_receive_bytes_total",
                               "gpu_nvlink_recoveries_total", "gpu_nvlink_physical_errors_total"}),
        ("virtualization", ONES_64, {"gpu_virtualization_mode", "gpu_vgpu_license_status"}),
        ("energy", ONES_64, {"gpu_energy_joules_total"}),
        ("memory_used", ONES_64, {"gpu_memory_used_bytes"}),
        ("encoder", ONES_32, {"gpu_encoder_utilization_ratio"}),
    ],
)  # fmt: skip
def test_number_with_all_bits_set_affects_only_one_series(tmp_path: Path, key: str, value: object, metrics: set[str]) -> None:
    sample = sample_of(FakeDriver(tmp_path, build_library(), [h100_state(0) | {key: value}]), 0, ALL)

    assert {metric for (metric, *_), reason in sample.absent.items() if reason == "implausible"} == metrics
    assert sample.value("gpu_temperature_margin_celsius") == (89 - 40 if key == "margin" else 47)
    assert sample.errors == {}


@pytest.mark.parametrize("uuid", ["", "\x7f\x01"])
def test_a_gpu_without_a_uuid_is_not_opened(tmp_path: Path, uuid: str) -> None:
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0) | {"uuid": uuid}])

    with asking(fake) as gpu_process, pytest.raises(DownError, match="no uuid") as down:
        gpu_process.open()

    assert down.value.reason == "nvml_error"


def test_field_values_have_their_own_return_codes_and_types(tmp_path: Path) -> None:
    fields: dict[str, object] = {
        "field.142": "err:999",
        "field.143": "7 us",
        "field.144": "1 sll",
        "field.145": "1 type:77",
        "field.186": "1500.5 d",
    }
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0) | fields])

    sample = sample_of(fake)

    assert sample.all("gpu_remapped_rows_total") == {("uncorrected",): 7}
    assert sample.absent["gpu_remapped_rows_total", "corrected"] == "unknown"
    assert sample.value("gpu_row_remap_pending") == 1
    assert sample.absent["gpu_row_remap_failure",] == "unknown_value_type"
    assert sample.value("gpu_power_instant_watts") == 1.5005
    assert sample.errors == {"remap": "gpu_remapped_rows_total: unknown"}


def test_xid_errors_after_open_are_reported_once_and_in_order(fake: FakeDriver) -> None:
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


def test_missing_event_support_is_an_error_of_the_xid_collector(fake: FakeDriver) -> None:
    fake.change(0, {"no_events": 1})

    sample = sample_of(fake)

    assert sample.errors.keys() == {"xid"}
    assert "not_supported" in sample.errors["xid"]
    assert fake.counts()["nvmlEventSetFree"] == fake.counts()["nvmlEventSetCreate"]
