"""Analysis of chosen steps of a run, and the step records of a few captured steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.step_files import add_damaged, append, load, save, steps_file

from rankscope.analysis.captured import step_records
from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepEvent, StepRecord

Synthetic = Callable[..., Any]


def test_each_part_of_a_run_has_its_own_verdict(synthetic: Synthetic) -> None:
    # given a run in which rank 2 computes slowly at first, and rank 1 later
    def plan(rank: int, step: int) -> dict[str, Any] | None:
        return {"us": 40_000, "cpu": True} if rank == (2 if step < 60 else 1) else None

    run = synthetic(steps=120, plan=plan).write()
    # when a part is analysed
    early, late = (analyze([run], steps=steps) for steps in ((None, 60), (60, None)))
    # then the verdict is that of the part, and the result says of which steps it is
    assert [(part.verdict.kind, part.verdict.rank) for part in (early, late)] == [("straggler", 2), ("straggler", 1)]
    assert [part.source.steps for part in (early, late)] == [60, 60]
    assert any("steps 60 to 119" in warning for warning in late.source.warnings)


def test_figures_of_the_whole_run_are_left_out_for_chosen_steps(synthetic: Synthetic) -> None:
    run = synthetic(steps=120, rank_fields={"recorder_cost_us": 1e5, "unwritten_steps": 40}).write()
    whole, part = analyze([run]).source, analyze([run], steps=(20, 60)).source
    assert (whole.recorder_share is None, whole.coverage) == (False, 0.75)
    assert (part.recorder_share, part.coverage) == (None, 1.0)


def test_too_few_chosen_steps_lead_to_the_advice_to_choose_more(synthetic: Synthetic) -> None:
    run = synthetic(steps=40).write()
    verdict = analyze([run], steps=(20, 21)).verdict
    assert verdict.kind == "insufficient_data"
    assert "1 step recorded" in verdict.summary
    assert verdict.next == [f"Choose more steps: rankscope analyze {run} --steps A:B"], "the job did not end there"


@pytest.mark.parametrize("steps", [(40, 50), (40, None)])
def test_unrecorded_steps_are_an_error_with_the_recorded_range(synthetic: Synthetic, steps: tuple[int, int | None]) -> None:
    with pytest.raises(InputError, match="no such steps: there are steps 0 to 39"):
        analyze([synthetic(steps=40).write()], steps=steps)


def test_choosing_steps_of_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text('{"traceEvents": []}')
    with pytest.raises(InputError, match="of a recorded run only"):
        analyze([tmp_path], steps=(1, 2))


@pytest.fixture
def run(synthetic: Callable[..., Any]) -> Path:
    path: Path = synthetic(ranks=2, steps=30).write()
    events = [StepEvent(step=step, end_unix_ns=1, tags=["eval"], sections_us={"loss": 2.0}) for step in (9, 10, 12)]
    append(rank_dir(path, 0, 1), "events", *events)
    return path


def test_chosen_records_equal_those_of_the_reader(run: Path) -> None:
    reader = RunReader(run)
    records = step_records(reader, 0, 1, range(10, 13))
    assert records == [record for record in reader.steps(0, 1) if record.step in range(10, 13)]
    assert [(record.tags, record.sections_us) for record in records] == [
        (["eval"], {"loss": 2.0}),
        ([], {}),
        (["eval"], {"loss": 2.0}),
    ]


def test_impossible_records_are_left_out_and_the_last_of_a_step_wins(run: Path) -> None:
    rows = load(steps_file(run, 1))
    rows["wall_us"][11] = np.nan
    rows["start_unix_ns"][12] = -1
    save(steps_file(run, 1), rows)
    add_damaged(steps_file(run, 1))
    append(rank_dir(run, 0, 1), "steps", StepRecord(step=10, start_unix_ns=10**18, wall_us=7.0))
    reader = RunReader(run)
    records = step_records(reader, 0, 1, range(10, 13))
    assert [record.step for record in records] == [10, 10]
    assert records[-1].wall_us == 7.0
    assert reader.skipped_lines == 1


@pytest.mark.parametrize("steps", [range(500, 600), range(0), range(-5, 0)])
def test_missing_steps_or_ranks_yield_no_records(run: Path, steps: range) -> None:
    assert step_records(RunReader(run), 0, 1, steps) == []
    assert step_records(RunReader(run), 0, 9, range(40)) == []
