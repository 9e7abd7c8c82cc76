"""Selection of metrics when rows are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.step_files import rows_of

from rankscope.analysis.evidence.step_table.rank_columns import ALL_METRICS, BLOCKED_METRICS, POSTPONED_METRICS, RankColumns
from rankscope.analysis.evidence.step_table.steps import METRICS, StepTable
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, PhaseTimes, StepRecord
from rankscope.runs.step_columns import MEMORY

maybe = st.none() | st.integers(0, 3).map(float)
phase_times = st.builds(PhaseTimes, **dict.fromkeys(PHASES, maybe))
records = st.builds(
    StepRecord,
    step=st.integers(0, 40),
    start_unix_ns=st.just(10**18),
    wall_us=st.integers(0, 9).map(float),
    phases_us=phase_times,
    blocked_us=st.none() | phase_times,
    device_us=st.none() | phase_times,
    device_blocked_us=st.none() | phase_times,
    gc_us=maybe,
    input_elements=st.none() | st.integers(0, 9),
    model_elements=st.none() | st.integers(0, 9),
    resident_bytes=st.none() | st.integers(0, 9),
)
blocks_of_records = st.lists(st.lists(records, max_size=4), max_size=3)


def value(columns: RankColumns, name: str) -> NDArray[np.float32]:
    """Return one metric of the entries; NaN where it is unknown."""
    result = columns.values.get(name.removeprefix("own_") if name in columns.same else name)
    return np.full(len(columns.step), np.nan, np.float32) if result is None else result


@given(blocks_of_records, st.sets(st.sampled_from([*METRICS, *MEMORY])))
def test_what_is_asked_for_is_as_among_all_and_nothing_else_is_kept(blocks: list[list[StepRecord]], metrics: set[str]) -> None:
    rows = [rows_of(*block) for block in blocks]
    every, some = RankColumns.of(rows), RankColumns.of(rows, metrics)
    assert some.values.keys() | some.same <= metrics
    assert all(np.array_equal(value(some, name), value(every, name), equal_nan=True) for name in metrics & METRICS.keys())
    assert some.postponed == {name for name in POSTPONED_METRICS if name in every.metrics} - metrics
    assert len(some.memory) == (len(every.memory) if metrics & set(MEMORY) else 0)
    assert np.array_equal(some.step, every.step)


@given(blocks_of_records)
def test_blocked_time_is_on_the_clock_of_the_own_time(blocks: list[list[StepRecord]]) -> None:
    columns = RankColumns.of([rows_of(*block) for block in blocks], (*ALL_METRICS, *BLOCKED_METRICS))
    for phase in PHASES:
        result = np.nan_to_num(value(columns, f"blocked_{phase}_us"))
        for blocked, record in zip(result.tolist(), (record for block in blocks for record in block), strict=True):
            on_device = record.device_us is not None and record.device_blocked_us is not None
            times = record.device_blocked_us if on_device else record.blocked_us
            assert blocked == ((times and times.get(phase)) or 0.0)
    assert not RankColumns.of([rows_of(*block) for block in blocks]).values.keys() & set(BLOCKED_METRICS)


def test_own_time_needs_no_time_of_the_phase_beside_it() -> None:
    # Given a rank that never waited in forward, so that its own time is the same as all
    rows = rows_of(
        *(StepRecord(step=0, start_unix_ns=1, wall_us=9.0, phases_us=PhaseTimes(forward=7.0), blocked_us=PhaseTimes()),)
    )
    assert RankColumns.of([rows]).same >= {"own_forward_us"}
    alone = RankColumns.of([rows], ["own_forward_us"])
    assert (alone.same, alone.values["own_forward_us"].tolist()) == (frozenset(), [7.0])


@pytest.mark.parametrize("metrics", [["own_forward_us"], ["wall_us", "own_backward_us", "blocked_backward_us"]])
def test_a_table_has_the_metrics_that_it_is_loaded_with(synthetic: Callable[..., Any], metrics: list[str]) -> None:
    def late(rank: int, step: int) -> dict[str, Any]:
        return {"blocked_us": PhaseTimes(forward=3.0 * (rank == 2 and step == 4), backward=5.0 * (rank > 0))}

    run: Path = synthetic(ranks=4, steps=8, fields=late).write()
    every, some = StepTable.load(RunReader(run)), StepTable.load(RunReader(run), metrics=metrics)
    for name in metrics:
        if name in METRICS:
            assert np.array_equal(some.matrix(name), every.matrix(name), equal_nan=True)
    for name in ("data_us", "own_optimizer_us", "gc_us"):
        assert np.array_equal(some.matrix(name), every.matrix(name), equal_nan=True)
    assert some.memory == {}
    if "blocked_backward_us" in metrics:
        assert np.nan_to_num(some.stored("blocked_backward_us")).tolist() == [[5.0 * (rank > 0)] * 8 for rank in range(4)]
        assert not some.is_known("blocked_data_us")
