"""Xids through the whole exporter: from the driver onto the page, over a kill and a restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.conftest import RunningExporter
from tests.exporter.fake_driver import FakeDriver


@pytest.mark.slow
def test_an_xid_of_the_driver_is_counted_and_outlives_the_exporter(
    start_exporter: Callable[..., RunningExporter], fake_nvml: FakeDriver, tmp_path: Path
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
def test_a_gpu_that_answers_again_after_a_release_was_reset(
    start_exporter: Callable[..., RunningExporter], fake_nvml: FakeDriver, cli: Callable[..., Any], tmp_path: Path
) -> None:
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
    fake_nvml.gpu(1)["energy"] = 1000
    fake_nvml.write()
    third = start_exporter(*options, env=fake_nvml.env)
    third.wait_until(
        lambda: (
            third.values("gpu_last_reset_timestamp_seconds", uuid=uuid)
            > third.values("gpu_xid_last_timestamp_seconds", uuid=uuid)
        )
    )
