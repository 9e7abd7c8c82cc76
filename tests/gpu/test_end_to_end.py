"""On a machine with an NVIDIA GPU: real NVML readings, real CUDA training."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("gpu_count")]


def test_the_exporter_publishes_every_real_gpu_and_simulates_none(cli_process: Cli, gpu_count: int) -> None:
    page = cli_process("exporter", "--once").stdout
    assert len(re.findall(r"^gpu_up\{[^}]*\} 1(?:\.0)?$", page, re.MULTILINE)) == gpu_count
    assert len(re.findall(r"^gpu_temperature_celsius\{", page, re.MULTILINE)) >= gpu_count
    assert len(re.findall(r"^gpu_memory_total_bytes\{", page, re.MULTILINE)) == gpu_count
    assert "rankscope_exporter_simulated 0" in page


@pytest.mark.usefixtures("require_torch")
@pytest.mark.timeout(600)
def test_a_planted_straggler_is_found_on_cuda(cli_process: Cli, tmp_path: Path, gpu_count: int) -> None:
    done = cli_process("demo", "--once", "--fault", "input:2", "--run-dir", tmp_path / "run", "--format", "json", timeout=540)
    report = json.loads(done.stdout)
    assert [part for part in report["parts"] if not part["ok"]] == [], done.stderr
    analysis = json.loads(cli_process("analyze", tmp_path / "run", "--format", "json").stdout)
    assert {rank["device_kind"] for rank in analysis["ranks"]} == {"cuda"}
    assert analysis["source"]["simulated"] is False
