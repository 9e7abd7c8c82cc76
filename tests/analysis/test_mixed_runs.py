"""Traces of ranks from different runs of a job are not compared; those of one run are, whatever the clocks of its hosts show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.nccl.faults import FAULTS
from tests.nccl.layouts import Layout, LayoutJob
from tests.nccl.traces import Clock, document

from rankscope.analysis.engine import analyze
from rankscope.analysis.whatif.whatif_of_paths import whatif

HOUR_NS = 3_600_000_000_000
RANKS = 4


def traces(fault: str, clocks: list[Clock] | None = None, *, later_ns: int = 0) -> list[dict[str, Any]]:
    """Return the traces of a run whose rank 3 has a fault, on a host for each rank."""
    job = LayoutJob(Layout("ddp", RANKS), FAULTS[fault], steps=12)
    steps = frozenset(range(1, 11))
    documents = [document(rank, clock, steps) for rank, clock in zip(job.ranks, clocks or [Clock()] * RANKS, strict=True)]
    for number, one in enumerate(documents):
        one["host_name"] = f"host{number}"
        one["baseTimeNanoseconds"] += later_ns
    return documents


def write(folder: Path, documents: list[dict[str, Any]]) -> Path:
    for number, one in enumerate(documents):
        (folder / f"rank{number}.json").write_bytes(msgspec.json.encode(one))
    return folder


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_rank_of_another_run_is_not_compared(tmp_path: Path, *, is_shared: bool) -> None:
    # given rank 3 of a run in which it was slow, and the others of the run after the repair, on a host each or on one
    documents = [*traces("none", later_ns=HOUR_NS)[:3], traces("slow device")[3]]
    if is_shared:
        for one in documents:
            one["host_name"] = "node0"
    verdict = analyze([write(tmp_path, documents)]).verdict
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", []), verdict.summary
    assert "different runs" in verdict.summary
    answer = whatif([tmp_path])
    assert answer.status == "insufficient_data"
    assert "different runs" in answer.summary


def test_clocks_that_are_hours_apart_and_drift_hide_no_slow_rank(tmp_path: Path) -> None:
    clocks = [Clock(), Clock(1e5, 3e-4), Clock(3.6e9, -3e-4), Clock(9 * 3.6e9, 1e-4)]
    verdict = analyze([write(tmp_path, traces("slow device", clocks))]).verdict
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", [3], "compute"), verdict.summary


def test_the_cause_is_looked_for_in_the_steps_that_all_traces_have(tmp_path: Path) -> None:
    # given the trace of the slow rank, which ends after seven of ten steps
    documents = traces("slow device")
    events = documents[3]["traceEvents"]
    last = next(event for event in events if event["name"] == "ProfilerStep#8")["ts"]
    documents[3]["traceEvents"] = [event for event in events if event["ts"] < last]
    verdict = analyze([write(tmp_path, documents)]).verdict
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", [3], "compute"), verdict.summary


def test_two_steps_that_all_traces_have_name_the_slow_rank(tmp_path: Path) -> None:
    # given rank 2 traced two steps later than the others
    job = LayoutJob(Layout("ddp", RANKS), FAULTS["slow device"], steps=10)
    windows = [frozenset(range(4, 8)) if rank.rank == 2 else frozenset(range(2, 6)) for rank in job.ranks]
    documents = [document(rank, Clock(), steps) for rank, steps in zip(job.ranks, windows, strict=True)]
    verdict = analyze([write(tmp_path, documents)]).verdict
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", [3], "compute"), verdict.summary
    assert (verdict.confidence or 1.0) < 0.8
