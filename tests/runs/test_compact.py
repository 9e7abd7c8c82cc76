"""Compaction: the same records before and after, and at every moment between."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq
from tests.full_disk import disk_with_room_for

from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError, MissingError
from rankscope.runs import compact as compaction
from rankscope.runs.compact import compact_run
from rankscope.runs.parquet import Piece, PieceReader, PieceWriter
from rankscope.runs.paths import RANK_STREAMS, attempt_dir, host_dir, parquet_file, rank_dir, segment
from rankscope.runs.reader import RunReader
from rankscope.runs.records import (
    RECORD_TYPES,
    AttemptInfo,
    CollectiveRecord,
    HardwareSample,
    KernelRecord,
    PhaseTimes,
    PlannedWindow,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.writer import JsonLinesWriter, create_attempt, create_run, write_record

RANKS, STEPS = 3, 200


def step(number: int, rng: random.Random) -> StepRecord:
    phases = {name: round(rng.uniform(10, 9000), 3) for name in ("data", "forward", "backward", "optimizer")}
    return StepRecord(
        step=number,
        start_unix_ns=10**18 + number * 10**8,
        wall_us=round(sum(phases.values()), 3),
        phases_us=PhaseTimes(**phases),
        blocked_us=None if number % 50 == 7 else PhaseTimes(forward=0.0, backward=round(phases["backward"] / 3, 3)),
        cpu_us=round(rng.uniform(1, 100), 3),
        samples=8,
        gc_us=0.0 if number % 2 else None,
        sections_us={"augment": 3.5} if number % 7 == 0 else {},
        resident_bytes=2**31 if number % 10 == 0 else None,
        profiled=number % 100 < 3,
        tags=["checkpoint", "gc"] if number % 90 == 0 else [],
    )


def append(folder: Path, stream: Any, *records: msgspec.Struct | bytes) -> None:
    """More records, in segments small enough to be several."""
    writer = JsonLinesWriter(folder, stream, segment_bytes=20_000)
    for record in records:
        writer.append(record)
    writer.close()


def record_run(path: Path, *, ended: bool = True) -> Path:
    create_run(path, RunInfo(run_id="r1", name="test", start_unix_ns=1))
    create_attempt(path, AttemptInfo(attempt=0, start_unix_ns=1, world_size=RANKS))
    for rank in range(RANKS):
        rng = random.Random(rank)
        folder = rank_dir(path, 0, rank)
        info = RankInfo(
            rank=rank, world_size=RANKS, host="n1", pid=1, start_unix_ns=1, end_unix_ns=2, end_reason="exit" if ended else None
        )
        write_record(folder / "rank.json", info)
        append(folder, "steps", *(step(number, rng) for number in range(STEPS)))
        profiled = [number for number in range(STEPS) if number % 100 < 3]
        append(
            folder,
            "windows",
            *(
                StepBreakdown(
                    step=number,
                    start_unix_ns=10**18 + number * 10**8,
                    device_kind="cpu",
                    window_us=10.0,
                    compute_us=4.0,
                    communication_us=4.0,
                    overlap_us=1.0,
                    exposed_communication_us=3.0,
                    memcpy_us=0.0,
                    exposed_memcpy_us=0.0,
                    idle_us=3.0,
                    events=number,
                )
                for number in profiled
            ),
        )
        append(
            folder,
            "collectives",
            *(
                CollectiveRecord(
                    step=number,
                    group="0",
                    group_ranks=None if index else [0, 1, 2],
                    index=index,
                    op="all_reduce",
                    enqueue_unix_ns=10**18 + number * 10**8 + index * 1000 + rank,
                    start_unix_ns=10**18 + number * 10**8 + index * 1000 + 100,
                    end_unix_ns=10**18 + number * 10**8 + index * 1000 + 900,
                    compute_spans_us=[(0.0, 0.5), (0.625, 1.0)] if index else [],
                )
                for number in profiled
                for index in range(4)
            ),
        )
        append(folder, "kernels", *(KernelRecord(step=n, name="mm", kind="compute", total_us=1.5, calls=n) for n in profiled))
    append(attempt_dir(path, 0), "plan", PlannedWindow(first=0, steps=3, reason="schedule", chosen_unix_ns=1))
    append(host_dir(path, "n1"), "gpu", HardwareSample(unix_ns=1, throttle_reasons=[]), HardwareSample(unix_ns=2))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record_run(tmp_path / "run")


def everything(path: Path) -> tuple[dict[str, list[msgspec.Struct]], int, list[Path]]:
    """All records by stream and place, skipped lines, and what could not be used."""
    reader = RunReader(path)
    records: dict[str, list[msgspec.Struct]] = {}
    for attempt in reader.attempts():
        records[f"plan/{attempt}"] = list(reader.plan(attempt))
        for rank in reader.ranks(attempt):
            for stream in RANK_STREAMS:
                records[f"{stream}/{attempt}/{rank}"] = list(getattr(reader, stream)(attempt, rank))
    for host in reader.hosts():
        records[f"gpu/{host}"] = list(reader.hardware(host))
    return records, reader.skipped_lines, reader.unusable


def analysis(path: Path) -> bytes:
    return msgspec.json.encode(analyze([path]))


def files(path: Path, suffix: str) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob(f"*{suffix}"))


# --- one record


SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    bool: st.booleans(),
    NoneType: st.none(),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """What may stand in a field, as JSON gives it."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in SCALARS:
        return SCALARS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return records_of(annotation)
    if origin is Literal:
        return st.sampled_from(args)
    inner = [values(arg) for arg in args]
    if origin in (Union, UnionType):
        return st.one_of(*inner)
    containers: dict[Any, Any] = {
        list: lambda: st.lists(inner[0], max_size=3),
        tuple: lambda: st.tuples(*inner),
        dict: lambda: st.dictionaries(*inner, max_size=3),
    }
    strategy: st.SearchStrategy[Any] = containers[origin]()
    return strategy


