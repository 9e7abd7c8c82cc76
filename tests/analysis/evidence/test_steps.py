"""Step table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.analysis.evidence.step_table.steps import METRICS, StepTable
from rankscope.analysis.inference.judging.excess import excess
from rankscope.base.errors import InputError
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PhaseTimes, RunInfo, StepRecord
from rankscope.runs.small_files import create_run


def record(step: int, **fields: Any) -> StepRecord:
    return StepRecord(step=step, start_unix_ns=1000 + step, wall_us=fields.pop("wall_us", 100.0), **fields)


def test_ranks_and_steps_are_the_axes_and_gaps_are_nan() -> None:
    table = StepTable.from_records(0, {5: [record(2), record(3)], 1: [record(3, wall_us=7.0)], 9: []})
    assert table.ranks.tolist() == [1, 5, 9]
    assert table.steps.tolist() == [2, 3]
    wall = table.matrix("wall_us")
    assert wall[0, 1] == 7
    assert wall[1].tolist() == [100, 100]
    assert np.isnan(wall[0, 0])
    assert np.isnan(wall[2]).all()
    assert table.has_record.tolist() == [[False, True], [True, True], [False, False]]


def test_missing_is_nan_and_not_zero() -> None:
    table = StepTable.from_records(0, {0: [record(0)]})
    unknown = set(METRICS) - {"wall_us"}
    assert all(np.isnan(table.matrix(name)).all() for name in unknown)


def test_own_time_is_wall_without_blocked_also_per_phase() -> None:
    row = record(
        0, phases_us=PhaseTimes(forward=40.0, backward=60.0), blocked_us=PhaseTimes(backward=25.0), profiled=True, tags=["eval"]
    )
    table = StepTable.from_records(0, {0: [row]})
    values = {
        name: table.matrix(name)[0, 0]
        for name in ("own_us", "blocked_us", "forward_us", "backward_us", "own_forward_us", "own_backward_us")
    }
    assert values == {
        "own_us": 75,
        "blocked_us": 25,
        "forward_us": 40,
        "backward_us": 60,
        "own_forward_us": 40,
        "own_backward_us": 35,
    }
    assert table.profiled.tolist() == [[True]]
    assert table.tagged("eval").tolist() == [[True]]
    assert table.tagged("checkpoint").tolist() == [[False]]


def test_on_a_device_own_time_is_the_devices_where_its_waiting_is_known() -> None:
    host, device = PhaseTimes(forward=40.0, backward=60.0), PhaseTimes(forward=30.0, backward=90.0)
    waits = PhaseTimes(backward=50.0)
    result = record(0, phases_us=host, device_us=device, device_blocked_us=waits)
    assert (result.own_us, result.blocked_total_us) == (70, 50)
    # Without a signal of the device's waiting, own time is unknown; the host's waiting is a different quantity.
    unknown = record(1, phases_us=host, device_us=device)
    assert unknown.own_us is None
    # Without device times the host's times are used.
    unread = record(2, phases_us=host, blocked_us=waits)
    assert unread.own_us == 50
    table = StepTable.from_records(0, {0: [result, unknown, unread]})
    assert table.matrix("own_backward_us")[0].tolist()[::2] == [40, 10]
    assert table.matrix("own_forward_us")[0].tolist()[::2] == [30, 40]
    assert np.isnan(table.matrix("own_forward_us")[0, 1])
    # So is the step's time, also without its waiting: the host waits for the device at some steps only.
    assert [result.step_us, unknown.step_us, unread.step_us] == table.matrix("wall_us")[0].tolist() == [120, 120, 100]
    assert np.isnan(table.matrix("own_us")[0, 1])


def test_a_step_written_twice_counts_as_last_written() -> None:
    assert StepTable.from_records(0, {0: [record(0), record(0, wall_us=3.0)]}).matrix("wall_us").tolist() == [[3]]


def test_loading_takes_the_last_attempt_and_refuses_one_that_is_not_there(synthetic: Callable[..., Any]) -> None:
    reader = RunReader(synthetic(steps=3).write())
    assert StepTable.load(reader).matrix("wall_us").shape == (4, 3)
    assert StepTable.load(reader, 0).attempt == 0
    with pytest.raises(InputError, match="no attempt 7"):
        StepTable.load(reader, 7)


def test_a_run_without_an_attempt_is_an_empty_table(tmp_path: Path) -> None:
    create_run(tmp_path, RunInfo(run_id="r", name="r", start_unix_ns=1))
    table = StepTable.load(RunReader(tmp_path))
    assert table.matrix("own_us").shape == (0, 0)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_excess_is_over_the_median_of_the_others(ranks: int) -> None:
    values = np.random.default_rng(ranks).normal(size=(ranks, 30)).round(1)
    slow = np.array([[values[r, s] - np.median(np.delete(values[:, s], r)) for s in range(30)] for r in range(ranks)])
    assert np.allclose(excess(values), slow)


@pytest.mark.parametrize("fields", [{"wall_us": -1.0}, {"wall_us": 1e300}, {"input_elements": 10**400}])
def test_impossible_records_are_left_out_and_counted(fields: dict[str, Any]) -> None:
    table = StepTable.from_records(0, {0: [record(0), record(1, **fields), record(2**63)]})
    assert (table.steps.tolist(), table.damaged) == ([0], {0: 2})
