"""What NCCL left on a real GPU (``tests/data/h200``): Flight Recorder dumps, logs of NCCL Inspector, answers of NCCL RAS."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rankscope.analysis.engine import analyze
from rankscope.analysis.hang.ras.json_form import read_json
from rankscope.analysis.hang.ras.judging import judge
from rankscope.analysis.hang.ras.text_form import read_text

RECORDED = Path(__file__).parents[1] / "data" / "h200"


def unpacked(folder: Path, pattern: str) -> Path:
    for path in RECORDED.glob(pattern):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return folder


@pytest.mark.parametrize(
    ("pattern", "source"), [("nccl_trace_rank_*.gz", "flight_recorder"), ("vm-pid*.log.gz", "nccl_inspector")]
)
def test_both_sources_name_the_rank_that_slept(tmp_path: Path, pattern: str, source: str) -> None:
    result = analyze([unpacked(tmp_path, pattern)])
    assert (result.verdict.kind, result.verdict.rank, result.verdict.evidence_source) == ("straggler", 1, source)
    assert result.verdict.pattern == "fixed"
    (straggler, *_) = result.findings
    (saved,) = [row.value for row in straggler.evidence if row.name == "saved"]
    assert saved == pytest.approx(56_000, rel=0.1), "per step, of the 60 ms that it slept"
    assert result.source.coverage == 1


@pytest.mark.parametrize("form", ["json", "txt"])
def test_the_rank_that_never_came_is_named(form: str) -> None:
    text = (RECORDED / f"ras.{form}").read_text()
    read = read_json if form == "json" else read_text
    result = judge(read(text), read(text), world_size=2, pids={0: 1348, 1: 1349})
    assert (result.kind, result.cause) == ("hang", "not_arrived")
    assert [item.row.global_rank for item in result.named] == [1]
