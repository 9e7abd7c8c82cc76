"""Analysis of chosen steps of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError

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


def test_what_is_known_of_the_whole_run_only_is_not_said_of_a_part(synthetic: Synthetic) -> None:
    run = synthetic(steps=120, rank_fields={"recorder_cost_us": 1e5, "unwritten_steps": 40}).write()
    whole, part = analyze([run]).source, analyze([run], steps=(20, 60)).source
    assert (whole.recorder_share is None, whole.coverage) == (False, 0.75)
    assert (part.recorder_share, part.coverage) == (None, 1.0)


@pytest.mark.parametrize("steps", [(40, 50), (40, None)])
def test_steps_that_were_not_recorded_are_an_error_that_says_which_were(
    synthetic: Synthetic, steps: tuple[int, int | None]
) -> None:
    with pytest.raises(InputError, match="no such steps: there are steps 0 to 39"):
        analyze([synthetic(steps=40).write()], steps=steps)


def test_steps_of_traces_cannot_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text('{"traceEvents": []}')
    with pytest.raises(InputError, match="of a recorded run only"):
        analyze([tmp_path], steps=(1, 2))
