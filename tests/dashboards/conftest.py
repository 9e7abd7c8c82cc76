"""Fixtures for the tests of the dashboards: runs on disk, runs in memory, clients of an app."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.dashboards import recorded_run
from tests.dashboards.memory_runs import MemoryRuns
from tests.dashboards.recorded_run import step_record
from tests.dashboards.straggler import straggler_analysis, straggler_table
from tests.waiting import wait_until

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.dashboards.data.source import NotReadyError
from rankscope.runs.records import StepRecord


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """Function ``write_run(folder, …)`` that writes a run of 4 ranks; ``slow_rank`` (default 2) has a slow data loader."""
    return recorded_run.write_run


@pytest.fixture
def analysis() -> Analysis:
    """Analysis with a straggler verdict against rank 2 and every field set."""
    return straggler_analysis()


@pytest.fixture
def a_step() -> StepRecord:
    """Record of a step in which nothing is slow."""
    return step_record(0, 0, slow_rank=None, noise=0)


@pytest.fixture
def table() -> StepTable:
    """Step table of the straggler run; rank 1 has no record of steps 30 to 39."""
    return straggler_table()


@pytest.fixture
def memory_runs(analysis: Analysis, table: StepTable) -> MemoryRuns:
    """Source that holds the straggler run."""
    source = MemoryRuns()
    source.put(analysis, table)
    return source


@pytest.fixture
def until_ready() -> Callable[[Callable[[], Any]], Any]:
    """Function ``until_ready(ask)`` that calls ``ask`` again while its result is being computed."""

    def wait(ask: Callable[[], Any]) -> Any:
        def answers() -> list[Any]:
            try:
                return [ask()]  # in a list: an answer may be false
            except NotReadyError:
                return []

        return wait_until(answers)[0]

    return wait
