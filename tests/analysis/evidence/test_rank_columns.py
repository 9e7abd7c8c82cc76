"""Records as columns, checked against the records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.step_files import Rows, add_damaged, append, damage, rows_of, steps_file, table_of_records, tear

from rankscope.analysis.evidence.step_table.rank_columns import (
    LOADED_METRICS,
    METER_METRICS,
    POSTPONED_METRICS,
    RankColumns,
    tags_of,
)
from rankscope.analysis.evidence.step_table.steps import METRICS, StepTable
from rankscope.analysis.evidence.step_table.table_builder import StepRanges, StepTableBuilder
from rankscope.analysis.trace.possible import LAST_STEP, LATEST_NS, MAX_US
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, Phase, PhaseTimes, StepEvent, StepRecord
from rankscope.runs.step_columns import COUNTS, HAS_BLOCKED, MEMORY, event_of

microseconds = st.integers(0, 2**20).map(float)
maybe = st.none() | microseconds
phase_times = st.builds(PhaseTimes, **dict.fromkeys(PHASES, maybe))
records = st.builds(
    StepRecord,
    step=st.integers(0, 40),
    start_unix_ns=st.integers(10**18, 10**18 + 10**9) | st.integers(0, 1000),
    wall_us=microseconds,
    phases_us=phase_times,
    blocked_us=st.none() | phase_times,
    device_us=st.none() | phase_times,
    device_blocked_us=st.none() | phase_times,
    cpu_us=maybe,
    run_queue_us=maybe,
    gc_us=maybe,
    **dict.fromkeys((*COUNTS, *MEMORY), st.none() | st.integers(0, 2**20)),
    flops=maybe,
    profiled=st.booleans(),
    tags=st.lists(st.sampled_from(["checkpoint", "eval"]), max_size=2, unique=True),
)


def own_in_us(record: StepRecord, phase: Phase) -> float | None:
    """Return the time of a phase minus its blocked time, on the device where both are known there."""
    on_device = record.device_us is not None and record.device_blocked_us is not None
    times, blocked = (record.device_us, record.device_blocked_us) if on_device else (record.phases_us, record.blocked_us)
    time = None if times is None else times.get(phase)
    return None if time is None or blocked is None else time - (blocked.get(phase) or 0.0)


def metrics_of(record: StepRecord) -> dict[str, float | None]:
    """Return every metric, computed by the record itself."""
    return {
        "wall_us": record.step_us,
        "own_us": record.own_us,
        "blocked_us": record.blocked_total_us,
        **{f"{phase}_us": record.phases_us.get(phase) for phase in PHASES},
        **{f"own_{phase}_us": own_in_us(record, phase) for phase in PHASES},
        **{name: getattr(record, name) for name in ("samples", "tokens", "flops", *METER_METRICS)},
    }


def columns_of(kept: list[StepRecord]) -> RankColumns:
    return RankColumns.of([rows_of(*kept)]).tagged(tags_of(event for item in kept if (event := event_of(item)) is not None))


def value(columns: RankColumns, name: str) -> NDArray[np.float32]:
    """Return one metric of the entries; NaN where it is unknown."""
    result = columns.metrics.get(name)
    return np.full(len(columns.step), np.nan, np.float32) if result is None else result


@given(st.lists(records, min_size=1, max_size=12, unique_by=lambda record: record.step))
def test_columns_equal_the_records(kept: list[StepRecord]) -> None:
    columns = columns_of(kept)
    assert columns.step.tolist() == [record.step for record in kept]
    assert columns.start.tolist() == [record.start_unix_ns for record in kept]
    assert columns.profiled.tolist() == [record.profiled for record in kept]
    assert {tag: where.tolist() for tag, where in columns.tags.items()} == {
        tag: where for tag in ("checkpoint", "eval") if (where := [at for at, row in enumerate(kept) if tag in row.tags])
    }
    memory = [(at, [getattr(record, name) for name in MEMORY]) for at, record in enumerate(kept)]
    samples = [[at, *values] for at, values in memory if values[0] is not None or values[-1] is not None]
    np.testing.assert_array_equal(columns.memory, np.array(samples, dtype=np.float64).reshape(-1, 1 + len(MEMORY)))
    expected = [metrics_of(record) for record in kept]
    assert set(expected[0]) == set(METRICS)
    for metric in METRICS:
        values = np.array([item[metric] for item in expected], dtype=np.float64)
        np.testing.assert_allclose(value(columns, metric), values, rtol=1e-6, atol=0.25)
        assert np.isnan(values).all() == (metric not in columns.metrics), "only what is known is kept"


@given(st.lists(st.lists(records, max_size=6), max_size=4))
def test_concatenated_blocks_equal_one_block(blocks: list[list[StepRecord]]) -> None:
    together = RankColumns.of([rows_of(*(record for block in blocks for record in block))])
    parts = RankColumns.of([rows_of(*block) for block in blocks])
    assert np.array_equal(parts.step, together.step)
    assert np.array_equal(parts.memory, together.memory, equal_nan=True)
    assert all(np.array_equal(value(parts, name), value(together, name), equal_nan=True) for name in METRICS)


@given(st.lists(records, max_size=12), st.integers(0, 12))
def test_table_keeps_the_last_record_of_each_step(kept: list[StepRecord], cut: int) -> None:
    # Given the records of two ranks, some of them of the same step
    table = table_of_records({0: kept, 3: kept[:cut]})
    for row, of_rank in ((0, kept), (1, kept[:cut])):
        last = {record.step: record for record in of_rank}
        recorded = table.has_record[row]
        assert table.steps[recorded].tolist() == sorted(last)
        assert table.starts(row)[recorded].tolist() == [last[step].start_unix_ns for step in sorted(last)]
        assert table.profiled[row, recorded].tolist() == [last[step].profiled for step in sorted(last)]
        sampled = {record.step for record in of_rank if record.allocated_bytes is not None or record.resident_bytes is not None}
        assert set(table.memory.get((0, 3)[row], np.empty((0, 1)))[:, 0].tolist()) == sampled


def test_tag_of_a_step_applies_to_each_of_its_records() -> None:
    rows = rows_of(*(StepRecord(step=step, start_unix_ns=10**18, wall_us=1.0) for step in (3, 4, 3)))
    events = [
        StepEvent(step=step, end_unix_ns=1, tags=tags) for step, tags in ((3, ["eval"]), (9, ["eval"]), (-1, ["x"]), (4, []))
    ]
    columns = RankColumns.of([rows]).tagged(tags_of(events))
    assert {tag: at.tolist() for tag, at in columns.tags.items()} == {"eval": [0, 2]}


def good_rows() -> Rows:
    """Three records, of which the tests change the second."""
    return rows_of(*(StepRecord(step=step, start_unix_ns=10**18, wall_us=2.0, samples=4) for step in range(3)))


@pytest.mark.parametrize(
    ("name", "impossible"),
    [
        ("step", -1),
        ("step", LAST_STEP + 1),
        ("start_unix_ns", -1),
        ("start_unix_ns", LATEST_NS),
        ("wall_us", -1.0),
        ("wall_us", np.nan),
        ("wall_us", np.inf),
        ("wall_us", MAX_US),
        ("samples", 2**62),
        ("input_elements", 2**63 - 1),
    ],
)
def test_impossible_records_are_left_out_and_counted(name: str, impossible: float) -> None:
    rows = good_rows()
    rows[name][1] = impossible
    columns = RankColumns.of([rows])
    assert (columns.step.tolist(), columns.damaged) == ([0, 2], 1)
    first, second = RankColumns.of_each(np.concatenate([rows, good_rows()]), [3, 3])
    assert (first.step.tolist(), first.damaged) == ([0, 2], 1)
    assert (second.step.tolist(), second.damaged) == ([0, 1, 2], 0)


@pytest.mark.parametrize("absurd", [np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_absurd_times_are_unknown_and_leave_other_values(absurd: float) -> None:
    rows = good_rows()
    for name in ("data_us", "forward_us", "blocked_forward_us", "cpu_us", "flops"):
        rows[name][1] = absurd
    rows["blocked_forward_us"][2] = 1.0
    rows["flags"] = HAS_BLOCKED
    rows["backward_us"] = 7.0
    columns = RankColumns.of([rows])
    assert (columns.step.tolist(), columns.damaged) == ([0, 1, 2], 0)
    for name in ("data_us", "forward_us", "cpu_us", "flops", "own_data_us"):
        assert np.isnan(value(columns, name)).all()
        assert name not in columns.values
    assert value(columns, "backward_us").tolist() == [7.0] * 3
    assert value(columns, "wall_us").tolist() == [2.0] * 3


def test_input_rows_are_not_modified() -> None:
    # Given one row whose columns already have the right layout, in read-only memory
    rows = rows_of(StepRecord(step=1, start_unix_ns=10**18, wall_us=9.0, blocked_us=PhaseTimes(backward=2.0)))
    before = rows.tobytes()
    for item in (rows, np.frombuffer(before, rows.dtype)):
        columns = RankColumns.of([item])
        assert value(columns, "own_us").tolist() == [7.0]
    assert rows.tobytes() == before


@pytest.mark.parametrize("name", [*COUNTS, *MEMORY])
def test_negative_counts_are_unknown(name: str) -> None:
    rows = good_rows()
    rows["resident_bytes"] = 5
    for count in COUNTS:
        rows[count] = 4
    rows[name][1] = -7
    columns = RankColumns.of([rows])
    if name in COUNTS:
        np.testing.assert_array_equal(value(columns, name), [4, np.nan, 4])
    elif name == "resident_bytes":
        assert columns.memory[:, 0].tolist() == [0, 2]
    else:
        assert np.isnan(columns.memory[:, 1 + MEMORY.index(name)]).all()
    assert columns.damaged == 0


@given(st.lists(st.lists(st.sampled_from(["plain", "impossible", "sampled"]), min_size=1, max_size=4), min_size=1, max_size=4))
def test_rows_of_several_ranks_are_split_into_those_of_each(kinds: list[list[str]]) -> None:
    def row(step: int, kind: str) -> StepRecord:
        wall_us = -1.0 if kind == "impossible" else 100.0 + step
        allocated = 1000 + step if kind == "sampled" else None
        return StepRecord(step=step, start_unix_ns=10**18, wall_us=wall_us, allocated_bytes=allocated)

    each = [rows_of(*(row(10 * rank + at, kind) for at, kind in enumerate(of_rank))) for rank, of_rank in enumerate(kinds)]
    result = RankColumns.of_each(np.concatenate(each), [len(rows) for rows in each])
    for several, alone in zip(result, [RankColumns.of([rows]) for rows in each], strict=True):
        assert several.damaged == alone.damaged
        assert np.array_equal(several.step, alone.step)
        assert np.array_equal(several.start, alone.start)
        assert np.array_equal(several.memory, alone.memory, equal_nan=True)
        assert all(np.array_equal(value(several, name), value(alone, name), equal_nan=True) for name in METRICS)


@given(st.lists(records, max_size=12, unique_by=lambda record: record.step), st.data())
def test_selected_entries_equal_those_of_the_selected_records(kept: list[StepRecord], data: st.DataObject) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(kept), max_size=len(kept)))
    some = columns_of(kept).where(np.array(keep, dtype=bool))
    alone = columns_of([record for record, wanted in zip(kept, keep, strict=True) if wanted])
    assert np.array_equal(some.step, alone.step)
    assert np.array_equal(some.memory, alone.memory, equal_nan=True)
    assert {tag: at.tolist() for tag, at in some.tags.items() if len(at)} == {tag: at.tolist() for tag, at in alone.tags.items()}
    assert all(np.array_equal(value(some, name), value(alone, name), equal_nan=True) for name in METRICS)


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(records, max_size=5)), max_size=6), st.booleans())
def test_incrementally_filled_table_equals_one_of_all_records(
    added: list[tuple[int, list[StepRecord]]], ranks_first: bool
) -> None:
    # Given records of three ranks that come in any order, steps before others and again among them
    builder = StepTableBuilder()
    every: dict[int, list[StepRecord]] = {rank: [] for rank in range(3)}
    if ranks_first:
        builder.add_ranks(every)
    for rank, kept in added:
        builder.add_ranks([rank])
        # Tags of a step that is recorded again are those of all its records: here they stay unchanged.
        plain = [StepRecord(**{name: getattr(item, name) for name in item.__struct_fields__ if name != "tags"}) for item in kept]
        builder.add(rank, RankColumns.of([rows_of(*plain)]))
        every[rank] += plain
    builder.add_ranks(every)
    table, whole = StepTable.from_builder(0, builder), table_of_records(every)
    assert table.steps.tolist() == whole.steps.tolist()
    assert all(np.array_equal(table.matrix(name), whole.matrix(name), equal_nan=True) for name in METRICS)
    assert all(np.array_equal(table.starts(row), whole.starts(row)) for row in range(3))
    assert np.array_equal(table.profiled, whole.profiled)
    assert table.memory.keys() == whole.memory.keys()
    for rank, samples in table.memory.items():
        last = dict(zip(samples[:, 0].tolist(), samples[:, 1:].tolist(), strict=True))
        np.testing.assert_equal(
            last, dict(zip(whole.memory[rank][:, 0].tolist(), whole.memory[rank][:, 1:].tolist(), strict=True))
        )


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), max_size=4), st.data())
def test_bulk_insert_equals_insert_by_rank(turns: list[list[int]], data: st.DataObject) -> None:
    at_once, one_by_one = StepTableBuilder(), StepTableBuilder()
    for builder in (at_once, one_by_one):
        builder.add_ranks(range(3))
    for steps in turns:
        ranks = data.draw(st.lists(st.integers(0, 2), min_size=1, unique=True))
        rows = rows_of(*data.draw(st.lists(records, min_size=len(ranks) * len(steps), max_size=len(ranks) * len(steps))))
        rows["step"] = steps * len(ranks)
        tags: dict[str, NDArray[np.int64]] = {"eval": np.array(steps[:1])}
        at_once.add_alike(ranks, RankColumns.of([rows]).tagged(tags), len(steps))
        for number, rank in enumerate(ranks):
            part = rows[number * len(steps) : (number + 1) * len(steps)]
            one_by_one.add(rank, RankColumns.of([part]).tagged(tags))
    ours, theirs = StepTable.from_builder(0, at_once), StepTable.from_builder(0, one_by_one)
    assert ours.steps.tolist() == theirs.steps.tolist()
    assert ours.last_end_unix_ns == theirs.last_end_unix_ns
    for name in METRICS:
        np.testing.assert_array_equal(ours.matrix(name), theirs.matrix(name), err_msg=name)
    assert all(np.array_equal(ours.starts(row), theirs.starts(row)) for row in range(3))
    assert np.array_equal(ours.profiled, theirs.profiled)
    assert np.array_equal(ours.tagged("eval"), theirs.tagged("eval"))
    np.testing.assert_equal(ours.memory, theirs.memory)


@pytest.mark.parametrize("first", [0, 1])
def test_own_time_is_unknown_for_ranks_without_a_wait_signal(first: int) -> None:
    # Given a rank that waited for no other in its forward phase, and one whose waits are unknown
    times: dict[str, Any] = {"start_unix_ns": 10**18, "wall_us": 9.0, "phases_us": PhaseTimes(forward=5.0)}
    kept = [StepRecord(step=0, **times, blocked_us=blocked) for blocked in (PhaseTimes(backward=1.0), None)]
    builder = StepTableBuilder()
    for rank in (first, 1 - first):
        builder.add_ranks([rank])
        builder.add(rank, RankColumns.of([rows_of(kept[rank])]))
    table = StepTable.from_builder(0, builder)
    assert table.matrix("forward_us").tolist() == [[5.0], [5.0]]
    np.testing.assert_array_equal(table.matrix("own_forward_us"), [[5.0], [np.nan]])
    np.testing.assert_array_equal(table.matrix("own_us"), [[8.0], [np.nan]])


def test_dropped_steps_leave_the_later_steps() -> None:
    kept = [StepRecord(step=step, start_unix_ns=10**18, wall_us=1.0 + step, resident_bytes=step) for step in range(9)]
    builder = StepTableBuilder()
    builder.add_ranks([0])
    builder.add(0, RankColumns.of([rows_of(*kept)]))
    builder.drop_before(6)
    table = StepTable.from_builder(0, builder)
    assert table.steps.tolist() == [6, 7, 8]
    assert table.matrix("wall_us").tolist() == [[7, 8, 9]]
    assert table.memory[0][:, 0].tolist() == [6, 7, 8]


@given(st.lists(records, max_size=12), st.lists(st.integers(0, 12), max_size=2))
def test_postponed_metrics_equal_those_of_the_records(kept: list[StepRecord], cuts: list[int]) -> None:
    first, last = min(cuts, default=0), max(cuts, default=0)
    blocks = [rows_of(*part) for part in (kept[:first], kept[first:last], kept[last:])]
    at_once, later = RankColumns.of([rows_of(*kept)]), RankColumns.of(blocks, POSTPONED_METRICS)
    assert np.array_equal(later.step, at_once.step)
    assert np.array_equal(later.start, at_once.start)
    for name in POSTPONED_METRICS:
        assert np.array_equal(value(later, name), value(at_once, name), equal_nan=True)
    without = RankColumns.of(blocks, LOADED_METRICS)
    assert without.postponed == {name for name in POSTPONED_METRICS if name in at_once.metrics}
    assert not without.values.keys() & set(POSTPONED_METRICS)


# Files -------------------------------------------------------------------------------------------------------------------------


def test_ranks_keep_their_order_with_any_number_of_threads(
    synthetic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Path = synthetic(ranks=9, steps=30).write()
    add_damaged(steps_file(run, 2), 2)
    tear(steps_file(run, 5))
    damage(steps_file(run, 5), 3)
    (rank_dir(run, 0, 7) / "steps-000001.npy").mkdir()
    collected = []
    for cores in ({0}, {0, 1, 2, 3}):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: cores)
        reader = RunReader(run)
        reports: list[tuple[int, int]] = []
        table = StepTable.load(reader, report=lambda *number: reports.append(number))  # noqa: B023 - used before the next iteration
        assert reports == [(number, 9) for number in range(1, 10)]
        collected.append((table, reader.skipped_lines, reader.unusable))
    (result, *of_one), (several, *of_several) = collected
    assert of_one == of_several == [4, [rank_dir(run, 0, 7) / "steps-000001.npy"]]
    assert all(np.array_equal(result.matrix(metric), several.matrix(metric), equal_nan=True) for metric in METRICS)
    assert all(np.array_equal(result.starts(row), several.starts(row)) for row in range(9))
    assert result.has_record.sum(axis=1).tolist() == [30] * 5 + [28] + [30] * 3


def test_tags_come_from_the_events_of_the_rank(synthetic: Callable[..., Any]) -> None:
    run: Path = synthetic(ranks=2, steps=8).write()
    append(rank_dir(run, 0, 1), "events", StepEvent(step=5, end_unix_ns=1, tags=["eval"]), StepEvent(step=50, end_unix_ns=1))
    table = StepTable.load(RunReader(run))
    assert np.argwhere(table.tagged("eval")).tolist() == [[1, 5]]
    assert not table.tagged("checkpoint").any()


@given(st.lists(st.lists(st.integers(0, 60))))
def test_step_ranges_count_distinct_steps(added: list[list[int]]) -> None:
    ranges = StepRanges()
    for steps in added:
        ranges.add(np.array(steps, dtype=np.int64))
    assert ranges.count == len({step for steps in added for step in steps})
