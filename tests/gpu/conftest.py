"""What all tests on a GPU need."""

from __future__ import annotations

import pytest

from rankscope.cli.verbs.nvml import ask_nvml


@pytest.fixture(scope="session")
def gpu_count() -> int:
    """Number of NVIDIA GPUs of this machine. Without one the test skips, also in CI: there is none to be installed."""
    count = ask_nvml().gpus
    if count == 0:
        pytest.skip("no NVIDIA GPU on this machine (NVML sees none)")
    return count
