"""``make gpu``, on any machine: what it says without a GPU, and what it writes with one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli.verbs.nvml import NvmlAnswer

pytestmark = pytest.mark.usefixtures("require_torch")


@pytest.fixture
def script() -> Any:
    return importlib.import_module("benchmarks.gpu.gpu")


@pytest.mark.parametrize(
    "case", [(0, "13.0", "no such library"), (8, None, "without CUDA"), (8, "13.0", "driver 570.1")], ids=lambda case: case[2]
)
def test_missing_gpu_is_reported_with_skipped_checks_and_reason(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: tuple[int, str | None, str]
) -> None:
    import torch

    gpus, cuda, fact = case
    monkeypatch.setattr(script, "ask_nvml", lambda: NvmlAnswer(gpus, "570.1", None if gpus else "no such library"))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    assert script.main() == 0
    output = capsys.readouterr().err
    assert all(part in output for part in (fact, "tests/gpu", "recorder.overhead", "recorder.window_cost", "gpu.gpu_nccl"))


@pytest.mark.parametrize("value", [0.9, 1.2])
def test_gpu_result_has_versions_tests_and_budgets(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    value: float,
) -> None:
    def run(command: list[str]) -> tuple[str, str | None]:
        report = next((Path(part.partition("=")[2]) for part in command if part.startswith("--junitxml=")), None)
        if report is None:
            return json.dumps({"budgets": [{"name": "a share", "value": value, "limit": 1.0, "ok": value <= 1}]}), None
        report.write_text(
            "<testsuites><testsuite><testcase classname='a' name='b'/>"
            "<testcase classname='a' name='c'><skipped message='no GPM'/></testcase></testsuite></testsuites>"
        )
        return "", None

    monkeypatch.setattr(script, "reason_to_skip", lambda: None)
    monkeypatch.setattr(script, "gpu_environment", lambda: {"device": "NVIDIA H200"})
    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr("sys.argv", ["gpu.py", "--results", str(tmp_path)])
    assert script.main() == (value > 1)
    (path,) = tmp_path.glob("*-gpu.json")
    written = json.loads(path.read_text())
    assert written["environment"]["device"] == "NVIDIA H200"
    assert (written["tests"]["passed"], written["tests"]["failed"]) == (1, [])
    assert "no GPM" in written["tests"]["skipped"][0]
    assert [row["name"] for row in written["budgets"]] == ["overhead: a share", "window_cost: a share", "nccl: a share"]
    assert ("over its budget" in capsys.readouterr().err) == (value > 1)
