"""Row of a step record: known values are preserved, and unknown values stay unknown."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.step_files import rows_of

from rankscope.runs.records import PHASES, PhaseTimes, StepEvent, StepRecord
from rankscope.runs.step_columns import (
    COLUMNS,
    COUNTS,
    HEADER_BYTES,
    METERS,
    ROW_BYTES,
    SWITCHES,
    TIME_COLUMNS,
    TIMES,
    event_of,
    header,
    intact,
    pack_row,
    records_of,
    row_dtype,
)
from rankscope.runs.step_segments import ColumnRows

single = st.floats(0, 1e9, width=32)
double = st.floats(0, 1e15)
count = st.none() | st.integers(0, 2**63 - 1)
times = st.builds(PhaseTimes, **dict.fromkeys(PHASES, st.none() | single))
records = st.builds(
    StepRecord,
    step=st.integers(0, 2**63 - 1),
    start_unix_ns=st.integers(0, 2**62),
    wall_us=st.floats(0, 1e12),
    phases_us=times,
    blocked_us=st.none() | times,
    device_us=st.none() | times,
    device_blocked_us=st.none() | times,
    sections_us=st.dictionaries(st.text(min_size=1), double, max_size=2),
    cpu_us=st.none() | single,
    run_queue_us=st.none() | single,
    gc_us=st.none() | single,
    voluntary_switches=st.none() | st.integers(0, 2**31 - 1),
    involuntary_switches=st.none() | st.integers(0, 2**31 - 1),
    samples=count,
    tokens=count,
    input_elements=count,
    model_elements=count,
    flops=st.none() | st.floats(0, 1e30),
    allocated_bytes=count,
    reserved_bytes=count,
    peak_allocated_bytes=count,
    allocator_retries=count,
    resident_bytes=count,
    profiled=st.booleans(),
    tags=st.lists(st.text(min_size=1), max_size=2),
)


@given(records)
def test_record_is_restored_from_its_row_and_event(record: StepRecord) -> None:
    event = event_of(record)
    events = {} if event is None else {record.step: msgspec.json.decode(msgspec.json.encode(event), type=StepEvent)}
    assert list(records_of(rows_of(record), events)) == [record]
    assert (event is None) == (not record.tags and not record.sections_us)


def test_unblocked_step_without_phases_keeps_its_own_time() -> None:
    record = StepRecord(step=1, start_unix_ns=2, wall_us=3.0, blocked_us=PhaseTimes())
    (read,) = records_of(rows_of(record), {})
    assert (read.own_us, read.phases_us) == (3.0, PhaseTimes())
    (read,) = records_of(rows_of(msgspec.structs.replace(record, blocked_us=None)), {})
    assert read.own_us is None


def test_every_field_of_a_record_has_a_column_or_is_in_the_event() -> None:
    columns = {column.name for column in COLUMNS}
    assert {*StepRecord.__struct_fields__} - columns == {*TIMES, "profiled", "sections_us", "tags", "metrics"}
    assert columns >= {*TIME_COLUMNS, *METERS, *SWITCHES}
    assert {"sections_us", "tags", "metrics"} <= {*StepEvent.__struct_fields__}


def test_unknown_value_is_nan_or_minus_one_not_zero() -> None:
    (row,) = rows_of(StepRecord(step=1, start_unix_ns=2, wall_us=3.0))
    for column in COLUMNS[3:-1]:
        if column.name == "flags":
            assert row[column.name] == 0
        elif column.format[0] == "f":
            assert np.isnan(row[column.name]), column
        else:
            assert row[column.name] == -1, column


def test_columns_are_contiguous_and_aligned_to_their_size() -> None:
    kind = row_dtype()
    offset = 0
    for column in COLUMNS:
        result, at = kind.fields[column.name][:2]  # type: ignore[index]
        assert at == offset
        assert at % result.itemsize == 0
        offset += result.itemsize
    assert offset == ROW_BYTES == kind.itemsize
    assert ROW_BYTES <= 300


def test_columns_joined_from_blocks_equal_the_original_columns() -> None:
    blocks = [rows_of(StepRecord(step=step, start_unix_ns=2, wall_us=3.0)) for step in range(3)]
    for number, rows in enumerate(blocks):
        for at, column in enumerate(COLUMNS):
            rows[column.name] = 100 * number + at
    columns = ColumnRows(blocks)
    for at, column in enumerate(COLUMNS):
        assert columns.column(column.name).tolist() == [at, 100 + at, 200 + at]
        assert columns.where(np.array([False, True, True])).column(column.name).tolist() == [100 + at, 200 + at]
    assert columns.table(COUNTS).tolist() == [columns.column(name).tolist() for name in COUNTS]


@given(
    record=records,
    bits=st.sets(st.integers(0, ROW_BYTES * 8 - 1), min_size=1, max_size=64),
    word=st.integers(0, ROW_BYTES // 8 - 1),
)
def test_checksum_detects_changes_within_one_word_and_rejects_zeros(record: StepRecord, bits: set[int], word: int) -> None:
    words = np.frombuffer(pack_row(record), "<u8").copy()
    assert intact(words[None, :]).all()
    mask = 0
    for bit in bits:
        mask |= 1 << bit % 64
    words[word] ^= np.uint64(mask)
    assert not intact(words[None, :]).any()
    assert not intact(np.zeros((1, len(words)), np.uint64)).any()


def test_too_large_numbers_are_refused_and_context_switches_are_capped() -> None:
    record = StepRecord(step=1, start_unix_ns=2, wall_us=3.0)
    with pytest.raises((struct.error, OverflowError)):
        pack_row(msgspec.structs.replace(record, samples=2**63))
    with pytest.raises((struct.error, OverflowError)):
        pack_row(msgspec.structs.replace(record, phases_us=PhaseTimes(forward=1e300)))
    assert rows_of(msgspec.structs.replace(record, voluntary_switches=2**40))["voluntary_switches"] == 2**31 - 1


@given(rank=st.integers(0, 2**31), attempt=st.integers(0, 2**31), rows=st.integers(0, 2**63))
def test_header_has_a_fixed_length_and_identifies_rank_and_attempt(rank: int, attempt: int, rows: int) -> None:
    made = header(rank, attempt, rows=rows)
    assert len(made) == HEADER_BYTES
    assert HEADER_BYTES % 64 == 0
    assert f"rankscope.steps/1 rank={rank} attempt={attempt} ".encode() in made
    assert made.endswith(b"\n")
