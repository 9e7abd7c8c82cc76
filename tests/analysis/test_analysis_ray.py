"""``--engine ray`` on a real cluster of two nodes: the answers of ``--engine local``, and one line for what goes wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.ray_nodes import Cluster, started

pytestmark = pytest.mark.slow

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cluster(require_package: Callable[[str], None]) -> Iterator[Cluster]:
    require_package("ray")
    with started() as nodes:
        yield nodes
    assert nodes.processes() == []


def on_cluster(cluster: Cluster, function: str, items: str, *more: str, after: str = "") -> subprocess.CompletedProcess[str]:
    """What ``RayEngine`` makes of items, printed one a line, in a process of its own."""
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom rankscope.analysis.ray_engine import RayEngine\n"
        f"items = {items}\nfiles = [Path(sys.executable)] * len(items)\n"
        f"for got in RayEngine({cluster.address!r}, *{more}).map({function}, items, files=files, text_bytes=0): print(got)\n{after}"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
