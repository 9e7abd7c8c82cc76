"""Order statistics over the ranks at each step, of large matrices and small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from rankscope.analysis.evidence import order
from rankscope.analysis.evidence.order import last_ranks, of_blocks, ordered
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.inference.judging.excess import excess
from rankscope.analysis.run_analysis import analyze_run
from rankscope.runs.records import StepRecord

matrices = st.tuples(st.integers(2, 7), st.integers(0, 600)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0, 1.5, 7.0, 2.0**24, 2.0**24 + 2]))
)


@given(matrices)
def test_places_are_those_of_a_sort_and_the_last_is_the_first_maximum(values: NDArray[np.float32]) -> None:
    places = [0, len(values) // 2, len(values) - 1]
    assert np.array_equal(ordered(values, places), np.sort(values, axis=0)[places])
    assert np.array_equal(last_ranks(values), values.argmax(axis=0))


@given(matrices)
def test_excess_is_over_the_median_of_the_others_to_the_last_digit(values: NDArray[np.float32]) -> None:
    wide = values.astype(np.float64)
    expected = [wide[row] - np.median(np.delete(wide, row, axis=0), axis=0) for row in range(len(wide))]
    assert np.array_equal(excess(values), np.reshape(expected, wide.shape))


def test_side_by_side_is_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_WORTH_A_THREAD", 0)
    result = of_blocks((2, 1000), lambda steps: (steps.start, steps.stop))
    assert result == [(0, 256), (256, 512), (512, 768), (768, 1000)]


def test_a_run_is_judged_alike_on_one_core_and_on_several(synthetic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = synthetic(plan=lambda rank, _: {"us": 40_000.0, "phase": "forward"} if rank == 2 else None, ranks=4, steps=600).write()
    alone = analyze_run(run)
    monkeypatch.setattr(order, "_WORTH_A_THREAD", 0)
    assert analyze_run(run) == alone


def record(step: int, **fields: Any) -> StepRecord:
    return StepRecord(step=step, start_unix_ns=10**18 + step, wall_us=fields.pop("wall_us", 100.0), **fields)


def test_a_table_tells_some_steps_as_it_tells_all() -> None:
    table = StepTable.from_records(0, {rank: [record(step, wall_us=10.0 * rank + step) for step in range(9)] for rank in (0, 1)})
    for part in (table, table.columns(table.steps % 3 > 0), table.columns(table.steps > 4)):
        for name in ("wall_us", "cpu_us"):
            whole = part.matrix(name)
            assert np.array_equal(part.stored(name), whole, equal_nan=True)
            assert np.array_equal(part.some(name, slice(1, 3)), whole[:, 1:3], equal_nan=True)
            assert np.array_equal(part.of_rank(name, 1), whole[1], equal_nan=True)


def test_the_last_end_is_the_latest_of_all_ranks() -> None:
    assert StepTable.from_records(0, {0: []}).last_end_unix_ns == 0
    table = StepTable.from_records(0, {0: [record(0, wall_us=5e6), record(1)], 3: [record(1)]})
    assert table.last_end_unix_ns == pytest.approx(10**18 + 5e9, rel=1e-15)
