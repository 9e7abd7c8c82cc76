"""Segments of step records on disk: for any damage of the bytes, the records that are read are as written."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.lib import format as npy
from tests.step_files import (
    add_rows,
    append,
    damage,
    foreign_segment,
    load,
    rows_of,
    save_foreign,
    steps_file,
    tear,
    with_checksums,
)

from rankscope.runs.follow import StepFollower
from rankscope.runs.paths import rank_dir, segment
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PhaseTimes, RunInfo, StepRecord
from rankscope.runs.segment_writer import RowWriter
from rankscope.runs.small_files import create_run
from rankscope.runs.step_columns import BEGINNING, COLUMNS, HEADER_BYTES, ROW_BYTES, header, row_dtype
from rankscope.runs.step_segments import BLOCK_ROWS, read_single_rows

ROWS = 24
LENGTH = HEADER_BYTES + ROWS * ROW_BYTES


def record(number: int) -> StepRecord:
    times = PhaseTimes(forward=0.5 + number, backward=2.0 * number)
    return StepRecord(step=number, start_unix_ns=10**18 + number, wall_us=100.0 + number, phases_us=times, samples=number)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_in(tmp_path / "run")


def run_in(path: Path) -> Path:
    create_run(path, RunInfo(run_id="r1", name="test", start_unix_ns=1))
    return path


@cache
def written() -> bytes:
    """Return a closed segment of ``ROWS`` rows."""
    with tempfile.TemporaryDirectory() as folder:
        append(rank_dir(Path(folder), 0, 0), "steps", *map(record, range(ROWS)))
        return steps_file(Path(folder), 0).read_bytes()


@cache
def truth() -> dict[int, bytes]:
    rows = rows_of(*map(record, range(ROWS)))
    return {int(row["step"]): row.tobytes() for row in rows}


class ReadSegment:
    """Results of a one-time reader and of a follower for a segment of these bytes."""

    def __init__(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as place:
            run = run_in(Path(place) / "run")
            folder = rank_dir(run, 0, 0)
            folder.mkdir(parents=True)
            segment(folder, "steps", 0).write_bytes(data)
            reader = RunReader(run)
            self.rows = [row.tobytes() for rows in reader.step_rows(0, 0) for row in rows]
            self.skipped = reader.skipped_lines
            self.first = next((at for _, at in reader.skipped.values()), None)
            self.unusable = len(reader.unusable)
            follower, other = StepFollower(folder), RunReader(run)
            followed = [row.tobytes() for rows in follower.new(other) for row in rows]
            assert followed == self.rows
            assert (follower.skipped, len(other.unusable)) == (reader.skipped, self.unusable)
            assert list(follower.new(other)) == []
            assert len(list(RunReader(run).steps(0, 0))) == len(self.rows)

    @property
    def steps(self) -> list[int]:
        """Steps of the rows, after checking that each row is as written."""
        steps = [int(np.frombuffer(row, row_dtype())["step"][0]) for row in self.rows]
        assert [truth()[step] for step in steps] == self.rows
        return steps


def test_written_segment_is_read_back() -> None:
    reads = ReadSegment(written())
    assert (reads.steps, reads.skipped, reads.unusable) == ([*range(ROWS)], 0, 0)


@given(st.integers(0, LENGTH))
@example(0)
@example(HEADER_BYTES - 1)
@example(HEADER_BYTES)
def test_truncated_segment_loses_only_the_rows_after_the_cut(length: int) -> None:
    reads = ReadSegment(written()[:length])
    full_rows, remaining_bytes = divmod(max(0, length - HEADER_BYTES), ROW_BYTES)
    torn = 0 < length < HEADER_BYTES or remaining_bytes > 0
    assert (reads.steps, reads.skipped, reads.unusable) == ([*range(full_rows)], int(torn), 0)
    assert reads.first == (None if not torn else 0 if length < HEADER_BYTES else length - remaining_bytes)


IN_A_WORD = st.tuples(st.integers(0, ROW_BYTES // 8 - 1), st.sets(st.integers(0, 63), min_size=1, max_size=8))


@given(st.dictionaries(st.integers(0, ROWS - 1), IN_A_WORD, min_size=1, max_size=8))
def test_flipped_bits_in_a_word_cost_only_the_affected_rows(hit: dict[int, tuple[int, set[int]]]) -> None:
    # Two flips of the highest bits of two words of a row may cancel.
    starts = {row: 8 * (HEADER_BYTES + row * ROW_BYTES + 8 * word) for row, (word, _) in hit.items()}
    reads = ReadSegment(flipped({starts[row] + bit for row, (_, bits) in hit.items() for bit in bits}))
    assert reads.steps == [step for step in range(ROWS) if step not in hit]
    assert (reads.skipped, reads.unusable) == (len(hit), 0)
    assert reads.first == HEADER_BYTES + ROW_BYTES * min(hit)


def flipped(bits: set[int]) -> bytes:
    data = bytearray(written())
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


@given(st.sets(st.integers(0, HEADER_BYTES * 8 - 1), min_size=1, max_size=8))
@example({8 * 8 + 4})  # the length of the header
@example({9 * 8 + 7})
@example({8 * header(0, 0).index(b"<f4") + 1})  # big-endian
@example({8 * header(0, 0).index(b"forward_us")})  # a column of another name
def test_flipped_bits_in_the_header_change_no_row(bits: set[int]) -> None:
    reads = ReadSegment(flipped(bits))
    hit = any(bit // 8 < len(BEGINNING) for bit in bits)
    assert (reads.steps, reads.skipped, reads.unusable) == ([*range(ROWS)], int(hit), 0)
    assert reads.first == (0 if hit else None)


@given(st.integers(0, LENGTH - 1), st.integers(1, 4096))
def test_zeroed_pages_cost_only_the_affected_rows(start: int, length: int) -> None:
    data = bytearray(written())
    end = min(start + length, LENGTH)
    data[start:end] = bytes(end - start)
    reads = ReadSegment(bytes(data))
    hit = {(at - HEADER_BYTES) // ROW_BYTES for at in range(max(start, HEADER_BYTES), end) if written()[at]}
    assert reads.steps == [step for step in range(ROWS) if step not in hit]
    assert reads.skipped - len(hit) in ((0, 1) if start < HEADER_BYTES else (0,))
    assert reads.unusable == 0 if reads.steps else reads.unusable <= 1


@given(st.binary(max_size=4 * ROW_BYTES), st.booleans())
def test_arbitrary_data_is_counted_as_skipped_or_listed_as_unusable(data: bytes, behind: bool) -> None:
    reads = ReadSegment(written() + data if behind else data)
    if behind:
        full_rows, remaining_bytes = divmod(len(data), ROW_BYTES)
        assert (reads.steps, reads.skipped) == ([*range(ROWS)], full_rows + (remaining_bytes > 0))
    else:
        torn = b"\x93NUMPY\x01\x00".startswith(data[:8])
        assert (reads.rows, bool(reads.skipped), reads.unusable) == ([], bool(data) and torn, int(not torn))


@given(
    st.sets(
        st.sampled_from(
            [name for name in row_dtype().names or () if name not in ("step", "start_unix_ns", "wall_us", "checksum")]
        )
    ),
    st.dictionaries(
        st.sampled_from(["note", "nested", "other_us"]), st.sampled_from(["<i8", "<f8", "V16", "S8", "<f4,<f4", ">u8"])
    ),
)
def test_missing_columns_are_unknown_and_additional_columns_are_ignored(without: set[str], added: dict[str, str]) -> None:
    without |= {"cpu_us"} if sum(row_dtype()[name].itemsize for name in without) % 8 else set()
    if sum(row_dtype()[name].itemsize for name in without) % 8:
        without ^= {"gc_us"}
    rows = rows_of(*map(record, range(ROWS)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps-000000.npy"
        save_foreign(file, rows, without=tuple(without), **added)
        reads = ReadSegment(file.read_bytes())
    assert (len(reads.rows), reads.skipped, reads.unusable) == (ROWS, 0, 0)
    read = np.frombuffer(b"".join(reads.rows), row_dtype())
    for name in (row_dtype().names or ())[:-1]:
        if name not in without:
            np.testing.assert_array_equal(read[name], rows[name])
        elif name == "flags":
            assert (read[name] == 0).all()
        else:
            assert (np.isnan(read[name]) if read[name].dtype.kind == "f" else read[name] == -1).all()


def saved(*fields: tuple[object, ...], rows: int = 2) -> bytes:
    """Return a segment of rows of these fields, with correct checksums where possible."""
    values = np.zeros(rows, np.dtype(list(fields)))
    if values.dtype.itemsize % 8 == 0 and "checksum" in (values.dtype.names or ()) and not values.dtype.hasobject:
        values = with_checksums(values)
    return foreign_segment(values)


REQUIRED = (("step", "<i8"), ("start_unix_ns", "<i8"), ("wall_us", "<f8"))
SUM = ("checksum", "<u8")


def headed(text: bytes, *, length: int | None = None) -> bytes:
    """Return a file with the text as its header, and four rows' worth of bytes."""
    return npy.magic(1, 0) + (len(text) if length is None else length).to_bytes(2, "little") + text + b"\x01" * 4 * ROW_BYTES