def records_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: values(field.type) for field in msgspec.structs.fields(kind)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name == "steps" else pytest.param(name, marks=pytest.mark.full) for name in RECORD_TYPES]
)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_record_comes_back_from_parquet_as_it_was(name: str, data: st.DataObject, tmp_path: Path) -> None:
    kind = RECORD_TYPES[name]
    ours, theirs = (data.draw(st.lists(records_of(kind), max_size=6)) for _ in range(2))
    path = tmp_path / "file.parquet"
    with path.open("wb") as file:
        writer = PieceWriter(file, name, kind)
        for rank, rows in ((0, ours), (1, theirs)):
            for row in rows:
                writer.add(rank, row)
            writer.end_piece(Piece(rank=rank, file="x", offset=0, bytes=0, digest="", rows=len(rows), skipped=0))
        writer.close()
    reader = PieceReader(path, name)
    for rank, rows in ((0, ours), (1, theirs)):
        # Also None and 0, an empty list and none, a struct of nothing and no struct are told apart; so are floats to the bit.
        read = list(reader.records([piece for piece in reader.pieces if piece.rank == rank], kind))
        assert read == rows
        assert repr(read) == repr(rows)


def test_the_columns_are_what_other_programs_expect(run: Path) -> None:
    compact_run(run)
    table = pq.read_table(parquet_file(attempt_dir(run, 0), "steps", 0))
    assert table.num_rows == RANKS * STEPS
    assert table.schema.field("rank").type == pa.int32()
    assert table.schema.field("start_unix_ns").type == pa.int64()
    assert pa.types.is_struct(table.schema.field("phases_us").type)
    assert table.schema.field("sections_us").type == pa.map_(pa.string(), pa.float64())
    # One rank can be read alone.
    metadata = pq.ParquetFile(parquet_file(attempt_dir(run, 0), "steps", 0)).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [STEPS] * RANKS


# --- a run


