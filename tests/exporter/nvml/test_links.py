"""NVLinks and the fabric."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.exporter.fake_driver import ALL_LINKS, NVLINK5_ERRORS, FakeDriver, build_library, gb200_state, h100_state
from tests.exporter.nvml.gpu_process import opened, sample_of

NVLINK = frozenset({"gpu", "nvlink", "nvlink_link"})


def driver(folder: Path, **changes: object) -> FakeDriver:
    state = h100_state(0) | {key.replace("__", "."): value for key, value in changes.items()}
    return FakeDriver(folder, build_library(), [state])


@pytest.mark.slow
def test_a_link_that_is_down_is_counted_and_named(tmp_path: Path) -> None:
    sample = sample_of(driver(tmp_path, nvlink__3=0), 0, NVLINK)

    assert sample.all("gpu_nvlink_links") == {("up",): 17, ("down",): 1}
    assert [link for (link,), up in sample.all("gpu_nvlink_link_up").items() if not up] == ["3"]


@pytest.mark.slow
def test_per_link_series_are_off_by_default(tmp_path: Path) -> None:
    assert "gpu_nvlink_link_up" not in sample_of(driver(tmp_path)).metrics


def test_errors_are_summed_over_the_links(tmp_path: Path) -> None:
    fake = driver(tmp_path)
    fake.change(0, {"field.161@0": "2 ull", "field.161@17": "3 ull", "field.163@5": "7 ull"})

    assert sample_of(fake, 0, NVLINK).all("gpu_nvlink_errors_total") == {("crc_flit",): 7, ("replay",): 5, ("recovery",): 0}


def test_sum_with_an_unreadable_link_is_absent(tmp_path: Path) -> None:
    fake = driver(tmp_path)
    fake.change(0, {"field.161@9": "err:999"})

    sample = sample_of(fake, 0, NVLINK)

    assert ("replay",) not in sample.all("gpu_nvlink_errors_total")
    assert sample.absent["gpu_nvlink_errors_total", "replay"] == "unknown"


def test_blackwell_and_grace_counters_are_read(tmp_path: Path) -> None:
    sample = sample_of(FakeDriver(tmp_path, build_library(), [gb200_state(0)]), 0, NVLINK)

    assert sample.all("gpu_nvlink_errors_total") == {(kind,): number for number, kind in NVLINK5_ERRORS.items()}
    assert sample.all("gpu_nvlink_recoveries_total") == {("succeeded",): 213, ("failed",): 214}
    assert sample.all("gpu_nvlink_physical_errors_total") == {("effective",): 219, ("symbol",): 221}
    assert sample.all("gpu_c2c_errors_total") == {("crc",): 31, ("replay",): 32, ("replay_back_to_back",): 33}
    assert sample.value("gpu_nvlink_transmit_bytes_total") == 7000 * 1024
    assert {kind for metric, *kinds in sample.absent if metric == "gpu_nvlink_errors_total" for kind in kinds} == {
        "crc_flit", "crc_data", "replay", "ecc",
    }  # fmt: skip
    assert sample.errors == {}


def test_newer_byte_counters_are_used_if_older_are_missing(tmp_path: Path) -> None:
    state = gb200_state(0)
    del state[f"field.138@{ALL_LINKS}"], state[f"field.139@{ALL_LINKS}"]
    sample = sample_of(FakeDriver(tmp_path, build_library(), [state]), 0, NVLINK)

    assert sample.value("gpu_nvlink_transmit_bytes_total") == 7168111
    assert sample.value("gpu_nvlink_receive_bytes_total") == 8192111


def test_a_counter_never_changes_its_source(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, build_library(), [gb200_state(0)])
    with opened(fake, 0, NVLINK) as gpu_process:
        gpu_process.sample()
        assert gpu_process.sample().value("gpu_nvlink_transmit_bytes_total") == 7000 * 1024

        fake.change(0, {f"field.138@{ALL_LINKS}": "err:3"})
        sample = gpu_process.sample()

    assert "gpu_nvlink_transmit_bytes_total" not in sample.metrics
    assert sample.absent["gpu_nvlink_transmit_bytes_total",] == "not_supported"


def test_nvlink_metrics_are_absent_without_nvlinks(tmp_path: Path) -> None:
    fake = driver(tmp_path)
    del fake.gpus[0]["nvlinks"]
    fake.write()

    sample = sample_of(fake, 0, NVLINK)

    absent = {metric for metric, *_ in sample.absent}
    assert absent == {
        "gpu_nvlink_links", "gpu_nvlink_link_up", "gpu_nvlink_transmit_bytes_total", "gpu_nvlink_receive_bytes_total",
        "gpu_nvlink_errors_total", "gpu_nvlink_recoveries_total", "gpu_nvlink_physical_errors_total", "gpu_c2c_errors_total",
    }  # fmt: skip
    assert sample.errors == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reading", "name", "healthy"),
    [
        ((3, 0, 0b10101010), "completed", 1),
        ((3, 0, 0b10101001), "completed", 0),
        ((3, 0, 0b10011010), "completed", 0),
        ((3, 0, 0x3AA), "completed", 0),
        ((3, 999, 0b10101010), "failed", 1),
        ((2, 0, 0), "in_progress", None),
        ((0, 0, 0), "not_supported", None),
    ],
)
def test_fabric_state_and_health_are_read(
    tmp_path: Path, reading: tuple[int, int, int], name: str, healthy: float | None
) -> None:
    state, status, health = reading

    sample = sample_of(driver(tmp_path, fabric=state, fabric_status=status, fabric_health=health), 0, NVLINK)

    assert sample.all("gpu_fabric_state") == {(name,): 1}
    assert sample.all("gpu_fabric_healthy").get(()) == healthy
    assert (("gpu_fabric_healthy",) in sample.absent) is (healthy is None)


@pytest.mark.slow
def test_driver_without_the_versioned_call_gives_only_fabric_state(tmp_path: Path) -> None:
    fake = FakeDriver(tmp_path, build_library("-DDRIVER=525"), [h100_state(0)])

    sample = sample_of(fake, 0, NVLINK)

    assert sample.all("gpu_fabric_state") == {("completed",): 1}
    assert sample.absent["gpu_fabric_healthy",] == "not_supported"
