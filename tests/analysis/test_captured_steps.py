"""Step records of a few captured steps of a rank with many steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.step_files import add_damaged, append, load, save, steps_file

from rankscope.analysis.captured import step_records
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepEvent, StepRecord


@pytest.fixture
def run(synthetic: Callable[..., Any]) -> Path:
    path: Path = synthetic(ranks=2, steps=30).write()
    events = [StepEvent(step=step, end_unix_ns=1, tags=["eval"], sections_us={"loss": 2.0}) for step in (9, 10, 12)]
    append(rank_dir(path, 0, 1), "events", *events)
    return path


def test_they_are_those_of_the_reader(run: Path) -> None:
    reader = RunReader(run)
    result = step_records(reader, 0, 1, range(10, 13))
    assert result == [record for record in reader.steps(0, 1) if record.step in range(10, 13)]
    assert [(record.tags, record.sections_us) for record in result] == [
        (["eval"], {"loss": 2.0}),
        ([], {}),
        (["eval"], {"loss": 2.0}),
    ]


def test_impossible_records_are_left_out_and_the_last_of_a_step_comes_last(run: Path) -> None:
    rows = load(steps_file(run, 1))
    rows["wall_us"][11] = np.nan
    rows["start_unix_ns"][12] = -1
    save(steps_file(run, 1), rows)
    add_damaged(steps_file(run, 1))
    append(rank_dir(run, 0, 1), "steps", StepRecord(step=10, start_unix_ns=10**18, wall_us=7.0))
    reader = RunReader(run)
    result = step_records(reader, 0, 1, range(10, 13))
    assert [record.step for record in result] == [10, 10]
    assert result[-1].wall_us == 7.0
    assert reader.skipped_lines == 1


@pytest.mark.parametrize("steps", [range(500, 600), range(0), range(-5, 0)])
def test_there_may_be_none(run: Path, steps: range) -> None:
    assert step_records(RunReader(run), 0, 1, steps) == []
    assert step_records(RunReader(run), 0, 9, range(40)) == []