def test_everything_reads_the_same_before_and_after(run: Path) -> None:
    # given a run with a torn line, one that is no record, and a pipe among its files
    folder = rank_dir(run, 0, 1)
    append(folder, "steps", b'{"step": "three"}', b"not json")
    with max(folder.glob("steps-*.jsonl")).open("ab") as file:
        file.write(b'{"step": 9, "start_')
    os.mkfifo(segment(folder, "windows", 99))
    before = everything(run), analysis(run)
    assert before[0][1] == 3
    assert len(files(run, ".jsonl")) > 20
    # when it is compacted
    result = compact_run(run)
    # then there are a few files, and everything that reads runs gives the same, to the byte
    assert everything(run) == before[0]
    assert analysis(run) == before[1]
    assert files(run, ".jsonl") == ["attempts/000/ranks/00001/windows-000099.jsonl"]
    assert files(run, ".parquet") == [
        *(f"attempts/000/{stream}-000000.parquet" for stream in sorted((*RANK_STREAMS, "plan"))),
        "hosts/n1/gpu-000000.parquet",
    ]
    assert result.records == {"steps": 600, "windows": 18, "collectives": 72, "kernels": 18, "plan": 1, "gpu": 2}
    assert (result.damaged_lines, len(result.left_out)) == (3, 1)
    assert result.removed_bytes == result.bytes_before > result.bytes_after


