"""Arguments accepted by ``analyze``, and its errors for all others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError


def trace(path: Path, *, late: bool | Callable[[int], bool] = False, steps: int = 10, **distributed: Any) -> Path:
    events: list[dict[str, Any]] = []
    for step in range(steps):
        at = step * 1000
        arrive = 700 if (late(step) if callable(late) else late) else 300
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 1000, "pid": 1, "tid": 1},
            kernel("gemm", at, 300, 7),
            kernel("ncclDevKernel_AllReduce_Sum_f32", at + arrive, 900 - arrive, 9),
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": distributed, "host_name": "n1"}))
    return path


def kernel(name: str, ts: int, dur: int, stream: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": stream, "args": {"stream": stream}}


def test_files_folders_and_patterns_find_the_same_traces(tmp_path: Path) -> None:
    files = [trace(tmp_path / "t" / f"rank-{rank}.json", late=rank == 1) for rank in range(3)]
    by_file = analyze(files)
    by_folder = analyze([tmp_path / "t"])
    by_pattern = analyze([tmp_path / "t" / "rank-*.json"])
    assert by_file.verdict == by_folder.verdict == by_pattern.verdict
    assert by_file.ranks == by_folder.ranks == by_pattern.ranks
    assert (by_file.verdict.kind, by_file.verdict.rank) == ("straggler", 1)
    assert by_file.verdict.steps == (0, 10)
    assert by_file.verdict.summary.startswith("Rank 1 on host n1 makes the other 2 ranks wait")


def test_unreadable_trace_given_by_name_is_an_error(tmp_path: Path) -> None:
    good = trace(tmp_path / "rank-0.json")
    bad = tmp_path / "rank-1.json"
    bad.write_text("{")
    with pytest.raises(InputError, match=r"rank-1\.json"):
        analyze([good, bad])
    with pytest.raises(InputError, match=r"rank-1\.json"):
        analyze([bad])


def test_unreadable_trace_in_a_folder_lowers_coverage_and_is_named(tmp_path: Path) -> None:
    for rank in range(3):
        trace(tmp_path / f"rank-{rank}.json")
    (tmp_path / "rank-3.json").write_text("{")
    for path in (tmp_path, tmp_path / "rank-?.json"):
        analysis = analyze([path])
        assert [row.rank for row in analysis.ranks] == [0, 1, 2]
        assert analysis.source.coverage == pytest.approx(0.75)
        assert any("rank-3.json" in warning and "truncated" in warning for warning in analysis.source.warnings)


def test_folder_with_only_an_unreadable_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text("{")
    with pytest.raises(InputError, match=r"rank-0\.json.*truncated"):
        analyze([tmp_path])


def test_two_traces_of_one_rank_are_not_compared(tmp_path: Path) -> None:
    analysis = analyze([trace(tmp_path / "a" / "rank-0.json"), trace(tmp_path / "b" / "rank-0.json")])
    assert (analysis.verdict.kind, analysis.source.is_one_job, analysis.source.world_size) == ("insufficient_data", False, None)
    assert "both of rank 0 at the same time" in analysis.verdict.summary


def test_each_of_several_traces_must_identify_its_rank(tmp_path: Path) -> None:
    nameless = trace(tmp_path / "trace.json")
    assert analyze([nameless]).ranks[0].rank == 0
    analysis = analyze([nameless, trace(tmp_path / "rank-1.json")])
    assert (analysis.verdict.kind, analysis.source.is_one_job) == ("insufficient_data", False)
    assert "ranks of these 2 traces are not known" in analysis.verdict.summary
    assert "rank-0.json.gz" in analysis.verdict.next[0]


def test_missing_input_is_an_error_that_names_the_searched_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        analyze([tmp_path / "gone"])
    with pytest.raises(InputError, match="no file matches"):
        analyze([tmp_path / "*.json"])
    with pytest.raises(InputError, match=r"no run directory \(run\.json\)"):
        analyze([tmp_path])
    with pytest.raises(InputError, match="nothing to analyse"):
        analyze([])


def test_folder_of_runs_is_an_error_that_names_a_run(synthetic: Callable[..., Any]) -> None:
    run = synthetic(steps=3).write()
    with pytest.raises(InputError, match=f"a folder of runs; name one of them, such as {run}"):
        analyze([run.parent])


def test_several_runs_and_runs_mixed_with_traces_are_refused(synthetic: Callable[..., Any], tmp_path: Path) -> None:
    run = synthetic(steps=3).write()
    with pytest.raises(InputError, match="one run at a time"):
        analyze([run, run])
    with pytest.raises(InputError, match="not both"):
        analyze([run, trace(tmp_path / "rank-0.json")])


def test_trace_of_one_rank_of_a_larger_world_accuses_no_rank(tmp_path: Path) -> None:
    analysis = analyze([trace(tmp_path / "rank-0.json", rank=0, world_size=8)])
    assert analysis.verdict.kind == "insufficient_data"
    assert "1 rank of 8" in analysis.verdict.summary
    assert analysis.source.coverage == pytest.approx(1 / 8)


def test_trace_of_a_one_rank_job_is_judged_by_its_limit(tmp_path: Path) -> None:
    analysis = analyze([trace(tmp_path / "rank-0.json", rank=0, world_size=1)])
    assert analysis.verdict.kind in {"communication_bound", "balanced"}
    assert "one rank" in analysis.verdict.summary


def test_equal_ranks_are_not_accused(tmp_path: Path) -> None:
    for rank in range(4):
        trace(tmp_path / f"rank-{rank}.json", rank=rank, world_size=4)
    analysis = analyze([tmp_path])
    assert analysis.verdict.kind == "communication_bound"
    assert all(row.imposed_us == 0 and row.share is None for row in analysis.imposed_wait)
    assert analysis.collectives.matched == 10


def test_run_without_run_json_is_not_read_as_a_folder_of_traces(synthetic: Callable[..., Any]) -> None:
    run = synthetic(steps=3).write()
    (run / "run.json").unlink()
    with pytest.raises(InputError, match=r"looks like a run directory.*run\.json is missing"):
        analyze([run])


def test_named_pipe_is_no_trace_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-1.json")
    trace(tmp_path / "rank-0.json", rank=0, world_size=1)
    with pytest.raises(InputError, match="not a regular file"):
        analyze([tmp_path / "rank-1.json"])
    assert [row.rank for row in analyze([tmp_path]).ranks] == [0]


def test_link_to_a_trace_is_read(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").symlink_to(trace(tmp_path / "elsewhere" / "t.json", rank=0, world_size=1))
    assert analyze([tmp_path / "rank-0.json"]).ranks[0].rank == 0


def test_no_rank_verdict_names_the_number_of_ranks_with_traces(tmp_path: Path) -> None:
    # given three ranks of four, whose collectives were of a group of these three
    for rank in range(3):
        path = trace(tmp_path / f"rank-{rank}.json", rank=rank, world_size=4)
        content = json.loads(path.read_text())
        for event in content["traceEvents"]:
            if event["name"].startswith("nccl"):
                event["args"] |= {"Collective name": "allreduce", "Process Group Name": "tp", "Process Group Ranks": "[0, 1, 2]"}
        path.write_text(json.dumps(content))
    analysis = analyze([tmp_path])
    assert analysis.collectives.matched == 10
    assert "No rank makes the others wait beyond chance among the 3 of 4 ranks with traces" in analysis.verdict.summary


def test_too_few_collectives_to_exclude_chance_are_not_balanced(tmp_path: Path) -> None:
    # given rank 1 late in six steps of seven, and rank 0 in the other
    for rank in range(2):
        trace(tmp_path / f"rank-{rank}.json", late=(3).__eq__ if rank == 0 else (3).__ne__, steps=7)
    verdict = analyze([tmp_path]).verdict
    assert verdict.kind == "insufficient_data"
    assert "rank 1" in verdict.summary
    assert "trace more steps" in verdict.summary


def test_traced_operations_are_refused_outside_whatif(tmp_path: Path) -> None:
    file = tmp_path / "trace-job.parquet"
    with pytest.raises(InputError, match="no such file"):
        analyze([file])
    file.write_bytes(b"PAR1")
    for path in (file, tmp_path):
        with pytest.raises(InputError, match=r"trace-job\.parquet: Parquet.*`rankscope whatif` only"):
            analyze([path])


def test_run_may_be_given_by_its_file(synthetic: Callable[..., Any]) -> None:
    run = synthetic(steps=3).write()
    assert analyze([run / "run.json"]) == analyze([run])
