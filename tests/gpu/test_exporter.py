"""On a machine with an NVIDIA GPU: the exporter's page against the official NVML binding on the same driver."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.command_line import Cli

from rankscope.exporter.catalogue import BY_NAME
from rankscope.exporter.nvml.gpu import load_nvml

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("gpu_count")]

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def page(cli_process: Cli, tmp_path_factory: pytest.TempPathFactory) -> Series:
    text = cli_process("exporter", "--once", "--spool", tmp_path_factory.mktemp("exporter") / "spool").stdout
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_gpu(page: Series, metric: str, uuid: str) -> list[float]:
    return [value for (name, labels), value in page.items() if name == metric and ("uuid", uuid) in labels]


def test_exporter_publishes_every_real_gpu_and_simulates_none(cli_process: Cli, gpu_count: int) -> None:
    page = cli_process("exporter", "--once").stdout
    assert len(re.findall(r"^gpu_up\{[^}]*\} 1(?:\.0)?$", page, re.MULTILINE)) == gpu_count
    assert len(re.findall(r"^gpu_temperature_celsius\{", page, re.MULTILINE)) >= gpu_count
    assert len(re.findall(r"^gpu_memory_total_bytes\{", page, re.MULTILINE)) == gpu_count
    assert "rankscope_exporter_simulated 0" in page


def test_static_gpu_metrics_match_nvml(page: Series) -> None:
    nvml = load_nvml()
    nvml.nvmlInit()
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(gpu)

            assert of_gpu(page, "gpu_up", uuid) == [1]
            total = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).total
            assert of_gpu(page, "gpu_memory_total_bytes", uuid) == [total]
            limit = nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000
            assert of_gpu(page, "gpu_power_limit_watts", uuid) == [limit]
            assert 0 < of_gpu(page, "gpu_temperature_celsius", uuid)[0] < 120
    finally:
        nvml.nvmlShutdown()


def test_every_metric_is_exported_or_explained(page: Series) -> None:
    shown = {name for name, _ in page}
    explained = {dict(labels)["metric"]: dict(labels)["reason"] for name, labels in page if name == "gpu_metric_absent_info"}
    default = {
        row.name for row in BY_NAME.values() if row.collector in ("temperature", "memory", "utilization", "clocks", "power")
    }

    # Printed for the user: the support table of this GPU.
    for metric, reason in sorted(explained.items()):
        print(f"{metric}: {reason}", file=sys.stderr)
    assert default - shown - explained.keys() == set()
    assert explained.keys() <= BY_NAME.keys()


def test_activity_metrics_follow_the_load(cli_process: Cli, page: Series, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="work for the GPU comes from torch")
    if not any(name == "gpu_sm_active_ratio" for name, _ in page):
        pytest.skip("no GPU here counts its activity (GPM needs Hopper or newer)")
    work = (
        "import time, torch; a = torch.ones(8192, 8192, device='cuda', dtype=torch.bfloat16); print('ready', flush=True)\n"
        "until = time.monotonic() + 60\n"
        "while time.monotonic() < until: a @ a; torch.cuda.synchronize()\n"
    )
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE, text=True) as busy:
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline() == "ready\n"
            text = cli_process("exporter", "--once", "--spool", tmp_path / "spool").stdout
        finally:
            busy.kill()
    ratios = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in ("gpu_sm_active_ratio", "gpu_tensor_active_ratio")
    }
    assert ratios["gpu_sm_active_ratio"] > 0.5
    assert ratios["gpu_tensor_active_ratio"] > 0.1