def test_doing_it_again_does_nothing(run: Path) -> None:
    compact_run(run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    result = compact_run(run)
    assert (result.records, result.bytes_before, result.removed_files) == ({}, 0, 0)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_json_lines_may_stay_and_are_not_read_twice(run: Path) -> None:
    before = everything(run)
    lines = files(run, ".jsonl")
    assert compact_run(run, keep_jsonl=True).removed_files == 0
    assert files(run, ".jsonl") == lines
    assert everything(run) == before
    # Later they may go after all, compared once more.
    result = compact_run(run)
    assert (result.records, result.removed_files) == ({}, len(lines))
    assert files(run, ".jsonl") == []
    assert everything(run) == before


def test_what_is_recorded_after_compaction_is_read_and_compacted_too(run: Path) -> None:
    compact_run(run)
    before, _, _ = everything(run)
    # The segments get the names of those that have gone; the next attempt has a folder of its own.
    rng = random.Random(9)
    more = [step(number, rng) for number in range(STEPS, STEPS + 50)]
    append(rank_dir(run, 0, 2), "steps", *more)
    append(rank_dir(run, 1, 0), "steps", *more[:5])
    ended = RankInfo(rank=0, world_size=1, host="n1", pid=1, start_unix_ns=1, end_unix_ns=2, end_reason="killed")
    write_record(rank_dir(run, 1, 0) / "rank.json", ended)
    expected = {**before, "steps/0/2": before["steps/0/2"] + more, "plan/1": [], "steps/1/0": more[:5]}
    expected |= {f"{stream}/1/0": [] for stream in ("windows", "collectives", "kernels")}
    assert (rank_dir(run, 0, 2) / "steps-000000.jsonl").exists()
    assert everything(run)[0] == expected
    compact_run(run)
    assert everything(run) == (expected, 0, [])
    assert files(run, ".jsonl") == []


def test_a_segment_that_grew_is_read_on_where_its_parquet_ends(run: Path) -> None:
    compact_run(run, keep_jsonl=True)
    before, _, _ = everything(run)
    last = max(rank_dir(run, 0, 0).glob("steps-*.jsonl"))
    more = step(999, random.Random(3))
    with last.open("ab") as file:
        file.write(msgspec.json.encode(more) + b"\n")
    expected = {**before, "steps/0/0": before["steps/0/0"] + [more]}
    assert everything(run)[0] == expected
    assert compact_run(run).records == {"steps": 1}
    assert everything(run) == (expected, 0, [])


def test_a_reader_that_is_overtaken_by_compaction_misses_nothing(run: Path) -> None:
    expected = list(RunReader(run).steps(0, 1))
    rows = RunReader(run).steps(0, 1)
    first = [next(rows) for _ in range(3)]
    compact_run(run)
    assert first + list(rows) == expected


# --- what is refused


def test_a_run_that_may_be_alive_is_refused_unless_told(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", ended=False)
    with pytest.raises(InputError, match=r"rank 0 has not ended and wrote .* --force"):
        compact_run(run)
    assert files(run, ".parquet") == []
    compact_run(run, force=True)
    assert files(run, ".parquet") != []
    # One that has been quiet for long crashed.
    quiet = record_run(tmp_path / "quiet", ended=False)
    for path in quiet.rglob("*"):
        os.utime(path, (1, 1))
    compact_run(quiet)
    assert files(quiet, ".parquet") == files(run, ".parquet")


def test_a_rank_that_was_quiet_and_is_alive_after_all_loses_nothing(tmp_path: Path) -> None:
    # given ranks that have not ended; one has its file open, in which a line is torn as yet
    run = record_run(tmp_path / "run", ended=False)
    rng = random.Random(5)
    writer = JsonLinesWriter(rank_dir(run, 0, 2), "steps")
    writer.append(step(STEPS, rng))
    torn = max(rank_dir(run, 0, 1).glob("steps-*.jsonl"))
    with torn.open("ab") as file:
        file.write(b'{"step":200,"start_unix_ns":1,')
    before, _, _ = everything(run)
    # when the run is compacted, twice
    for _ in range(2):
        compact_run(run, force=True)
        # then the last file of every stream stays, and no other
        assert len(files(run, ".jsonl")) == RANKS * len(RANK_STREAMS) + 2
        assert everything(run)[0] == before
    # and what is written on is read, and compacted when the ranks have ended
    more = [step(number, rng) for number in range(STEPS + 1, STEPS + 5)]
    writer.append(*more)
    writer.close()
    with torn.open("ab") as file:
        file.write(b'"wall_us":1.0}\n')
    late = StepRecord(step=200, start_unix_ns=1, wall_us=1.0)
    expected = {**before, "steps/0/1": [*before["steps/0/1"], late], "steps/0/2": [*before["steps/0/2"], *more]}
    assert everything(run) == (expected, 0, [])
    for rank in range(RANKS):
        info = RankInfo(rank=rank, world_size=RANKS, host="n1", pid=1, start_unix_ns=1, end_unix_ns=2, end_reason="exit")
        write_record(rank_dir(run, 0, rank) / "rank.json", info)
    compact_run(run)
    assert everything(run) == (expected, 0, [])
    assert files(run, ".jsonl") == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"step":1,"start_unix_ns":1,"wall_us":1.0,"from_the_future":3}',
        b'{"step":1,"start_unix_ns":1,"wall_us":1.0,"phases_us":{"quantum":3.0}}',
        b'{"step":1,"start_unix_ns":1,"wall_us":1.0,"blocked_us":{"quantum":3.0}}',
        b'{"step":36893488147419103232,"start_unix_ns":1,"wall_us":1.0}',
    ],
)
def test_what_parquet_would_lose_is_not_compacted(run: Path, line: bytes) -> None:
    append(rank_dir(run, 0, 1), "steps", line)
    before = everything(run)
    with pytest.raises(InputError, match=r"steps-\d+\.jsonl.*(would lose|does not fit)"):
        compact_run(run)
    assert everything(run) == before
    assert [path.name for path in attempt_dir(run, 0).iterdir() if "parquet" in path.name] == []


def test_what_does_not_read_back_is_not_removed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(run)
    records = PieceReader.records

    def forgetful(reader: PieceReader, pieces: list[Piece], kind: type[Any]) -> Iterator[Any]:
        yield from list(records(reader, pieces, kind))[:-1]

    monkeypatch.setattr(PieceReader, "records", forgetful)
    with pytest.raises(InputError, match="does not read back as it was written; nothing was removed"):
        compact_run(run)
    monkeypatch.undo()
    assert everything(run) == before
    assert files(run, ".parquet") == []


