"""Records as columns, against what the records say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.rank_columns import RankColumns
from rankscope.analysis.step_ranges import StepRanges
from rankscope.analysis.step_rows import MEMORY, StepRow, columns_of
from rankscope.analysis.steps import METRICS, StepTable
from rankscope.analysis.workers import LocalEngine
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, PhaseTimes, StepRecord
from rankscope.runs.segments import decode_blocks

microseconds = st.integers(0, 2**20).map(float)
maybe = st.none() | microseconds
phase_times = st.builds(PhaseTimes, **dict.fromkeys(PHASES, maybe))
records = st.builds(
    StepRecord,
    step=st.integers(0, 40),
    # Recorded ones are large; small ones take another way through the decoder.
    start_unix_ns=st.integers(10**18, 10**18 + 10**9) | st.integers(0, 1000),
    wall_us=microseconds,
    phases_us=phase_times,
    blocked_us=st.none() | phase_times,
    device_us=st.none() | phase_times,
    device_blocked_us=st.none() | phase_times,
    cpu_us=maybe,
    run_queue_us=maybe,
    gc_us=maybe,
    **dict.fromkeys(("samples", "tokens", "input_elements", *MEMORY), st.none() | st.integers(0, 2**20)),
    flops=maybe,
    profiled=st.booleans(),
    tags=st.lists(st.sampled_from(["checkpoint", "eval"]), max_size=2, unique=True),
)


def said_by(record: StepRecord) -> dict[str, float | None]:
    """Every metric, as the record itself has it."""
    return {
        "wall_us": record.wall_us,
        "own_us": record.own_us,
        "blocked_us": record.blocked_total_us,
        **{f"{phase}_us": record.phases_us.get(phase) for phase in PHASES},
        **{f"own_{phase}_us": record.own_in_us(phase) for phase in PHASES},
        **{
            name: getattr(record, name)
            for name in ("cpu_us", "run_queue_us", "gc_us", "input_elements", "samples", "tokens", "flops")
        },
    }


def columns_from_lines(rows: list[StepRecord]) -> RankColumns:
    lines = msgspec.json.Encoder().encode_lines(rows)
    return RankColumns.of(columns_of(block) for block, _ in decode_blocks([lines], msgspec.json.Decoder(StepRow)))


@given(st.lists(records, min_size=1, max_size=12))
def test_columns_say_what_the_records_say(rows: list[StepRecord]) -> None:
    columns = columns_from_lines(rows)
    assert columns.step.tolist() == [row.step for row in rows]
    assert columns.start.tolist() == [row.start_unix_ns for row in rows]
    assert columns.profiled.tolist() == [row.profiled for row in rows]
    assert {tag: where.tolist() for tag, where in columns.tags.items()} == {
        tag: where for tag in ("checkpoint", "eval") if (where := [at for at, row in enumerate(rows) if tag in row.tags])
    }
    told = [(at, [getattr(row, name) for name in MEMORY]) for at, row in enumerate(rows)]
    samples = [[at, *values] for at, values in told if values[0] is not None or values[-1] is not None]
    np.testing.assert_array_equal(columns.memory, np.array(samples, dtype=np.float64).reshape(-1, 1 + len(MEMORY)))
    said = [said_by(row) for row in rows]
    assert set(said[0]) == set(METRICS)
    for metric in METRICS:
        expected = np.array([one[metric] for one in said], dtype=np.float64)
        found = columns.values.get(metric, np.full(len(rows), np.nan, np.float32))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(st.lists(records, max_size=12), st.integers(0, 12))
def test_lines_and_records_make_the_same_table(rows: list[StepRecord], cut: int) -> None:
    # Given the records of two ranks, one of them in two pieces
    by_record = StepTable.from_records(0, {0: rows, 3: rows[:cut]})
    # Then the table holds the last record of each step, as a dictionary would
    for row, of_rank in ((0, rows), (1, rows[:cut])):
        last = {record.step: record for record in of_rank}
        there = by_record.has_record[row]
        assert by_record.steps[there].tolist() == sorted(last)
        assert by_record.start_unix_ns[row, there].tolist() == [last[step].start_unix_ns for step in sorted(last)]
        assert by_record.tagged("eval")[row, there].tolist() == ["eval" in last[step].tags for step in sorted(last)]
        told = {record.step for record in of_rank if record.allocated_bytes is not None or record.resident_bytes is not None}
        assert set(by_record.memory.get((0, 3)[row], np.empty((0, 1)))[:, 0].tolist()) == told


@pytest.mark.parametrize(
    ("line", "damaged"),
    [
        (b'{"step":1.5,"start_unix_ns":1,"wall_us":1.0}', 1),
        (b'{"step":1,"start_unix_ns":-1,"wall_us":1.0}', 1),
        (b'{"step":1,"start_unix_ns":18446744073709551615,"wall_us":1.0}', 1),
        (b'{"step":1,"start_unix_ns":4611686018427387904,"wall_us":1.0}', 1),
        (b'{"step":1,"start_unix_ns":1790000000000000000,"wall_us":-1.0}', 1),
        (b'{"step":1,"start_unix_ns":1790000000000000000,"wall_us":1.0,"blocked_us":null,"cpu_us":null}', 0),
    ],
)
def test_what_cannot_be_is_left_out_and_counted(line: bytes, damaged: int) -> None:
    good = b'{"step":0,"start_unix_ns":1790000000000000000,"wall_us":2.0}\n'
    blocks = (columns_of(rows) for rows, _ in decode_blocks([good + line + b"\n"], msgspec.json.Decoder(StepRow)))
    columns = RankColumns.of(blocks)
    assert columns.damaged == damaged
    assert columns.step.tolist() == [0, 1][: 2 - damaged]


@pytest.mark.slow
def test_several_processes_read_what_one_does(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Path = synthetic(ranks=5, steps=30).write()
    with (rank_dir(run, 0, 2) / "steps-000000.jsonl").open("ab") as file:
        file.write(b"not JSON\n")
    alone, together = RunReader(run), RunReader(run)
    one = StepTable.load(alone)
    monkeypatch.setattr("rankscope.analysis.workers.WORTH_A_PROCESS_BYTES", 1)
    two = StepTable.load(together, engine=LocalEngine(2))
    assert all(np.array_equal(one.matrix(metric), two.matrix(metric), equal_nan=True) for metric in METRICS)
    assert np.array_equal(one.start_unix_ns, two.start_unix_ns)
    assert alone.skipped_lines == together.skipped_lines == 1


@given(st.lists(st.lists(st.integers(0, 60))))
def test_step_ranges_count_what_a_set_would(added: list[list[int]]) -> None:
    ranges = StepRanges()
    for steps in added:
        ranges.add(np.array(steps, dtype=np.int64))
    assert ranges.count == len({step for steps in added for step in steps})
