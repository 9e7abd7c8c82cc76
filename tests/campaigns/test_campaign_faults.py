"""The long campaign: every fault on every rank, and many runs without a fault (`make campaign`)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

FAULTS = [f"{kind}:{rank}" for kind in ("input", "host", "backward", "imbalance") for rank in range(4)]


@pytest.mark.parametrize("fault", [*FAULTS, *(["none"] * 10)])
def test_the_verdict_is_the_planted_truth(
    cli_process: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, fault: str
) -> None:
    done = cli_process("demo", "--once", "--fault", fault, "--run-dir", tmp_path / "run", "--format", "json", timeout=900)
    assert done.stdout, done.stderr
    assert [part for part in json.loads(done.stdout)["parts"] if not part["ok"]] == []