def test_two_at_a_time_do_not_double_anything(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(run)
    fill = compaction._fill

    def meanwhile(*args: Any) -> Any:
        monkeypatch.undo()
        compact_run(run, keep_jsonl=True)
        return fill(*args)

    monkeypatch.setattr(compaction, "_fill", meanwhile)
    with pytest.raises(InputError, match="somebody else is compacting this run"):
        compact_run(run)
    assert everything(run) == before


@pytest.mark.parametrize("room", [0, 3, 5_000, 30_000])
def test_a_full_disk_is_one_clear_error_and_loses_nothing(run: Path, room: int) -> None:
    before = everything(run)
    with disk_with_room_for(room), pytest.raises(InputError, match=r"cannot compact: File too large; no record is lost"):
        compact_run(run)
    assert everything(run) == before
    assert not [path for path in run.rglob(".*") if "parquet" in path.name]
    compact_run(run)
    assert everything(run) == before
    assert files(run, ".jsonl") == []


# --- interrupted anywhere

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.runs import test_compact as tests
source, work = Path(sys.argv[1]), Path(sys.argv[2])
expected = tests.everything(source)
killed = moment = 0
finished = False
while not finished:
    moment += 1
    shutil.copytree(source, work)
    child = os.fork()
    if child == 0:
        left = moment * 3 - 2
        def count(event, args):
            global left
            # Whatever touches the filesystem; reading does not change it.
            if event in ("os.remove", "os.link", "os.rename") or (event == "open" and "parquet" in str(args[0])):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(count)
        tests.compact_run(work)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert tests.everything(work) == expected, f"killed at moment {moment}"
    tests.compact_run(work)
    assert tests.everything(work) == expected, f"again after moment {moment}"
    assert not tests.files(work, ".jsonl") and not list(work.rglob(".*"))
    shutil.rmtree(work)
    finished = status == 0
    killed += not finished
print(killed)
"""


@pytest.mark.full
@pytest.mark.slow
def test_killed_at_any_moment_no_record_is_lost_or_doubled(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(run), str(tmp_path / "work"), str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


# --- what lies there may be anybody's


def test_a_damaged_file_costs_what_is_in_it_and_is_named(run: Path) -> None:
    compact_run(run)
    path = parquet_file(attempt_dir(run, 0), "steps", 0)
    expected = {rank: list(RunReader(run).steps(0, rank)) for rank in range(RANKS)}
    whole = path.read_bytes()
    rng = random.Random(4)
    named = 0
    for _ in range(60):
        data = bytearray(whole)
        where = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                del data[where:]
            case 1:
                data[where] ^= 1 << rng.randrange(8)
            case 2:
                data[where : where + 64] = rng.randbytes(64)
            case 3:
                data[-8:-4] = rng.randbytes(4)  # the length of its footer
        path.write_bytes(data)
        reader = RunReader(run)
        for rank, records in expected.items():
            read = list(reader.steps(0, rank))
            assert read == records[: len(read)]
            assert len(read) == len(records) or reader.unusable == [path]
        named += bool(reader.unusable)
    assert named > 40


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 100, b"\0" * 4096, b"PAR1" + b"\xff" * 64 + b"\xff\xff\xff\x7fPAR1"])
def test_what_is_no_parquet_file_is_named_and_the_rest_is_read(run: Path, data: bytes) -> None:
    before = list(RunReader(run).steps(0, 0))
    path = parquet_file(attempt_dir(run, 0), "steps", 0)
    path.write_bytes(data)
    reader = RunReader(run)
    assert list(reader.steps(0, 0)) == before
    assert reader.unusable == [path]
    with pytest.raises(InputError, match=r"steps-000000\.parquet"):
        compact_run(run)


def foreign(path: Path, columns: dict[str, Any], **index: Any) -> None:
    """A Parquet file somebody else made."""
    table = pa.table(columns)
    said = {
        "schema": "rankscope.parquet/1",
        "stream": "steps",
        "pieces": [{"rank": 0, "file": "a", "offset": 0, "bytes": 1, "digest": "", "rows": table.num_rows, "skipped": 0}],
    }
    pq.write_table(table.replace_schema_metadata({"rankscope": json.dumps({**said, **index})}), path)


GOOD = {"step": [1], "start_unix_ns": [2], "wall_us": [3.0]}


@pytest.mark.parametrize(
    ("columns", "index"),
    [
        ({"step": [1]}, {}),
        ({**GOOD, "step": ["one"]}, {}),
        ({**GOOD, "step": pa.array([None], pa.int64())}, {}),
        ({**GOOD, "wall_us": [float("nan")]}, {}),
        ({**GOOD, "blocked_us": [5]}, {}),
        ({**GOOD, "blocked_us": [{"forward": "x"}]}, {}),
        ({**GOOD, "tags": [[1]]}, {}),
        ({**GOOD, "tags": [[None]]}, {}),
        ({**GOOD, "sections_us": ["x"]}, {}),
        ({**GOOD, "sections_us": pa.array([[("a", None)]], pa.map_(pa.string(), pa.float64()))}, {}),
        (GOOD, {"pieces": []}),
        (GOOD, {"pieces": 3}),
        (GOOD, {"stream": "windows"}),
        (GOOD, {"schema": "rankscope.parquet/2"}),
    ],
)
def test_columns_that_are_no_records_are_named(tmp_path: Path, columns: dict[str, Any], index: dict[str, Any]) -> None:
    create_run(tmp_path, RunInfo(run_id="r", name="r", start_unix_ns=1))
    rank_dir(tmp_path, 0, 0).mkdir(parents=True)
    path = parquet_file(attempt_dir(tmp_path, 0), "steps", 0)
    foreign(path, GOOD)
    assert [row.wall_us for row in RunReader(tmp_path).steps(0, 0)] == [3.0]
    foreign(path, {**GOOD, "from_the_future": [1]})
    assert [row.wall_us for row in RunReader(tmp_path).steps(0, 0)] == [3.0]
    foreign(path, columns, **index)
    reader = RunReader(tmp_path)
    assert list(reader.steps(0, 0)) == []
    assert reader.unusable == [path]


def test_a_word_that_no_record_knows_is_damage(run: Path) -> None:
    compact_run(run)
    path = parquet_file(attempt_dir(run, 0), "windows", 0)
    table = pq.read_table(path)
    at = table.schema.get_field_index("device_kind")
    pq.write_table(table.set_column(at, "device_kind", pa.array(["abacus"] * len(table))), path)
    reader = RunReader(run)
    assert (list(reader.windows(0, 0)), reader.unusable) == ([], [path])


# --- what it needs


def test_without_pyarrow_a_compacted_run_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compact_run(run)
    for module in [name for name in sys.modules if name.startswith(("pyarrow", "rankscope.runs.parquet"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError, match=r"pip install 'rankscope\[analysis\]'"):
        list(RunReader(run).steps(0, 0))


@pytest.mark.slow
def test_reading_json_lines_loads_no_parquet_library(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rankscope.runs.reader import RunReader; "
        "n = len(list(RunReader(Path(sys.argv[1])).steps(0, 0))); "
        "print(n, 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(STEPS), "False"]


def test_the_command_line(run: Path, tmp_path: Path, cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    shutil.copytree(run, tmp_path / "other")
    before = cli("analyze", str(run), "--format", "json").stdout
    done = cli("compact", str(run), "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["schema"] == "rankscope.compact/1"
    assert said["records"]["steps"] == RANKS * STEPS
    assert cli("analyze", str(run), "--format", "json").stdout == before
    done = cli("compact", str(tmp_path / "other"))
    assert "711 records (600 steps, 18 windows, 72 collectives, 18 kernels, 1 plan, 2 gpu)" in done.stdout
    assert "Nothing to compact" in cli("compact", str(tmp_path / "other")).stdout
    done = cli("compact", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
