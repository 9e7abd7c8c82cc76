"""Published readings of a GPU: every row of the tables for an H100, an A100, and a GPU with few answers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.exporter.fake_driver import MIB, NO_PROCESS, FakeDriver, a100_state, build_library, gpu_state, h100_state, uuid_of
from tests.exporter.nvml.gpu_process import ALL, Sample, opened, sample_of

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE, COLLECTORS

# Not part of the sample: derived from the state of the GPU's process.
_NOT_OF_THE_SAMPLE = {"gpu_info", "gpu_up", "gpu_down_info", "gpu_down_since_timestamp_seconds", "gpu_sample_age_seconds"}
_NOT_OF_THE_SAMPLE |= {"gpu_metric_absent_info"}
# Only published where their object exists.
_WHERE_THERE_IS = {metric.name for metric in CATALOGUE if metric.name.startswith("gpu_mig_")}
_WHERE_THERE_IS -= {"gpu_mig_enabled", "gpu_mig_instances"}


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    """Fake driver with an H100, an A100, and a GPU with only the readings of the oldest models."""
    return FakeDriver(tmp_path_factory.mktemp("driver"), build_library(), [h100_state(0), a100_state(1), gpu_state(2)])


@pytest.fixture(scope="module")
def h100(fake: FakeDriver) -> Sample:
    return sample_of(fake, 0, ALL)


@pytest.fixture(scope="module")
def a100(fake: FakeDriver) -> Sample:
    return sample_of(fake, 1, ALL)


@pytest.fixture(scope="module")
def old(fake: FakeDriver) -> Sample:
    return sample_of(fake, 2, ALL)


@pytest.mark.parametrize(
    ("metric", "labels", "value"),
    [
        ("gpu_temperature_celsius", {}, 40),
        ("gpu_memory_temperature_celsius", {}, 50),
        ("gpu_temperature_margin_celsius", {}, 47),
        ("gpu_temperature_limit_celsius", {"limit": "shutdown"}, 92),
        ("gpu_temperature_limit_celsius", {"limit": "slowdown"}, 89),
        ("gpu_temperature_limit_celsius", {"limit": "memory"}, 95),
        ("gpu_memory_total_bytes", {}, 81559 * MIB),
        ("gpu_memory_used_bytes", {}, 1000 * MIB),
        ("gpu_memory_free_bytes", {}, 80000 * MIB),
        ("gpu_memory_reserved_bytes", {}, 559 * MIB),
        ("gpu_utilization_ratio", {}, 0.93),
        ("gpu_memory_utilization_ratio", {}, 0.41),
        ("gpu_graphics_active_ratio", {}, 0.98),
        ("gpu_dram_active_ratio", {}, 0.55),
        ("gpu_sm_occupancy_ratio", {}, 0.35),
        ("gpu_pipe_active_ratio", {"pipe": "fp64"}, 0),
        ("gpu_pipe_active_ratio", {"pipe": "fp32"}, 0.12),
        ("gpu_pipe_active_ratio", {"pipe": "fp16"}, 0.02),
        ("gpu_clock_hertz", {"clock": "graphics"}, 1.7e9),
        ("gpu_clock_hertz", {"clock": "sm"}, 1.71e9),
        ("gpu_clock_hertz", {"clock": "memory"}, 2.619e9),
        ("gpu_clock_max_hertz", {"clock": "sm"}, 1.98e9),
        ("gpu_performance_state", {}, 0),
        ("gpu_power_watts", {}, 251.25),
        ("gpu_power_instant_watts", {}, 260),
        ("gpu_power_limit_watts", {}, 700),
        ("gpu_power_limit_default_watts", {}, 700),
        ("gpu_energy_joules_total", {}, 123456.789),
        ("gpu_throttle_active", {"reason": "sw_power_cap"}, 1),
        ("gpu_throttle_active", {"reason": "hw_thermal"}, 0),
        ("gpu_throttle_seconds_total", {"reason": "sw_power_cap"}, 5),
        ("gpu_throttle_seconds_total", {"reason": "hw_power_brake"}, 0),
        ("gpu_pcie_replays_total", {}, 2),
        ("gpu_pcie_errors_total", {"severity": "fatal"}, 0),
        ("gpu_pcie_link_width", {}, 16),
        ("gpu_pcie_link_max_width", {}, 16),
        ("gpu_pcie_link_generation", {}, 5),
        ("gpu_pcie_link_max_generation", {}, 5),
        ("gpu_pcie_transmit_bytes_total", {}, 11e9),
        ("gpu_pcie_receive_bytes_total", {}, 12e9),
        ("gpu_pcie_throughput_bytes_per_second", {"direction": "receive"}, 5000 * 1024),
        ("gpu_nvlink_links", {"state": "up"}, 18),
        ("gpu_nvlink_links", {"state": "down"}, 0),
        ("gpu_nvlink_link_up", {"link": "17"}, 1),
        ("gpu_nvlink_transmit_bytes_total", {}, 7000 * 1024),
        ("gpu_nvlink_receive_bytes_total", {}, 8000 * 1024),
        ("gpu_nvlink_errors_total", {"error": "replay"}, 0),
        ("gpu_fabric_state", {"state": "completed"}, 1),
        ("gpu_fabric_healthy", {}, 1),
        ("gpu_ecc_enabled", {}, 1),
        ("gpu_ecc_errors_total", {"error": "uncorrected", "memory": "sram"}, 0),
        ("gpu_ecc_errors_lifetime_total", {"error": "corrected", "memory": "dram"}, 0),
        ("gpu_remapped_rows_total", {"cause": "corrected"}, 1),
        ("gpu_remapped_rows_total", {"cause": "uncorrected"}, 0),
        ("gpu_row_remap_pending", {}, 0),
        ("gpu_row_remap_failure", {}, 0),
        ("gpu_row_remap_banks", {"spares": "max"}, 640),
        ("gpu_row_remap_banks", {"spares": "none"}, 0),
        ("gpu_recovery_action", {"action": "none"}, 1),
        ("gpu_mig_enabled", {}, 0),
        ("gpu_mig_instances", {}, 0),
        ("gpu_virtualization_mode", {"mode": "none"}, 1),
        ("gpu_encoder_utilization_ratio", {}, 0),
        ("gpu_decoder_utilization_ratio", {}, 0.03),
        ("gpu_process_memory_used_bytes", {"pid": str(NO_PROCESS), "process": ""}, 900 * MIB),
        ("gpu_process_sm_utilization_ratio", {"pid": str(NO_PROCESS), "process": ""}, 0.91),
    ],
)
def test_h100_readings_have_expected_values(h100: Sample, metric: str, labels: dict[str, str], value: float) -> None:
    assert h100.value(metric, **labels) == pytest.approx(value)


@pytest.mark.parametrize("which", ["h100", "a100", "old"])
def test_every_metric_is_present_or_listed_as_absent(which: str, request: pytest.FixtureRequest) -> None:
    sample: Sample = request.getfixturevalue(which)
    named = {metric for metric, *_ in sample.absent}
    expected = {
        metric.name
        for metric in CATALOGUE
        if metric.group == "gpu" and metric.collector != "xid" and COLLECTORS[metric.collector].reads_gpu
    }

    # Without processes the metrics about processes have no series, which is neither missing nor unsupported.
    processes = {name for name in expected if name.startswith("gpu_process_")}
    assert expected - sample.metrics - named - processes == _NOT_OF_THE_SAMPLE | _WHERE_THERE_IS
    assert sample.metrics <= expected


@pytest.mark.parametrize("which", ["h100", "a100", "old"])
def test_labels_match_the_catalogue_in_order(which: str, request: pytest.FixtureRequest) -> None:
    sample: Sample = request.getfixturevalue(which)

    wrong = {
        (metric, tuple(name for name, _ in labels))
        for metric, labels, _ in sample.series
        if ("uuid", *(name for name, _ in labels)) != BY_NAME[metric].labels
    }

    assert wrong == set()


@pytest.mark.parametrize("which", ["h100", "a100", "old"])
def test_unsupported_metrics_are_no_collector_errors(which: str, request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue(which).errors == {}


def test_h100_lists_unsupported_metrics_with_reasons(h100: Sample) -> None:
    assert h100.absent == {
        ("gpu_nvlink_errors_total", "crc_data"): "not_supported",
        ("gpu_nvlink_errors_total", "ecc"): "not_supported",
        ("gpu_fan_speed_ratio",): "no_fans",
        ("gpu_c2c_errors_total",): "not_supported",
        ("gpu_nvlink_recoveries_total",): "not_supported",
        ("gpu_nvlink_physical_errors_total",): "not_supported",
        ("gpu_vgpu_license_status",): "no_vgpu_guest",
        ("gpu_retired_pages",): "not_supported",
        ("gpu_retired_pages_pending",): "not_supported",
        ("gpu_p2p_status",): "not_supported",
    }


def test_a100_has_no_gpm_and_lists_the_reason(a100: Sample) -> None:
    before_hopper = {metric for (metric, *_), reason in a100.absent.items() if reason == "before_hopper"}

    assert before_hopper == {metric.name for metric in CATALOGUE if metric.collector == "gpm"}
    assert a100.absent["gpu_pcie_transmit_bytes_total",] == "not_supported"


def test_a100_has_nvlink_error_totals_and_temperature_margin(a100: Sample) -> None:
    assert a100.all("gpu_nvlink_errors_total") == {
        ("crc_flit",): 1,
        ("crc_data",): 2,
        ("replay",): 3,
        ("recovery",): 4,
        ("ecc",): 5,
    }
    assert a100.value("gpu_temperature_margin_celsius") == 89 - 41


def test_older_throttle_counters_are_used_if_newer_are_missing(a100: Sample, h100: Sample) -> None:
    assert set(a100.all("gpu_throttle_seconds_total")) == {
        ("sw_power_cap",), ("sync_boost",), ("board_limit",), ("reliability",), ("thermal",),
    }  # fmt: skip
    assert a100.absent["gpu_throttle_seconds_total", "hw_thermal"] == "not_supported"
    assert ("thermal",) not in h100.all("gpu_throttle_seconds_total")


def test_identity_is_read_from_the_driver(fake: FakeDriver) -> None:
    with opened(fake) as gpu_process:
        identity = gpu_process.sample().identity

    assert identity.uuid == uuid_of(0)
    assert (identity.index, identity.model, identity.pci_bus_id) == (0, "NVIDIA H100 80GB HBM3", "00000000:1a:00.0")
    assert (identity.serial, identity.vbios_version) == ("165000", "96.00.61.00.01")


def test_only_calls_of_enabled_collectors_are_made(fake: FakeDriver) -> None:
    with opened(fake, 0, frozenset({"gpu", "power"})) as gpu_process:
        sample = gpu_process.sample()

    assert gpu_process.marks == [
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetTotalEnergyConsumption",
    ]
    assert sample.metrics == {metric.name for metric in CATALOGUE if metric.collector == "power"}
    assert sample.processes is None


def test_constants_are_read_once(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0)])
    with opened(fake) as gpu_process:
        gpu_process.sample()
        gpu_process.sample()
        fake.forget_counts()
        gpu_process.sample()
        calls = fake.counts()

    assert calls == Counter(nvml_calls(gpu_process.marks))
    assert calls == {
        "nvmlDeviceGetFieldValues": 1,
        "nvmlDeviceGetTemperature": 1,
        "nvmlDeviceGetMarginTemperature": 1,
        "nvmlDeviceGetMemoryInfo_v2": 1,
        "nvmlDeviceGetUtilizationRates": 1,
        "nvmlDeviceGetSamples": 1,
        "nvmlDeviceGetClockInfo": 3,
        "nvmlDeviceGetPerformanceState": 1,
        "nvmlDeviceGetPowerUsage": 1,
        "nvmlDeviceGetTotalEnergyConsumption": 1,
        "nvmlDeviceGetCurrentClocksEventReasons": 1,
        "nvmlEventSetWait_v2": 1,
    }


def nvml_calls(marks: list[str]) -> list[str]:
    return [mark for mark in marks if mark.startswith("nvml")]


def test_unsupported_calls_are_not_repeated_at_once(fake: FakeDriver) -> None:
    with opened(fake, 2) as gpu_process:
        gpu_process.sample()
        first = set(gpu_process.marks)
        gpu_process.sample()

    assert {"nvmlDeviceGetPerformanceState", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpmQueryDeviceSupport"} <= first
    assert set(gpu_process.marks) == {
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlEventSetWait_v2",
    }


@pytest.mark.slow
def test_missing_driver_functions_affect_only_dependent_metrics(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, build_library("-DDRIVER=470", "-DWITHOUT_ENERGY"), [h100_state(0)])

    sample = sample_of(fake)

    missing = {metric for (metric, *_), reason in sample.absent.items() if reason == "function_not_found"}
    assert missing >= {"gpu_energy_joules_total", "gpu_memory_used_bytes", "gpu_sm_active_ratio", "gpu_fabric_state"}
    # Readings with an equivalent older function are present.
    assert sample.value("gpu_throttle_active", reason="sw_power_cap") == 1
    assert sample.value("gpu_temperature_margin_celsius") == 89 - 40
    assert [process.pid for process in sample.processes or ()] == [NO_PROCESS]
    assert sample.errors == {}


def test_optional_hardware_readings_are_read_if_present(tmp_path: Path) -> None:
    guest: dict[str, object] = {
        "fans": 2, "fan.0": 30, "fan.1": 110, "virtualization": 2, "licensed": 1,
        "retired.0": 3, "retired.1": 0, "retired_pending": 1,
        "p2p.1.0": 0, "p2p.1.1": 0, "p2p.1.2": 5, "p2p.1.3": 0,
    }  # fmt: skip
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0) | guest, h100_state(1)])

    sample = sample_of(fake, 0, ALL)

    assert sample.all("gpu_fan_speed_ratio") == {("0",): 0.3, ("1",): 1.1}
    assert sample.all("gpu_virtualization_mode") == {("vgpu",): 1}
    assert sample.value("gpu_vgpu_license_status") == 1
    assert sample.all("gpu_retired_pages") == {("multiple_single_bit",): 3, ("double_bit",): 0}
    assert sample.value("gpu_retired_pages_pending") == 1
    peer = uuid_of(1)
    assert sample.all("gpu_p2p_status") == {(peer, "read"): 1, (peer, "write"): 1, (peer, "nvlink"): 0, (peer, "atomics"): 1}


@pytest.mark.parametrize(("value", "action"), [(1, "gpu_reset"), (4, "drain_and_reset"), (7, "system_reboot"), (99, "action_99")])
def test_recovery_action_is_published_by_name(tmp_path: Path, value: int, action: str) -> None:
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0) | {"field.230": f"{value} ui"}])

    assert sample_of(fake, 0, frozenset({"gpu", "recovery"})).all("gpu_recovery_action") == {(action,): 1}
