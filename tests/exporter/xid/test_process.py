"""Xids through the whole exporter: from the driver onto the page, over a kill and a restart."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver, gb200_state


@pytest.mark.slow
def test_driver_xid_is_counted_and_survives_a_restart(
    start_exporter: StartExporter, fake_nvml: FakeDriver, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    options = ("--state-dir", state, "--no-xid.kernel-log", "--interval", "0.2")
    exporter = start_exporter(*options, env=fake_nvml.env)
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 1.0])
    exporter.wait_until(lambda: exporter.values("gpu_xid_errors_total", xid="79") == [0.0, 0.0])

    # when a GPU has errors, one twice, then they are counted, also critical ones
    fake_nvml.xid(0, 48, 48, 31)
    exporter.wait_until(lambda: sorted(exporter.values("gpu_xid_errors_total", xid="48"))[-1:] == [2.0])
    exporter.wait_until(lambda: exporter.values("gpu_xid_errors_total", xid="31") == [1.0])
    assert exporter.values("rankscope_exporter_xid_journal_durable") == [1.0]

    # when the exporter is killed and restarted, then the counts continue
    exporter.close()
    again = start_exporter(*options, env=fake_nvml.env)
    again.wait_until(lambda: sorted(again.values("gpu_xid_errors_total", xid="48"))[-1:] == [2.0])
    fake_nvml.xid(0, 48)
    again.wait_until(lambda: sorted(again.values("gpu_xid_errors_total", xid="48"))[-1:] == [3.0])

    lines = [json.loads(line) for line in (state / "xids" / "xids.jsonl").read_text().splitlines()]
    assert [line["code"] for line in lines if line["type"] == "entry"] == [48, 48, 31, 48]


@pytest.mark.slow
def test_resumed_gpu_counts_as_reset(start_exporter: StartExporter, fake_nvml: FakeDriver, cli: Cli, tmp_path: Path) -> None:
    options = ("--state-dir", tmp_path / "state", "--no-xid.kernel-log", "--interval", "0.2")
    exporter = start_exporter(*options, env=fake_nvml.env)
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 1.0])
    fake_nvml.xid(0, 62)
    exporter.wait_until(lambda: exporter.values("gpu_xid_errors_total", xid="62") == [1.0, 0.0])
    [error] = exporter.values("gpu_xid_last_timestamp_seconds", xid="62")
    assert max(exporter.values("gpu_last_reset_timestamp_seconds")) < error

    # when the GPU is released and resumed, then its reset is later than the error, also after a restart of the exporter
    socket = ("--socket", tmp_path / "control.sock")
    assert cli("exporter", "release", "0", *socket).returncode == 0
    assert cli("exporter", "resume", "0", *socket).returncode == 0
    exporter.wait_until(lambda: max(exporter.values("gpu_last_reset_timestamp_seconds")) > error)
    assert min(exporter.values("gpu_last_reset_timestamp_seconds")) < error
    exporter.close()
    again = start_exporter(*options, env=fake_nvml.env)
    again.wait_until(lambda: len(again.values("gpu_last_reset_timestamp_seconds")) == 2)
    assert max(again.values("gpu_last_reset_timestamp_seconds")) > error

    # when another error comes, and the other GPU is reset while no exporter runs, then that is seen in its energy
    fake_nvml.xid(1, 62)
    again.wait_until(lambda: again.values("gpu_xid_errors_total", xid="62") == [1.0, 1.0])
    uuid = str(fake_nvml.gpus[1]["uuid"])
    again.wait_until(lambda: len(again.values("gpu_energy_joules_total")) == 2)
    assert again.stop(signal.SIGTERM) == 0
    fake_nvml.change(1, {"energy": 1000})
    third = start_exporter(*options, env=fake_nvml.env)
    third.wait_until(
        lambda: (
            third.values("gpu_last_reset_timestamp_seconds", uuid=uuid)
            > third.values("gpu_xid_last_timestamp_seconds", uuid=uuid)
        )
    )


@pytest.mark.slow
def test_gb200_counters_and_xids_are_on_both_pages(
    start_exporter: StartExporter, fake_nvml_library: Path, tmp_path: Path
) -> None:
    (tmp_path / "counters.csv").write_text(
        "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS, counter, x\nDCGM_FI_DEV_C2C_LINK_ERROR_REPLAY, counter, x\n"
        "DCGM_EXP_XID_ERRORS_COUNT, gauge, x\nDCGM_FI_DEV_XID_ERRORS, gauge, x\n"
    )
    driver = FakeDriver(tmp_path / "driver", fake_nvml_library, [gb200_state(0)])
    options = (
        "--no-xid.kernel-log",
        "--interval",
        "0.2",
        "--compat",
        "dcgm",
        "--compat.dcgm-counters",
        tmp_path / "counters.csv",
    )
    exporter = start_exporter(*options, env=driver.env)
    exporter.wait_until(lambda: exporter.values("gpu_nvlink_errors_total", error="receive") == [208])

    # when it has an NVLink error, a code that no table has, and an event that is no code
    driver.xid(0, 149, 901, 2**64 - 1)
    exporter.wait_until(lambda: exporter.values("gpu_xid_errors_total", xid="901") == [1])

    assert exporter.values("gpu_xid_errors_total", xid="149", severity="unknown") == [1]
    assert sum(exporter.values("gpu_xid_errors_total")) == 2
    exporter.wait_until(lambda: 'err_code="901"' in exporter.get("/dcgm/metrics").text)
    page = exporter.get("/dcgm/metrics").text.splitlines()
    for name, label, value in (
        ("DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS", "", "208"),
        ("DCGM_FI_DEV_C2C_LINK_ERROR_REPLAY", "", "32"),
        ("DCGM_EXP_XID_ERRORS_COUNT", 'xid="149"', "1"),
        ("DCGM_EXP_XID_ERRORS_COUNT", 'xid="901"', "1"),
        ("DCGM_FI_DEV_XID_ERRORS", 'err_code="901"', "901"),
    ):
        assert [line.split()[-1] for line in page if line.startswith(f"{name}{{") and label in line] == [value], name
