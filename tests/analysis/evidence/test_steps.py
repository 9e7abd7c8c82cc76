"""Step table: its rows, the chosen metrics, and the last steps of runs with more records than are read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.step_files import StepWriter, keep_rows, rows_of, steps_file, table_of_records

from rankscope.analysis.evidence.step_table.rank_columns import ALL_METRICS, BLOCKED_METRICS, POSTPONED_METRICS, RankColumns
from rankscope.analysis.evidence.step_table.steps import METRICS, StepTable
from rankscope.analysis.run_analysis import analysis_of, read_evidence
from rankscope.base.errors import InputError
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, PhaseTimes, RunInfo, StepRecord
from rankscope.runs.small_files import create_run
from rankscope.runs.step_columns import MEMORY


def record(step: int, **fields: Any) -> StepRecord:
    return StepRecord(step=step, start_unix_ns=10**18 + step, wall_us=fields.pop("wall_us", 100.0), **fields)


def test_table_axes_are_ranks_and_steps_and_gaps_are_nan() -> None:
    table = table_of_records({5: [record(2), record(3)], 1: [record(3, wall_us=7.0)], 9: []})
    assert table.ranks.tolist() == [1, 5, 9]
    assert table.steps.tolist() == [2, 3]
    wall = table.matrix("wall_us")
    assert wall[0, 1] == 7
    assert wall[1].tolist() == [100, 100]
    assert np.isnan(wall[0, 0])
    assert np.isnan(wall[2]).all()
    assert table.has_record.tolist() == [[False, True], [True, True], [False, False]]


def test_missing_metrics_are_nan_and_not_zero() -> None:
    table = table_of_records({0: [record(0)]})
    unknown = set(METRICS) - {"wall_us"}
    assert all(np.isnan(table.matrix(name)).all() for name in unknown)


def test_own_time_is_wall_minus_blocked_time_also_per_phase() -> None:
    row = record(
        0, phases_us=PhaseTimes(forward=40.0, backward=60.0), blocked_us=PhaseTimes(backward=25.0), profiled=True, tags=["eval"]
    )
    table = table_of_records({0: [row]})
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


def test_own_time_on_a_device_needs_its_wait_signal() -> None:
    host, device = PhaseTimes(forward=40.0, backward=60.0), PhaseTimes(forward=30.0, backward=90.0)
    waits = PhaseTimes(backward=50.0)
    step_record = record(0, phases_us=host, device_us=device, device_blocked_us=waits)
    assert (step_record.own_us, step_record.blocked_total_us) == (70, 50)
    # Without a signal of the device's waiting, own time is unknown; the host's waiting is a different quantity.
    unknown = record(1, phases_us=host, device_us=device)
    assert unknown.own_us is None
    # Without device times the host's times are used.
    unread = record(2, phases_us=host, blocked_us=waits)
    assert unread.own_us == 50
    table = table_of_records({0: [step_record, unknown, unread]})
    assert table.matrix("own_backward_us")[0].tolist()[::2] == [40, 10]
    assert table.matrix("own_forward_us")[0].tolist()[::2] == [30, 40]
    assert np.isnan(table.matrix("own_forward_us")[0, 1])
    # So is the step's time, also without its waiting: the host waits for the device at some steps only.
    assert [step_record.step_us, unknown.step_us, unread.step_us] == table.matrix("wall_us")[0].tolist() == [120, 120, 100]
    assert np.isnan(table.matrix("own_us")[0, 1])


def test_last_record_of_a_step_counts() -> None:
    assert table_of_records({0: [record(0), record(0, wall_us=3.0)]}).matrix("wall_us").tolist() == [[3]]


def test_loading_uses_the_last_attempt_and_refuses_a_missing_one(synthetic: Callable[..., Any]) -> None:
    reader = RunReader(synthetic(steps=3).write())
    assert StepTable.load(reader).matrix("wall_us").shape == (4, 3)
    assert StepTable.load(reader, 0).attempt == 0
    with pytest.raises(InputError, match="no attempt 7"):
        StepTable.load(reader, 7)


def test_run_without_an_attempt_is_an_empty_table(tmp_path: Path) -> None:
    create_run(tmp_path, RunInfo(run_id="r", name="r", start_unix_ns=1))
    table = StepTable.load(RunReader(tmp_path))
    assert table.matrix("own_us").shape == (0, 0)


@pytest.mark.parametrize("fields", [{"wall_us": -1.0}, {"wall_us": 1e300}, {"input_elements": 10**400}])
def test_impossible_records_are_left_out_and_counted(fields: dict[str, Any]) -> None:
    table = table_of_records({0: [record(0), record(1, **fields), record(2**63)]})
    assert (table.steps.tolist(), table.damaged) == ([0], {0: 2})


def test_selected_steps_of_a_table_equal_those_of_the_whole() -> None:
    table = table_of_records({rank: [record(step, wall_us=10.0 * rank + step) for step in range(9)] for rank in (0, 1)})
    for part in (table, table.columns(table.steps % 3 > 0), table.columns(table.steps > 4)):
        for name in ("wall_us", "cpu_us"):
            whole = part.matrix(name)
            assert np.array_equal(part.stored(name), whole, equal_nan=True)
            assert np.array_equal(part.some(name, slice(1, 3)), whole[:, 1:3], equal_nan=True)
            assert np.array_equal(part.of_rank(name, 1), whole[1], equal_nan=True)


def test_last_end_is_the_latest_of_all_ranks() -> None:
    assert table_of_records({0: []}).last_end_unix_ns == 0
    table = table_of_records({0: [record(0, wall_us=5e6), record(1)], 3: [record(1)]})
    assert table.last_end_unix_ns == pytest.approx(10**18 + 5e9, rel=1e-15)


RANKS, STEPS, LAST = 4, 400, 100


@pytest.fixture
def run(synthetic: Callable[..., Any]) -> Any:
    """A run whose rank 1 is slow in its first half, and rank 3 at its end."""

    def plan(rank: int, step: int) -> dict[str, int] | None:
        return {"us": 60_000} if rank == (1 if step < STEPS // 2 else 3) else None

    return synthetic(ranks=RANKS, steps=STEPS, plan=plan).write()


def test_last_steps_are_judged_and_the_earlier_ones_counted(run: Any) -> None:
    whole = read_evidence(run)
    evidence = read_evidence(run, most_records=RANKS * LAST)
    assert evidence.table.steps.tolist() == list(range(STEPS - LAST, STEPS))
    assert evidence.earlier.records == dict.fromkeys(range(RANKS), STEPS - LAST)
    analysis = analysis_of(evidence)
    assert (analysis.verdict.rank, analysis.source.steps, analysis.source.coverage) == (3, STEPS, 1.0)
    assert f"judged by the last {LAST} of {STEPS} steps" in analysis.source.warnings
    before = whole.table.columns(whole.table.steps < STEPS - LAST)
    for row, rank in enumerate(evidence.ranks):
        assert evidence.earlier.wall_us[rank] == pytest.approx(before.of_rank("wall_us", row).sum(), rel=0.01)


def test_last_steps_are_those_of_the_job_and_not_of_an_ended_rank(synthetic: Callable[..., Any]) -> None:
    job = synthetic(ranks=RANKS, steps=STEPS).write()
    keep_rows(steps_file(job, 2), STEPS // 2)
    evidence = read_evidence(job, most_records=RANKS * LAST)
    assert evidence.table.steps.tolist() == list(range(STEPS - LAST, STEPS))


def test_unreadable_ranks_cost_only_themselves(run: Any) -> None:
    lost, damaged = rank_dir(run, 0, 0), rank_dir(run, 0, 2)
    shutil.rmtree(lost)
    lost.symlink_to(lost.name)
    for file in damaged.glob("steps-*.npy"):
        file.write_bytes(b"no steps")
    evidence = read_evidence(run, most_records=2 * LAST)
    assert evidence.table.steps.tolist() == list(range(STEPS - LAST // 2, STEPS))
    assert analysis_of(evidence).verdict.rank == 3


def test_run_within_the_limit_is_read_completely(run: Any) -> None:
    evidence = read_evidence(run, most_records=RANKS * STEPS)
    assert len(evidence.table.steps) == STEPS
    assert evidence.earlier.steps == 0


@pytest.mark.parametrize("last", [0, 1, 7, 80, 200, 2_000])
def test_the_last_records_of_a_rank_may_be_in_several_segments(tmp_path: Path, last: int) -> None:
    create_run(tmp_path / "run", RunInfo(run_id="run", name="run", start_unix_ns=1))
    folder = rank_dir(tmp_path / "run", 0, 2)
    writer = StepWriter(folder, rank=2, segment_bytes=4_096)
    for step in range(200):
        writer.append(StepRecord(step=step, start_unix_ns=1 + step, wall_us=1.0))
    writer.close()
    assert len(list(folder.glob("steps-*.npy"))) > 5
    steps = [int(step) for rows in RunReader(tmp_path / "run").step_rows(0, 2, last=last) for step in rows["step"]]
    assert steps == list(range(max(0, 200 - last), 200))


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
def test_requested_metrics_equal_those_of_a_full_load(blocks: list[list[StepRecord]], metrics: set[str]) -> None:
    rows = [rows_of(*block) for block in blocks]
    every, some = RankColumns.of(rows), RankColumns.of(rows, metrics)
    assert some.values.keys() | some.same <= metrics
    assert all(np.array_equal(value(some, name), value(every, name), equal_nan=True) for name in metrics & METRICS.keys())
    assert some.postponed == {name for name in POSTPONED_METRICS if name in every.metrics} - metrics
    assert len(some.memory) == (len(every.memory) if metrics & set(MEMORY) else 0)
    assert np.array_equal(some.step, every.step)


@given(blocks_of_records)
def test_blocked_time_uses_the_clock_of_the_own_time(blocks: list[list[StepRecord]]) -> None:
    columns = RankColumns.of([rows_of(*block) for block in blocks], (*ALL_METRICS, *BLOCKED_METRICS))
    for phase in PHASES:
        result = np.nan_to_num(value(columns, f"blocked_{phase}_us"))
        for blocked, record in zip(result.tolist(), (record for block in blocks for record in block), strict=True):
            on_device = record.device_us is not None and record.device_blocked_us is not None
            times = record.device_blocked_us if on_device else record.blocked_us
            assert blocked == ((times and times.get(phase)) or 0.0)
    assert not RankColumns.of([rows_of(*block) for block in blocks]).values.keys() & set(BLOCKED_METRICS)


def test_own_time_is_loaded_without_the_phase_time() -> None:
    # Given a rank that never waited in forward, so that its own time is the same as all
    rows = rows_of(
        *(StepRecord(step=0, start_unix_ns=1, wall_us=9.0, phases_us=PhaseTimes(forward=7.0), blocked_us=PhaseTimes()),)
    )
    assert RankColumns.of([rows]).same >= {"own_forward_us"}
    alone = RankColumns.of([rows], ["own_forward_us"])
    assert (alone.same, alone.values["own_forward_us"].tolist()) == (frozenset(), [7.0])


@pytest.mark.parametrize("metrics", [["own_forward_us"], ["wall_us", "own_backward_us", "blocked_backward_us"]])
def test_table_has_the_requested_metrics(synthetic: Callable[..., Any], metrics: list[str]) -> None:
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
