"""Files of operations: what is wrong in one is refused with its place, before it costs memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from tests.analysis.whatif.simulated_operations import Columns, alike, job, write

from rankscope.analysis.whatif import operations_file, traced_operations
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.base.errors import InputError


def without(columns: Columns, name: str) -> Columns:
    return {key: values for key, values in columns.items() if key != name}


def replaced(columns: Columns, name: str, row: int, value: Any) -> Columns:
    values = list(columns[name])
    values[row] = value
    return {**columns, name: values}


GOOD = job(alike)
WRONG: dict[str, tuple[Columns, str]] = {
    "no column": (without(GOOD, "duration"), "there is no column duration"),
    "no columns": ({"a": [1]}, "there is no column dp_rank, stage, rank, step, seq_id, optype, start_ts, duration"),
    "no rows": ({name: pa.array([], pa.array(values).type) for name, values in GOOD.items()}, "no operations in it"),
    "nan": (replaced(GOOD, "duration", 7, float("nan")), "row 7: duration is nan"),
    "negative": (replaced(GOOD, "duration", 7, -1.0), "row 7: duration is -1 seconds, below 0"),
    "infinite": (replaced(GOOD, "start_ts", 3, float("inf")), "row 3: start_ts is inf"),
    "a year": (replaced(GOOD, "duration", 7, 1e9), "row 7: duration is 1e+09 seconds, more than a year"),
    "null": (replaced(GOOD, "stage", 2, None), "row 2: stage is missing"),
    "null name": (replaced(GOOD, "optype", 2, None), "row 2: optype is missing"),
    "unknown operation": (replaced(GOOD, "optype", 4, "evil\x1b[2J"), "row 4: unknown operation 'evil\\x1b[2J'"),
    "hostile stage": (replaced(GOOD, "stage", 5, 2**40), "row 5: stage is 1099511627776, which no job has"),
    "hostile step": (replaced(GOOD, "step", 5, -(2**63)), "row 5: step is -9223372036854775808, which no job has"),
    "text": (replaced(GOOD, "step", 0, 0) | {"step": ["a"] * len(GOOD["step"])}, "column step is string, not whole numbers"),
    "fractions": ({**GOOD, "stage": [0.5] * len(GOOD["step"])}, "column stage is double, not whole numbers"),
    "numbers for names": ({**GOOD, "optype": GOOD["seq_id"]}, "column optype is int64, not names"),
    "twice": ({name: values + values[:1] for name, values in GOOD.items()}, "the same operation twice in a step"),
    "a stage without anything": ({**GOOD, "stage": [3 * index for index in GOOD["stage"]]}, "but nothing of stage 1"),
    "two of one rank": ({**GOOD, "rank": GOOD["stage"]}, "needs a rank of its own"),
    "a rank that moves": (replaced(GOOD, "rank", 0, 99), "changes its rank"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_invalid_file_is_refused_with_place_and_reason(tmp_path: Path, name: str) -> None:
    columns, text = WRONG[name]
    path = write(tmp_path, columns)
    with pytest.raises(InputError, match=re.escape(text)) as caught:
        whatif([path])
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def keep(columns: Columns, chosen: Callable[[dict[str, Any]], bool]) -> Columns:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return {name: [row[name] for row in rows if chosen(row)] for name in columns}


def test_pipeline_without_its_transfers_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, keep(GOOD, lambda row: row["optype"] != "forward-recv" or row["seq_id"] != 1))
    with pytest.raises(InputError, match="stage 0 has 3 forward-send, but stage 1 2 forward-recv"):
        whatif([path])


def test_contradictory_order_is_refused(tmp_path: Path) -> None:
    # given a first stage whose first backward starts before its first forward, on whose result it depends
    columns = {name: list(values) for name, values in GOOD.items()}
    for row, (op, stage, seq) in enumerate(zip(columns["optype"], columns["stage"], columns["seq_id"], strict=True)):
        if (op, stage, seq) == ("backward-compute", 0, 0):
            columns["start_ts"][row] = -5.0
    with pytest.raises(InputError, match=r"operations wait for each other in a circle: .*backward-compute 0 of stage 0"):
        whatif([write(tmp_path, columns)])


def test_replicas_without_a_common_step_are_refused(tmp_path: Path) -> None:
    # given replica 1 without an optimizer in the only step
    columns = keep(job(alike, steps=1), lambda row: (row["dp_rank"], row["optype"]) != (1, "optimizer"))
    columns = keep(columns, lambda row: (row["dp_rank"], row["optype"]) != (0, "optimizer-clip-main-grad") or row["stage"])
    with pytest.raises(InputError, match="in no step have all replicas the same operations"):
        whatif([write(tmp_path, columns)])


@pytest.mark.parametrize("data", [b"", b"PAR1", b"hello, this is no parquet", b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_file_that_is_no_parquet_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace-x.parquet"
    path.write_bytes(data)
    with pytest.raises(InputError, match=re.escape(str(path))):
        whatif([path])


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    content = path.read_bytes()
    for size in range(0, len(content), max(1, len(content) // 40)):
        path.write_bytes(content[:size])
        with pytest.raises(InputError):
            whatif([path])


@pytest.mark.parametrize(
    ("module", "limit", "message"),
    [
        (operations_file, "MAX_OPERATIONS", "at most 10 are read"),
        (traced_operations, "MAX_NODES", "a step of 30 operations on one replica; at most 10"),
    ],
)
def test_too_many_operations_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str, message: str
) -> None:
    monkeypatch.setattr(module, limit, 10)
    with pytest.raises(InputError, match=message):
        whatif([write(tmp_path, GOOD)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("world_size: many\n", "world_size is 'many'"),
        ("world_size: 0", "world_size is '0'"),
        ("- a list\n", "line 1"),
        ("\xff", None),
    ],
)
def test_invalid_metadata_are_refused(tmp_path: Path, text: str, message: str | None) -> None:
    path = write(tmp_path, GOOD)
    (tmp_path / "meta-x.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message or "UTF-8") as caught:
        whatif([path])
    assert "meta-x.yaml" in str(caught.value)


def test_second_file_of_operations_is_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "trace-a.parquet")
    write(tmp_path, GOOD, "trace-b.parquet")
    with pytest.raises(InputError, match=re.escape("trace-b.parquet: a second file of operations beside")):
        whatif([tmp_path])
    (tmp_path / "trace-b.parquet").unlink()
    assert whatif([tmp_path]).slowdown == 1.0


def test_metadata_of_another_job_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    (tmp_path / "meta-x.yaml").write_text("world_size: 3\n")
    with pytest.raises(InputError, match="the job has 3 GPUs, but there are 4 ranks in it"):
        whatif([path])


def test_other_input_beside_a_file_of_operations_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    with pytest.raises(InputError, match="cannot be looked at together with"):
        whatif([path, tmp_path / "rank-0.json"])
    with pytest.raises(InputError, match="cannot be looked at together with"):
        whatif([path, path])
    with pytest.raises(InputError, match="nothing to look at"):
        whatif([])
