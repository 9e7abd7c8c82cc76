"""Requirements of tests: without them a test skips; in CI, where everything should be installed, it fails."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

INSTALL_HINTS = {
    "prometheus": "apt-get install prometheus",
    "promtool": "apt-get install prometheus",
    "prometheus-alertmanager": "apt-get install prometheus-alertmanager",
    "amtool": "apt-get install prometheus-alertmanager",
    "chromium": "apt-get install chromium",
    "gcc": "apt-get install gcc libc6-dev",
    **dict.fromkeys(("node", "npm"), "apt-get install nodejs npm (node 20 or later)"),
    **dict.fromkeys(("ip", "tc"), "apt-get install iproute2"),
    **dict.fromkeys(("unshare", "nsenter"), "apt-get install util-linux"),
    **dict.fromkeys(
        ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo", "squeue", "srun"),
        "apt-get install munge slurmctld slurmd slurm-client",
    ),
}


def skip_or_fail(reason: str) -> NoReturn:
    """End the calling test."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def program(name: str) -> str:
    """Return the path of a program; without it the test skips with the install hint."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if path is None:
        skip_or_fail(f"{name} is not installed: {INSTALL_HINTS[name]}")
    return path
