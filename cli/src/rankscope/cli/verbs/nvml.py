"""Query of NVML for the GPUs, in a separate process with a deadline: a wedged driver blocks its callers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Final

DEADLINE_S: Final = 20
_SCRIPT: Final = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount(), n.nvmlSystemGetDriverVersion())"


@dataclass(frozen=True, slots=True)
class NvmlAnswer:
    """Result of the query. Without an answer ``gpus`` is 0 and ``reason`` is set; ``wedged``: no answer within the deadline."""

    gpus: int
    driver: str | None = None
    reason: str | None = None
    wedged: bool = False


def ask_nvml() -> NvmlAnswer:
    """Return the number of GPUs that NVML sees, and the driver's version. Never raises."""
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return NvmlAnswer(0, reason=f"the NVIDIA driver does not answer within {DEADLINE_S} s", wedged=True)
    if completed.returncode != 0:
        last = (completed.stderr.strip().splitlines() or ["NVML failed"])[-1]
        return NvmlAnswer(0, reason=last.rpartition(": ")[2])
    count, _, driver = completed.stdout.strip().partition(" ")
    return NvmlAnswer(int(count), driver)