STRANGE = {
    "wider": saved(*REQUIRED, ("voluntary_switches", "<i8"), SUM),
    "narrower": saved(("step", "<i4"), ("other", "<i4"), *REQUIRED[1:], SUM),
    "big-endian": saved((">step"[1:], ">i8"), *REQUIRED[1:], SUM),
    "unsigned": saved(*REQUIRED, ("samples", "<u8"), SUM),
    "text": saved(*REQUIRED, ("samples", "S8"), SUM),
    "array": saved(*REQUIRED, ("samples", "<i8", (2,)), SUM),
    "times": saved(("step", "<m8[us]"), *REQUIRED[1:], SUM),
    "objects": saved(*REQUIRED, ("samples", "O"), SUM),
    "only objects": saved(("a", "O")),
    "no checksum": saved(*REQUIRED),
    "checksum not last": saved(SUM, *REQUIRED),
    "no checksum of the layout": foreign_segment(with_checksums(np.zeros(2, [*REQUIRED, SUM]))).replace(b" layout=", b" outlay="),
    "odd width": saved(*REQUIRED, ("note", "S3"), SUM),
    "huge rows": saved(*REQUIRED, ("note", "V100000"), SUM),
    "no fields": headed(b"{'descr': '<f8', 'fortran_order': False, 'shape': (9,), }\n"),
    "no dictionary": headed(b"[1, 2]\n"),
    "no Python": headed(b"{'descr': \n"),
    "deep": headed(b"(" * 9000),
    "not text": headed(b"\xff\x00\xfe" * 100),
    "code": headed(b"__import__('os').abort()\n"),
    "two of a name": headed(b"{'descr': [('step', '<i8'), ('step', '<i8')], 'fortran_order': False, 'shape': (1,), }\n"),
    "backslashes": headed(b"{'descr': '\\q', 'fortran_order': False, 'shape': (1L,), }\n"),
    "endless header": headed(b" " * 65535),
    "header behind the end": headed(b" " * 100, length=9999) + bytes(HEADER_BYTES),
    "numpy 2.0": npy.magic(2, 0) + written()[8:HEADER_BYTES],
    "archive": b"PK\x03\x04" + bytes(3000),
    "lines of JSON": b'{"step":1,"start_unix_ns":1,"wall_us":1.0}\n' * 100,
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.filterwarnings("error")
def test_file_that_is_not_a_segment_is_unusable_and_yields_no_rows(name: str) -> None:
    reads = ReadSegment(STRANGE[name])
    assert (reads.rows, reads.unusable) == ([], 1)


def test_rows_with_only_the_required_columns_are_read() -> None:
    reads = ReadSegment(saved(*REQUIRED, SUM))
    assert (len(reads.rows), reads.skipped, reads.unusable) == (2, 0, 0)


@pytest.mark.slow
def test_huge_sparse_segment_is_read_in_blocks_with_bounded_memory(run: Path) -> None:
    import tracemalloc

    append(rank_dir(run, 0, 0), "steps", *map(record, range(ROWS)))
    holes = 24 * BLOCK_ROWS
    with steps_file(run, 0).open("r+b") as file:
        file.truncate(LENGTH + holes * ROW_BYTES)
    reader, steps = RunReader(run), 0
    tracemalloc.start()
    for rows in reader.step_rows(0, 0):
        steps += len(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (steps, reader.skipped_lines, reader.unusable) == (ROWS, holes, [])
    assert peak < 8 * BLOCK_ROWS * ROW_BYTES


def test_file_truncated_during_a_read_ends_at_the_cut(run: Path) -> None:
    append(rank_dir(run, 0, 0), "steps", *map(record, range(3 * BLOCK_ROWS)))
    reader, steps = RunReader(run), list[int]()
    for rows in reader.step_rows(0, 0):
        steps += rows["step"].tolist()
        with steps_file(run, 0).open("r+b") as file:
            file.truncate(HEADER_BYTES + (BLOCK_ROWS + 10) * ROW_BYTES)
    assert steps == [*range(BLOCK_ROWS + 10)]
    assert reader.unusable == []


@given(st.lists(st.integers(1, 400), max_size=20))
def test_growing_segment_is_read_once_and_a_torn_end_later(cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = run_in(Path(place) / "run")
        folder = rank_dir(run, 0, 0)
        folder.mkdir(parents=True)
        follower, reader, steps, length = StepFollower(folder), RunReader(run), list[int](), 0
        for cut in [*cuts, LENGTH]:
            length += cut
            segment(folder, "steps", 0).open("ab").close()
            with segment(folder, "steps", 0).open("r+b") as file:
                file.write(written()[:length])
            steps += [step for rows in follower.new(reader) for step in rows["step"].tolist()]
            full_rows, remaining_bytes = divmod(max(0, min(length, LENGTH) - HEADER_BYTES), ROW_BYTES)
            assert steps == [*range(full_rows)]
            assert [count for count, _ in follower.skipped.values()] == [1] * (remaining_bytes > 0 or length < HEADER_BYTES)
    assert steps == [*range(ROWS)]


@pytest.mark.parametrize("foreign", [False, True])
def test_existing_rows_are_skipped_except_the_last_rows(run: Path, foreign: bool) -> None:
    folder = rank_dir(run, 0, 0)
    append(folder, "steps", *map(record, range(ROWS)))
    if foreign:
        save_foreign(steps_file(run, 0), load(steps_file(run, 0)), without=("flops", "samples"))
    follower = StepFollower(folder)
    follower.skip(keep=5)
    rows = np.concatenate([*follower.new(RunReader(run))])
    assert rows["step"].tolist() == [*range(ROWS - 5, ROWS)]


def python(code: str, *arguments: object) -> str:
    """Return the output of a Python without any of our packages."""
    command = [sys.executable, "-c", f"import sys\nimport numpy as np\n{code}\nassert 'rankscope' not in sys.modules"]
    completed = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout.strip()


def test_numpy_memory_maps_a_closed_segment_with_an_identifying_header(run: Path) -> None:
    append(rank_dir(run, 2, 7), "steps", *map(record, range(ROWS)))
    file = steps_file(run, 7, 2)
    code = "rows = np.load(sys.argv[1], mmap_mode='r'); print(rows['step'].sum(), rows['forward_us'].mean(), rows['wall_us'][-1])"
    assert python(code, file) == f"{sum(range(ROWS))} {0.5 + (ROWS - 1) / 2} {99.0 + ROWS}"
    assert b"# rankscope.steps/1 rank=7 attempt=2 " in file.read_bytes()[:HEADER_BYTES]


PAGE = Path(__file__).parent.parent.parent / "docs" / "run-directory.md"
SNIPPETS = [
    part.partition("```")[0]
    for part in PAGE.read_text().split("```python\n")[1:]
    if "steps-000000.npy" in part.partition("```")[0]
]


@pytest.mark.parametrize(("at", "closed"), [(0, True), (1, True), (1, False)])
def test_documented_numpy_snippets_work(run: Path, at: int, closed: bool) -> None:
    folder = rank_dir(run, 0, 0)
    writer = RowWriter(folder, rank=0, attempt=0)
    writer.append(*map(record, range(ROWS)))
    if closed:
        writer.close()
    else:
        damage(steps_file(run, 0), 3)
        add_rows(steps_file(run, 0), rows_of(record(ROWS)))
        tear(steps_file(run, 0))
    first = python(f"import os; os.chdir(sys.argv[1])\n{SNIPPETS[at]}", folder).split()[0]
    writer.close()
    assert int(first) == (ROWS if closed else ROWS - 1)


def test_documented_column_table_matches_the_layout() -> None:
    documented = []
    for line in PAGE.read_text().partition("| byte | columns |")[2].partition("\n\n")[0].splitlines()[2:]:
        byte, names, kind = line.strip("| ").split(" | ")[:3]
        for at, name in enumerate(names.split(", ")):
            if at == 0:
                assert row_dtype().fields[name.strip("`")][1] == int(byte)  # type: ignore[index]
            documented.append((name.strip("`"), kind.strip("`")))
    assert documented == [(column.name, f"<{column.format}") for column in COLUMNS]
    assert f"one row of {ROW_BYTES} bytes" in PAGE.read_text()


def test_single_rows_are_found_across_segments_or_the_answer_is_unknown(run: Path) -> None:
    # given two segments, and one that has only its header yet
    folder = rank_dir(run, 0, 0)
    append(folder, "steps", *map(record, range(10)))
    append(folder, "steps", *map(record, range(10, 20)))
    empty = segment(folder, "steps", 2)
    empty.write_bytes(header(0, 0))
    paths = [segment(folder, "steps", number) for number in range(3)]

    # then steps of both are found
    steps = np.array([0, 9, 10, 19])
    rows = read_single_rows(paths, steps)
    assert rows is not None
    assert rows["wall_us"].tolist() == (100.0 + steps).tolist()
    # and a step that is in none, or in a damaged row, makes the answer unknown instead of incomplete
    assert read_single_rows(paths, np.array([0, 20])) is None
    damage(paths[1], 3)
    assert read_single_rows(paths, np.array([0, 13])) is None
