"""The number of ranks of a job is never less than its process groups and ranks show, whatever the metadata say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.analysis.breakdowns import breakdown
from tests.nccl.dumps import write_dumps
from tests.nccl.faults import FAULTS
from tests.nccl.layouts import LAYOUTS, LayoutJob
from tests.nccl.traces import clocks, document

from rankscope.analysis.captured import analyze_captured
from rankscope.analysis.engine import analyze
from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.result.analysis import Analysis
from rankscope.runs.reader import RunReader
from rankscope.runs.records import CollectiveRecord

SIZES = ("Group size", "Process Group Ranks")


def of_traces(
    folder: Path,
    ranks: Sequence[int],
    *,
    distributed: dict[str, Any] | None = None,
    without: Sequence[str] = (),
    fault: str = "none",
    layout: str = "ddp",
) -> Analysis:
    """Return the analysis of the traces of some ranks. ``told``: their ``distributedInfo``; ``without``: keys of no event."""
    job = LayoutJob(LAYOUTS[layout], FAULTS[fault], steps=10)
    for rank in ranks:
        trace = document(job.ranks[rank], clocks(job.world)[rank])
        trace.pop("distributedInfo")
        if distributed is not None:
            trace["distributedInfo"] = {"rank": rank, **distributed}
        for event in trace["traceEvents"]:
            event["args"] = {name: value for name, value in event["args"].items() if name not in without}
        name = f"rank{rank}.json" if len(ranks) > 1 else "trace.json"
        (folder / name).write_bytes(msgspec.json.encode(trace))
    return analyze([folder])


@pytest.mark.parametrize(
    ("distributed", "without", "world", "text"),
    [
        (None, (), 8, "1 rank of at least 8"),
        (None, ("Group size",), 8, "1 rank of at least 8"),
        (None, ("Process Group Ranks",), 8, "1 rank of at least 8"),
        # A kernel of NCCL has more than one rank.
        (None, SIZES, 2, "1 rank of at least 2"),
        ({"world_size": 1}, (), 8, "1 rank of at least 8"),
        ({"world_size": 4}, (), 8, "1 rank of at least 8"),
        ({"world_size": 8}, (), 8, "1 rank of 8"),
        ({"world_size": 16}, (), 16, "1 rank of 16"),
        ({"pg_config": [{"pg_name": "0", "ranks": [*range(16)]}]}, (), 16, "1 rank of at least 16"),
    ],
)
def test_single_trace_of_a_larger_job_asks_for_the_others(
    tmp_path: Path, distributed: dict[str, Any] | None, without: Sequence[str], world: int, text: str
) -> None:
    analysis = of_traces(tmp_path, [0], distributed=distributed, without=without)
    assert (analysis.verdict.kind, analysis.source.world_size) == ("insufficient_data", world)
    assert text in analysis.verdict.summary
    assert analysis.source.coverage == pytest.approx(1 / world)


@pytest.mark.parametrize("distributed", [None, {"world_size": 2}])
def test_two_of_eight_traces_name_no_rank(tmp_path: Path, distributed: dict[str, Any] | None) -> None:
    analysis = of_traces(tmp_path, [2, 3], distributed=distributed, fault="slow device")
    assert (analysis.verdict.kind, analysis.source.world_size) == ("insufficient_data", 8), analysis.verdict.summary
    assert "2 ranks of at least 8" in analysis.verdict.summary
    assert bool([warning for warning in analysis.source.warnings if "2 ranks" in warning and "8" in warning]) == (
        distributed is not None
    )


def test_ranks_of_a_complete_group_are_judged_among_themselves(tmp_path: Path) -> None:
    """The tensor-parallel group of ranks 0 to 3 has all traces; the other replica has none."""
    verdict = of_traces(tmp_path, range(4), layout="tp x dp").verdict
    assert verdict.kind != "straggler"
    assert "among the 4 of 8 ranks with traces" in verdict.summary


@pytest.mark.parametrize("ranks", [[5], [4, 5]])
def test_largest_rank_is_a_lower_bound_of_the_world_size(tmp_path: Path, ranks: list[int]) -> None:
    analysis = of_traces(tmp_path, ranks, distributed={"world_size": 2}, without=SIZES)
    assert (analysis.verdict.kind, analysis.source.world_size) == ("insufficient_data", 6)


def test_job_of_one_rank_is_recognised(tmp_path: Path) -> None:
    job = LayoutJob(LAYOUTS["ddp"], FAULTS["none"], steps=10)
    trace = document(job.ranks[0], clocks(job.world)[0])
    trace.pop("distributedInfo")
    events = [event for event in trace["traceEvents"] if "nccl" not in event["name"] and "param" not in event["name"]]
    kernels = {event["args"]["correlation"] for event in events if event.get("cat") == "kernel"}
    trace["traceEvents"] = [
        event for event in events if "LaunchKernel" not in event["name"] or event["args"]["correlation"] in kernels
    ]
    (tmp_path / "trace.json").write_bytes(msgspec.json.encode(trace))
    analysis = analyze([tmp_path])
    assert (analysis.verdict.kind, analysis.source.world_size) == ("compute_bound", None)
    assert "one rank" in analysis.verdict.summary


def test_damaged_group_size_is_ignored(tmp_path: Path) -> None:
    of_traces(tmp_path, [0], distributed={"world_size": 8})
    file = tmp_path / "trace.json"
    file.write_bytes(file.read_bytes().replace(b'"Group size":8', b'"Group size":888888888888', 1))
    assert analyze([tmp_path]).source.world_size == 8


def test_dumps_of_the_last_ranks_are_incomplete(tmp_path: Path) -> None:
    write_dumps(LayoutJob(LAYOUTS["tp x dp"], FAULTS["none"], steps=20), tmp_path)
    for rank in range(4):
        (tmp_path / f"dump_{rank}.json").unlink()
    assert analyze([tmp_path]).source.world_size == 8


@pytest.fixture
def run_of(synthetic: Callable[..., Any], add_windows: Callable[..., None]) -> Callable[..., Path]:
    """Return a function that writes a run with a profiled step, whose collective is of some group."""

    def make(*, ranks: int, group: dict[str, Any], **options: Any) -> Path:
        run: Path = synthetic(ranks=ranks, **options).write()
        for rank in range(ranks):
            times: dict[str, Any] = {"enqueue_unix_ns": 10**18, "start_unix_ns": 10**18, "end_unix_ns": 10**18 + 1000}
            row = CollectiveRecord(step=7, group="0", index=0, op="all_reduce", stream=0, **times, **group)
            window = breakdown(7, compute=90_000.0, idle=10_000.0)
            add_windows(run, rank, [window], [row])
        return run

    return make


GROUPS = [{"group_size": 8}, {"group_ranks": [*range(8)]}, {"group_ranks": [0, 7]}, {"root": 7}]


@pytest.mark.parametrize("group", GROUPS)
def test_run_with_one_recorded_rank_is_part_of_a_larger_world(run_of: Callable[..., Path], group: dict[str, Any]) -> None:
    run = run_of(ranks=1, group=group)
    analysis = analyze([run])
    assert (analysis.verdict.kind, analysis.source.world_size) == ("insufficient_data", 8), analysis.verdict.summary
    assert "of a world of 8" in analysis.verdict.summary
    assert any("no records of" in warning and "1" in warning and "7" in warning for warning in analysis.source.warnings)
    assert OnlineAnalysis(run).update().source.world_size == 8
    assert analyze_captured(RunReader(run), 0, [0], range(7, 8)).source.world_size == 8


def test_run_with_some_recorded_ranks_is_judged_among_them(run_of: Callable[..., Path]) -> None:
    analysis = analyze([run_of(ranks=4, group={"group_size": 8})])
    assert (analysis.verdict.kind, analysis.source.world_size) == ("compute_bound", 8), analysis.verdict.summary
    assert "among the 4 of 8 ranks with records" in analysis.verdict.summary
    assert analysis.source.coverage == pytest.approx(0.5)


def test_group_of_all_recorded_ranks_keeps_the_world_size(run_of: Callable[..., Path]) -> None:
    assert analyze([run_of(ranks=4, group={"group_size": 4})]).source.world_size == 4
