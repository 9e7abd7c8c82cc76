from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.jobs.job_node import USERS, Proc

from rankscope.exporter.jobs.collector import JobsCollector
from rankscope.exporter.jobs.names import UserNames
from rankscope.exporter.jobs.party import Allocation


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.fixture
def node(tmp_path: Path, proc: Proc) -> Callable[..., JobsCollector]:
    """Factory ``node(Allocation…)`` of a collector that reads the folder ``jobs``, and these allocations of a kubelet if any."""

    def make(*pods: Allocation, **options: Any) -> JobsCollector:
        names = UserNames(lambda uid: USERS[uid])
        collector = JobsCollector(**{"slurm_dir": tmp_path / "jobs", "proc": proc.path, "user_names": names, **options})
        if pods:
            collector._sources[1]._call = lambda: pods
        return collector

    return make
