"""Real jobs: one over gloo, recorded by the real profiler, and what NCCL left on a real GPU (``tests/data/h200``)."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis.collectives.windows import reduce_trace
from rankscope.analysis.engine import analyze
from rankscope.analysis.hang.ras.json_form import read_json
from rankscope.analysis.hang.ras.ras_judgement import judge
from rankscope.analysis.hang.ras.text_form import read_text
from rankscope.analysis.trace.columns import read_trace

SCRIPT = Path(__file__).with_name("gloo_training.py")
PAUSE_US = 100_000
# With two ranks chance names one as easily as the other: several steps in each block outweigh a busy machine.
STEPS = 32


@pytest.fixture(scope="module")
def traces(require_torch: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two ranks; rank 1 sleeps before each step."""
    folder = tmp_path_factory.mktemp("gloo")
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    environment = {**os.environ, "KINETO_LOG_LEVEL": "6", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    completed = subprocess.run(
        [*job, str(folder), "1", str(PAUSE_US / 1e6), str(STEPS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return folder


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_every_step_has_its_compute_and_its_collectives(traces: Path, rank: int) -> None:
    reduction = reduce_trace(read_trace(traces / f"rank-{rank}.json"))
    assert [row.step for row in reduction.breakdowns] == list(range(10, 10 + STEPS))
    assert all(row.device_kind == "cpu" and row.compute_us > 0 and row.communication_us > 0 for row in reduction.breakdowns)
    per_step = {step: [row for row in reduction.collectives if row.step == step] for step in range(10, 10 + STEPS)}
    assert len({len(rows) for rows in per_step.values()}) == 1
    assert all(rows and {row.op for row in rows} == {"all_reduce"} for rows in per_step.values())
    assert all(row.enqueue_unix_ns <= row.start_unix_ns <= row.end_unix_ns for row in reduction.collectives)
    assert {row.name for row in reduction.kernels} >= {"gloo:all_reduce", "aten::linear"}


@pytest.mark.full
@pytest.mark.slow
def test_sleeping_rank_imposes_the_wait(traces: Path) -> None:
    analysis = analyze([traces])
    imposed = {row.rank: row.imposed_us for row in analysis.imposed_wait}
    assert analysis.collectives.unmatched == 0
    assert imposed[1] > 0.8 * STEPS * PAUSE_US
    assert imposed[0] < 0.2 * imposed[1]
    assert (analysis.verdict.kind, analysis.verdict.rank, analysis.verdict.cause) == ("straggler", 1, "host")


RECORDED = Path(__file__).parents[1] / "data" / "h200"


def unpacked(folder: Path, pattern: str) -> Path:
    for path in RECORDED.glob(pattern):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return folder


@pytest.mark.parametrize(
    ("pattern", "source"), [("nccl_trace_rank_*.gz", "flight_recorder"), ("vm-pid*.log.gz", "nccl_inspector")]
)
def test_both_sources_name_the_sleeping_rank(tmp_path: Path, pattern: str, source: str) -> None:
    analysis = analyze([unpacked(tmp_path, pattern)])
    assert (analysis.verdict.kind, analysis.verdict.rank, analysis.verdict.evidence_source) == ("straggler", 1, source)
    assert analysis.verdict.pattern == "fixed"
    (straggler, *_) = analysis.findings
    (saved,) = [row.value for row in straggler.evidence if row.name == "saved"]
    assert saved == pytest.approx(56_000, rel=0.1), "per step, of the 60 ms that it slept"
    assert analysis.source.coverage == 1


@pytest.mark.parametrize("form", ["json", "txt"])
def test_rank_that_never_arrived_is_named(form: str) -> None:
    text = (RECORDED / f"ras.{form}").read_text()
    read = read_json if form == "json" else read_text
    result = judge(read(text), read(text), world_size=2, pids={0: 1348, 1: 1349})
    assert (result.kind, result.cause) == ("hang", "not_arrived")
    assert [item.row.global_rank for item in result.named] == [1]
