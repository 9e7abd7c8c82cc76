"""What of a run is exported: chosen steps and ranks, what fits, kept raw traces, the last attempt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.perfetto.small_runs import SKEW_NS, START, STEP_US, exported, make_run, step_record
from tests.step_files import append

from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.base.errors import InputError
from rankscope.runs.paths import attempt_dir, rank_dir
from rankscope.runs.records import AttemptInfo, RankInfo
from rankscope.runs.small_files import create_attempt, write_record


def test_export_is_limited_to_the_selection_but_matched_with_all_ranks(tmp_path: Path) -> None:
    model, export = exported(make_run(tmp_path / "run"), steps=StepRange(3, 5), ranks=frozenset({0, 3}))
    assert (export.ranks, export.steps) == ([0, 3], (3, 5))
    assert {event.args["step"] for event in model.of("step")} == {3, 4}
    assert {event.process[:6] for event in model.of("step")} == {"rank 0", "rank 3"}
    assert [event.name for event in model.of("wait")] == ["waiting for rank 3"]
    assert export.arrows == 1


def test_steps_beyond_the_limit_are_left_out_and_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=200, profiled=(100, 101))
    model, export = exported(run, max_events=1_000)
    assert export.steps is not None
    assert export.steps[0] <= 100
    assert export.steps[1] == 107
    assert export.events <= 1_000
    assert len(model.of("collective")) == 8
    assert any("of steps 0 to 199" in omission and "--steps" in omission for omission in export.left_out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "steps"),
    [
        (StepRange(), (0, 124)),
        (StepRange(200), (200, 325)),
        (StepRange(5), (5, 129)),
        (StepRange(past=340), (0, 124)),
        (StepRange(22, 340), (22, 147)),
    ],
)
def test_exported_steps_use_the_limit(tmp_path: Path, chosen: StepRange, steps: tuple[int, int]) -> None:
    # given a run whose only profile is at its beginning
    run = make_run(tmp_path / "run", steps=350, profiled=(20, 21))
    # when not all chosen steps fit
    _, export = exported(run, verdict=False, max_events=4_000, steps=chosen)
    # then as many are exported as fit, from the first chosen one, and the report has their number
    assert export.steps == steps
    assert 3_000 < export.events <= 4_000
    (number,) = re.findall(r"about ([\d,]+) of", " ".join(export.left_out))
    assert export.events <= int(number.replace(",", "")) <= 4_000
    # and what it says gets the others
    past = 350 if chosen.past is None else chosen.past
    if chosen != StepRange():
        assert f"--steps {steps[1]}:{past} " in " ".join(export.left_out)
    (all_events,) = re.findall(r"--max-events (\d+) all", " ".join(export.left_out))
    whole = exported(run, verdict=False, max_events=int(all_events), steps=chosen)[1]
    assert whole.steps == (chosen.first or 0, past)


def test_empty_selection_is_an_error_with_the_available_range(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(InputError, match="no such steps were recorded; there are steps 0 to 5"):
        exported(run, steps=StepRange(100))
    with pytest.raises(InputError, match="none of these ranks: there are 4, from 0 to 3"):
        exported(run, ranks=frozenset({9}))
    with pytest.raises(InputError, match="one run at a time"):
        exported(run, run)
    with pytest.raises(InputError, match="nothing to export"):
        exported()


def test_windows_are_exported_without_step_records(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for file in run.rglob("steps-*"):
        file.unlink()
    model, export = exported(run, verdict=False)
    assert (export.steps, len(model.of("collective")), len(model.of("window"))) == ((2, 4), 8, 8)
    # and nothing usable is an error
    for file in run.rglob("collectives-*.jsonl"):
        file.write_text(file.read_text().replace('"end_unix_ns":1', '"end_unix_ns":-1'))
    with pytest.raises(InputError, match="no usable record of steps 2 to 3"):
        exported(run)
    for file in run.rglob("collectives-*.jsonl"):
        file.unlink()
    with pytest.raises(InputError, match="no step was recorded"):
        exported(run)


def kept_trace(run: Path, rank: int, first: int, host: str) -> None:
    base = START + SKEW_NS[host]
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "ts": step * 10_000,
            "dur": 10_000,
            "pid": 7,
            "tid": 7,
        }
        for step in (first, first + 1)
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": at, "dur": 100.125, "pid": 0, "tid": 7, "args": {"grid": [1, 2, 3]}}
        for at in (first * 10_000 + 50, first * 10_000 + 10_050)
    ]
    folder = rank_dir(run, 0, rank) / "traces"
    folder.mkdir()
    document = {"traceEvents": events, "baseTimeNanoseconds": base}
    (folder / f"window-{first:09d}.json").write_text(json.dumps(document))


def test_kept_raw_traces_are_merged_on_request(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    kept_trace(run, 0, 2, "a")
    kept_trace(run, 3, 2, "b")
    (rank_dir(run, 0, 3) / "traces" / "window-000000001.json.gz").write_bytes(b"\x1f\x8bnot gzip")
    # when all steps are exported, they are omitted, and the output reports it
    model, export = exported(run)
    assert model.of("kernel") == []
    assert any("3 were kept; --raw" in omission for omission in export.left_out)
    # when steps are chosen, the traces of these steps are included
    model, export = exported(run, steps=StepRange(2, 3))
    kernels = model.of("kernel")
    assert {kernel.track for kernel in kernels} == {"device 0 stream 7"}
    assert {kernel.process[:6] for kernel in kernels} == {"rank 0", "rank 3"}
    assert kernels[0].args == {"grid": [1, 2, 3]}
    assert kernels[0].end - kernels[0].start == 100_125
    first = model.of("step", "rank 3")[0]
    assert abs(model.of("kernel", "rank 3")[0].start - first.start - 50_000) <= 1
    assert any("window-000000001" in omission and "gzip" in omission for omission in export.left_out)
    # and on request
    assert len(exported(run, raw=True)[0].of("kernel")) == 4
    assert exported(run, raw=False, steps=StepRange(2, 3))[0].of("kernel") == []


def test_raw_traces_are_cut_to_the_chosen_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = rank_dir(run, 0, 0) / "traces"
    folder.mkdir()
    events: list[dict[str, Any]] = []
    for step in (2, 3, 4):
        at = STEP_US * step
        call = {"name": f"call{step}", "cat": "cuda_runtime", "pid": 10, "tid": 11, "args": {"correlation": step}}
        work = {"name": f"gemm{step}", "cat": "kernel", "pid": 0, "tid": 7, "args": {"correlation": step}}
        events.append({"ph": "X", "ts": at + 100, "dur": 10, **call})
        # given kernels that run after the step that launched them
        events.append({"ph": "X", "ts": at + STEP_US + 500, "dur": 700, **work})
        events.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "id": step, "pid": 10, "tid": 11, "ts": at + 100})
        events.append({"ph": "f", "cat": "ac2g", "name": "ac2g", "id": step, "pid": 0, "tid": 7, "ts": at + STEP_US + 500})
    (folder / "window-000000002.json").write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": START}))
    # when a step is exported
    model, _ = exported(run, steps=StepRange(3, 4))
    # then its calls and the work that they launched are shown, whole and connected, and those of other steps are not
    assert [event.name for event in model.of("cuda_runtime")] == ["call3"]
    assert [(kernel.name, kernel.end - kernel.start) for kernel in model.of("kernel")] == [("gemm3", 700_000)]
    assert ("call3", "gemm3") in [(begin.name, end.name) for begin, end in model.arrows]
    assert {event.name for event in exported(run, steps=StepRange(2, 5))[0].of("kernel")} == {"gemm2", "gemm3", "gemm4"}


def test_the_last_attempt_is_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    create_attempt(run, AttemptInfo(attempt=1, start_unix_ns=START, world_size=1))
    write_record(rank_dir(run, 1, 0) / "rank.json", RankInfo(rank=0, world_size=1, host="a", pid=1, start_unix_ns=START))
    append(rank_dir(run, 1, 0), "steps", step_record(0, START + 10**10))
    assert attempt_dir(run, 1).is_dir()
    model, export = exported(run)
    assert len(model.of("step")) == 1
    assert "1 earlier attempt" in export.left_out
