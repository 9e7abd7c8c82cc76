"""Folders of traces that are not simply one trace per rank of one job: what is compared, and what is said where nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.analysis.trace.test_damaged_jobs import NCCL, RANKS, SLOW, job
from tests.analysis.trace_events import Event, operator, written
from tests.command_line import run_in_process
from tests.nccl.faults import FAULTS
from tests.nccl.layouts import Layout, LayoutJob
from tests.nccl.traces import Clock, document

from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.whatif.whatif_of_paths import whatif


def metadata_of(rank: int) -> dict[str, Any]:
    return {"distributedInfo": {"rank": rank, "world_size": RANKS, "backend": "nccl"}}


def without(events: Sequence[Event], *categories: str) -> list[Event]:
    return [event for event in events if event["cat"] not in categories]


def check_slow_rank(analysis: Analysis) -> None:
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("straggler", [SLOW]), analysis.verdict.summary


def test_process_ids_in_names_yield_to_ranks_in_collectives(tmp_path: Path) -> None:
    # given names with a host and a process id, and no distributedInfo
    for rank, events in enumerate(job("device", numbered=True)):
        for event in events:
            if event["cat"] == "kernel" and "Collective name" in event["args"]:
                event["args"] |= {"Rank": rank, "Process Group Ranks": str(list(range(RANKS)))}
        written(tmp_path / f"gpu-a{rank % 2}_{8811 + 7 * rank}.pt.trace.json", events)
    analysis = analyze([tmp_path])
    check_slow_rank(analysis)
    assert [row.rank for row in analysis.ranks] == list(range(RANKS))
    assert (whatif([tmp_path]).slowdown or 0.0) > 1.5
    # and one of them is one of at least four
    result = analyze([tmp_path / "gpu-a0_8811.pt.trace.json"])
    assert (result.source.world_size, result.source.world_size_is_least) == (RANKS, True)
    assert "1 rank of at least 4," in render_text(result, width=100)


def test_traces_without_common_properties_are_not_compared(tmp_path: Path) -> None:
    # given three traces of jobs on one GPU, with the number of a run in the name
    for number, events in enumerate(job("device", numbered=True)[1:]):
        of_rank = [event for event in events if "nccl" not in event["name"] and event["args"].get("correlation", 1) % 6]
        written(tmp_path / f"model{number}__101600{number}.json", of_rank)
    analysis = analyze([tmp_path])
    assert (analysis.verdict.kind, analysis.source.is_one_job, analysis.source.coverage) == ("insufficient_data", False, None)
    assert (analysis.source.world_size, analysis.imposed_wait) == (None, [])
    assert "nothing says that these 3 traces are ranks of one job" in analysis.verdict.summary
    assert "3 traces, 10 steps\n" in render_text(analysis, width=100)
    assert [row.compute_us is not None for row in analysis.ranks] == [True] * 3
    answer = whatif([tmp_path])
    assert (answer.status, answer.source.world_size) == ("insufficient_data", None)


@pytest.fixture
def cycles(tmp_path: Path) -> Path:
    """Two files per rank, as schedule(repeat=2) leaves them: a healthy cycle, and a minute later one with a slow rank."""
    for later, fault in ((0.0, "none"), (6e7, "device")):
        for rank, events in enumerate(job(fault, numbered=True)):
            shifted = [event | {"ts": event["ts"] + later} for event in events]
            written(tmp_path / "cycles" / f"worker{rank}.{1750000000123 + later:.0f}.pt.trace.json", shifted, **metadata_of(rank))
    return tmp_path / "cycles"


def test_last_cycle_of_a_schedule_is_analysed(cycles: Path) -> None:
    analysis = analyze([cycles])
    check_slow_rank(analysis)
    assert (analysis.source.cycle, analysis.source.cycles, analysis.source.ranks) == (2, 2, RANKS)
    assert "cycle 2 of 2, the last (--cycle N: another)" in render_text(analysis, width=120)
    assert (whatif([cycles]).slowdown or 0.0) > 1.5


def test_traces_of_other_cycles_do_not_lower_the_coverage(cycles: Path) -> None:
    for path in cycles.iterdir():
        path.write_text(json.dumps({"traceEvents": json.loads(path.read_text())["traceEvents"]}))
    source = analyze([cycles]).source
    assert (source.ranks, source.cycles, source.coverage) == (RANKS, 2, 1.0)


def test_another_cycle_can_be_chosen(cycles: Path, tmp_path: Path) -> None:
    analysis = analyze([cycles], cycle=1)
    assert (analysis.verdict.ranks, analysis.source.cycle) == ([], 1)
    assert (whatif([cycles], cycle=1).slowdown or 0.0) < 1.1
    targets = [tmp_path / "1.perfetto", tmp_path / "2.perfetto"]
    exported = [
        run_in_process("export", cycles, "--perfetto", target, "--cycle", str(number)) for number, target in enumerate(targets, 1)
    ]
    assert [ended.returncode for ended in exported] == [0, 0], exported[0].stderr
    begins = [int(json.loads(target.read_text())["otherData"]["base_unix_ns"]) for target in targets]
    assert begins[1] - begins[0] > 5e10


LACKS: Final[dict[str, Callable[[Sequence[Event]], list[Event]]]] = {
    "has no collectives": lambda events: [event for event in events if event["args"].get("correlation", 1) % 6],
    "has no device events": lambda events: (
        without(events, "kernel", "cuda_runtime")
        + [operator("aten::mm", event["ts"], 9) for event in events if event["cat"] == "kernel"]
    ),
    "has no annotated steps": lambda events: without(events, "user_annotation"),
}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, SLOW])
@pytest.mark.parametrize("fault", ["none", "device", "host"])
@pytest.mark.parametrize("lacks", LACKS)
def test_trace_with_missing_event_kinds_is_not_compared(tmp_path: Path, lacks: str, fault: str, rank: int) -> None:
    for number, events in enumerate(job(fault, numbered=True)):
        written(tmp_path / f"rank-{number}.json", LACKS[lacks](events) if number == rank else events, **metadata_of(number))
    analysis = analyze([tmp_path])
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("insufficient_data", [])
    assert f"the trace of rank {rank} {lacks}" in analysis.verdict.summary
    assert whatif([tmp_path]).status == "insufficient_data"


def test_own_times_are_not_compared_if_a_trace_lacks_collectives(tmp_path: Path) -> None:
    # given a healthy job in whose trace of rank 0 a third of the collectives is lost, with their launches
    for rank, events in enumerate(job("none", numbered=True)):
        of_rank = [event for event in events if rank or event["args"].get("correlation", 1) % 18]
        written(tmp_path / f"rank-{rank}.json", of_rank, **metadata_of(rank))
    assert analyze([tmp_path]).verdict.ranks == []


def test_rank_that_costs_more_than_the_traced_time_is_not_named(tmp_path: Path) -> None:
    # given a healthy job, and a host of rank 0 whose clock is set back in the middle
    for rank, events in enumerate(job("none", numbered=False)):
        middle = max(event["ts"] for event in events) - 5e5
        of_rank = [
            event | {"ts": event["ts"] - 5e5 * (event["cat"] != "kernel" and event["ts"] > middle)} if rank == 0 else event
            for event in events
        ]
        written(tmp_path / f"rank-{rank}.json", of_rank, **metadata_of(rank))
    assert analyze([tmp_path]).verdict.ranks == []


def test_slow_rank_that_delays_no_other_is_not_named(tmp_path: Path) -> None:
    # given a healthy job on devices of unknown kind, on one of which all kernels that compute last too long by mistake
    for rank, events in enumerate(job("none", numbered=True)):
        for event in events:
            if event["cat"] == "kernel":
                event["cat"] = "privateuse1_kernel"
                event["dur"] += 4_000.0 * (rank == 1 and event["name"] != NCCL)
        written(tmp_path / f"rank-{rank}.json", events, **metadata_of(rank))
    analysis = analyze([tmp_path])
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("insufficient_data", []), analysis.verdict.summary
    assert "clocks or times are wrong" in analysis.verdict.summary


@pytest.mark.parametrize("fault", ["none", "device"])
def test_trace_with_times_in_another_unit_is_not_compared(tmp_path: Path, fault: str) -> None:
    for rank, events in enumerate(job(fault, numbered=True)):
        of_rank = [
            event | {"dur": event["dur"] / 1000 if rank == 1 and event["cat"] == "kernel" else event["dur"]} for event in events
        ]
        written(tmp_path / f"rank-{rank}.json", of_rank, **metadata_of(rank))
    verdict = analyze([tmp_path]).verdict
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", [])
    assert "the trace of rank 1 has kernels" in verdict.summary
    assert "another unit" in verdict.summary
    assert whatif([tmp_path]).status == "insufficient_data"


def test_waits_in_a_kernel_of_unknown_name_are_reported(tmp_path: Path) -> None:
    # given a job whose first all-reduce of a step runs in a kernel that is not known, the second in one of NCCL
    for rank, events in enumerate(job("host", numbered=True)):
        for event in events:
            if event["name"] == NCCL and event["args"]["Seq"] % 2 == 0:
                args = {key: value for key, value in event["args"].items() if key in ("correlation", "stream", "device")}
                event |= {"name": "my_op", "args": args}
        written(tmp_path / f"rank-{rank}.json", events, **metadata_of(rank))
    verdict = analyze([tmp_path]).verdict
    assert (verdict.kind, [row.name for row in verdict.unknown_kernels]) == ("insufficient_data", ["my_op"])
    assert whatif([tmp_path]).status == "insufficient_data"


def test_torch_npu_traces_get_their_rank_from_a_neighbouring_file(tmp_path: Path) -> None:
    for rank, events in enumerate(job("device", numbered=True)):
        folder = tmp_path / f"node0_{4711 + rank}_20250628101435_ascend_pt"
        written(folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", events)
        for other in (f"profiler_info_{rank}.json", "profiler_metadata.json", "ASCEND_PROFILER_OUTPUT/communication.json"):
            (folder / other).write_text("{}")
    analysis = analyze([tmp_path])
    check_slow_rank(analysis)
    # and files that are no traces are none of ranks that are missing
    assert (analysis.source.coverage, len(analysis.source.warnings)) == (1.0, 5)
    assert (whatif([tmp_path]).slowdown or 0.0) > 1.5
    assert run_in_process("export", tmp_path, "--perfetto", "-").returncode == 0


def test_verdict_on_host_only_traces_names_the_missing_events(tmp_path: Path) -> None:
    for rank, events in enumerate(job("device", numbered=True)):
        written(tmp_path / f"rank-{rank}.json", LACKS["has no device events"](events), **metadata_of(rank))
    verdict = analyze([tmp_path]).verdict
    assert "show no device and no collective" in verdict.summary
    assert "ProfilerActivity.CUDA" in verdict.next[0]


def test_folder_name_may_give_the_rank(tmp_path: Path) -> None:
    for rank, events in enumerate(job("device", numbered=True)):
        written(tmp_path / f"rank_{rank}" / "trace.json", events)
    check_slow_rank(analyze([tmp_path]))


@pytest.mark.parametrize("command", [("analyze",), ("whatif",), ("export", "--perfetto", "-")])
def test_missing_cycle_is_an_error_of_every_command(cycles: Path, command: tuple[str, ...]) -> None:
    ended = run_in_process(command[0], cycles, *command[1:], "--cycle", "3")
    assert ended.returncode != 0
    assert "no cycle 3: the traces are of 2 cycles, from 1 on" in ended.stderr


def test_restarted_job_has_no_cycles(cycles: Path) -> None:
    for path in cycles.glob("worker*.1750060000123.*"):
        content = json.loads(path.read_text())
        content["traceEvents"] = [event | {"pid": 77} for event in content["traceEvents"]]
        path.write_text(json.dumps(content))
    analysis = analyze([cycles])
    assert (analysis.verdict.kind, analysis.source.is_one_job) == ("insufficient_data", False)
    assert "different processes (1, 77)" in analysis.verdict.summary


def test_traces_without_device_activity_give_no_verdict(tmp_path: Path) -> None:
    for rank, events in enumerate(job("device", numbered=True)):
        written(tmp_path / f"rank-{rank}.json", without(events, "kernel"), **metadata_of(rank))
    for paths, ranks in (([tmp_path], RANKS), ([tmp_path / "rank-2.json"], 1)):
        analysis = analyze(paths)
        assert analysis.verdict.kind == "insufficient_data"
        assert "shows no device activity: 120 of 120 kernel launches have no kernel" in analysis.verdict.summary
        assert "ProfilerActivity.CUDA" in analysis.verdict.next[0]
        assert [row.compute_us for row in analysis.ranks] == [None] * ranks
        assert analysis.waterfall is None or all(part.us is None for part in analysis.waterfall.parts)


def test_rank_without_device_activity_counts_as_missing(tmp_path: Path) -> None:
    for rank, events in enumerate(job("device", numbered=True)):
        written(tmp_path / f"rank-{rank}.json", without(events, "kernel") if rank == 1 else events, **metadata_of(rank))
    analysis = analyze([tmp_path])
    assert analysis.verdict.kind == "insufficient_data"
    assert "rank 1 shows no device activity" in analysis.verdict.summary
    quality = analysis.ranks[1].data_quality
    assert quality is not None
    assert (quality.problem, quality.without_kernel, quality.launches) == ("no_activity", 120, 120)


HOUR_NS: Final = 3_600_000_000_000


def documents_of(fault: str, clocks: list[Clock] | None = None, *, later_ns: int = 0) -> list[dict[str, Any]]:
    """Return the traces of a run whose rank 3 has a fault, on a host for each rank."""
    layout_job = LayoutJob(Layout("ddp", RANKS), FAULTS[fault], steps=12)
    steps = frozenset(range(1, 11))
    documents = [document(rank, clock, steps) for rank, clock in zip(layout_job.ranks, clocks or [Clock()] * RANKS, strict=True)]
    for number, trace in enumerate(documents):
        trace["host_name"] = f"host{number}"
        trace["baseTimeNanoseconds"] += later_ns
    return documents


def put(folder: Path, documents: list[dict[str, Any]]) -> Path:
    for number, trace in enumerate(documents):
        (folder / f"rank{number}.json").write_bytes(msgspec.json.encode(trace))
    return folder


@pytest.mark.parametrize("is_shared", [False, True])
def test_rank_of_another_run_is_not_compared(tmp_path: Path, *, is_shared: bool) -> None:
    # given rank 3 of a run in which it was slow, and the others of the run after the repair, on a host each or on one
    documents = [*documents_of("none", later_ns=HOUR_NS)[:3], documents_of("slow device")[3]]
    if is_shared:
        for trace in documents:
            trace["host_name"] = "node0"
    verdict = analyze([put(tmp_path, documents)]).verdict
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", []), verdict.summary
    assert "different runs" in verdict.summary
    answer = whatif([tmp_path])
    assert answer.status == "insufficient_data"
    assert "different runs" in answer.summary


def test_clock_offsets_of_hours_and_drifts_hide_no_slow_rank(tmp_path: Path) -> None:
    clocks = [Clock(), Clock(1e5, 3e-4), Clock(3.6e9, -3e-4), Clock(9 * 3.6e9, 1e-4)]
    verdict = analyze([put(tmp_path, documents_of("slow device", clocks))]).verdict
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", [3], "compute"), verdict.summary


def test_cause_is_determined_in_the_steps_common_to_all_traces(tmp_path: Path) -> None:
    # given the trace of the slow rank, which ends after seven of ten steps
    documents = documents_of("slow device")
    events = documents[3]["traceEvents"]
    last = next(event for event in events if event["name"] == "ProfilerStep#8")["ts"]
    documents[3]["traceEvents"] = [event for event in events if event["ts"] < last]
    verdict = analyze([put(tmp_path, documents)]).verdict
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", [3], "compute"), verdict.summary


def test_two_common_steps_name_the_slow_rank(tmp_path: Path) -> None:
    # given rank 2 traced two steps later than the others
    layout_job = LayoutJob(Layout("ddp", RANKS), FAULTS["slow device"], steps=10)
    windows = [frozenset(range(4, 8)) if rank.rank == 2 else frozenset(range(2, 6)) for rank in layout_job.ranks]
    documents = [document(rank, Clock(), steps) for rank, steps in zip(layout_job.ranks, windows, strict=True)]
    verdict = analyze([put(tmp_path, documents)]).verdict
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", [3], "compute"), verdict.summary
    assert (verdict.confidence or 1.0) < 0.8
