"""Traces read to columns: their metadata and times, odd values, and limits."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.analysis.trace_events import kernel, text_of, trace_event, trace_of

from rankscope.analysis.collectives.windows import reduce_file
from rankscope.analysis.engine import analyze
from rankscope.analysis.parallel.workers import LocalEngine
from rankscope.analysis.trace import columns
from rankscope.analysis.trace.columns import read_trace
from rankscope.base.errors import InputError


def event(name: Any = "gemm", ts: Any = 10, dur: Any = 5, cat: str = "kernel", **extra: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": ts,
        "dur": dur,
        "pid": 0,
        "tid": 7,
        "args": {"stream": 7, "correlation": 1},
        **extra,
    }


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_metadata_come_from_the_file(tmp_path: Path) -> None:
    content = {"traceEvents": [event()], "distributedInfo": {"rank": 5, "world_size": 9, "backend": "nccl"}, "host_name": "n7"}
    trace = read_trace(write(tmp_path / "rank-3.json", content))
    assert (trace.rank, trace.world_size, trace.host) == (5, 9, "n7")


def test_times_are_absolute_if_the_trace_has_a_base_time(tmp_path: Path) -> None:
    content = {"traceEvents": [event(ts=4458677009853.422, dur=2636.669)], "baseTimeNanoseconds": 1711964646000000000}
    trace = read_trace(write(tmp_path / "rank-0.json", content))
    assert trace.start.tolist() == [1711964646000000000 + 4458677009853422]
    assert (trace.end - trace.start).tolist() == [2636669]


def test_categories_of_2021_are_recognised(tmp_path: Path) -> None:
    events = [event(cat="Kernel"), event(cat="Memcpy", ts=20), event(cat="Memset", ts=30), event(cat="Operator", ts=0, dur=100)]
    (row,) = reduce_file(read_trace(write(tmp_path / "rank-0.json", events))).breakdowns
    assert (row.compute_us, row.memcpy_us, row.window_us) == (5, 10, 25)


def test_impossible_times_cost_only_their_event(tmp_path: Path) -> None:
    times: list[dict[str, Any]] = [{"dur": -3}, {"dur": 1e30}, {"ts": 1e300}, {"ts": "soon"}, {"dur": None}]
    types: list[dict[str, Any]] = [{"args": [1]}, {"name": {"a": 1}}]
    host = [event("aten::mm", cat="cpu_op", **bad) for bad in times]
    events = [event(), *host, *(event(**bad) for bad in times + types)]
    trace = read_trace(write(tmp_path / "rank-0.json", {"traceEvents": events}))
    assert (trace.quality.device_events, trace.quality.without_time, trace.damaged) == (6, 5, 7)
    (window,) = reduce_file(trace).breakdowns
    assert (window.compute_us, window.window_us) == (5, 5)


@pytest.mark.parametrize("base", [2**63, 2**64 - 1, -5])
def test_impossible_base_time_is_ignored(tmp_path: Path, base: int) -> None:
    trace = read_trace(write(tmp_path / "rank-0.json", {"traceEvents": [event(ts=10)], "baseTimeNanoseconds": base}))
    assert trace.start.tolist() == [10_000]


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-Infinity", "NaN"])
def test_numbers_outside_json_cost_only_their_event(tmp_path: Path, value: str) -> None:
    text = json.dumps({"traceEvents": [event(), event(ts=20, dur=123456789)]}).replace("123456789", value)
    trace = read_trace(write(tmp_path / "rank-0.json", text))
    assert (trace.quality.without_time, trace.damaged) == (1, 0)
    assert reduce_file(trace).breakdowns[0].window_us == 5


def test_names_that_are_not_utf8_do_not_prevent_reading(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(json.dumps([event(name="caf?")]).encode().replace(b"?", b"\xe9"))
    assert reduce_file(read_trace(path)).breakdowns[0].compute_us == 5


def test_invalid_metadata_around_good_events_are_ignored(tmp_path: Path) -> None:
    content = {
        "traceEvents": [event()],
        "distributedInfo": "none",
        "deviceProperties": 3,
        "baseTimeNanoseconds": "soon",
        "host_name": 5,
    }
    trace = read_trace(write(tmp_path / "rank-1.json", content))
    assert (trace.rank, trace.world_size, trace.host) == (None, None, None)


@pytest.mark.parametrize(
    ("limit", "event"),
    [
        ("MAX_ROWS", lambda at: kernel("gemm", at, 5)),
        ("MAX_NAME_CHARACTERS", lambda at: kernel(f"name {at}", at, 5)),
        ("MAX_THREADS", lambda at: trace_event("kernel", "gemm", at, 5, tid=at)),
        ("MAX_COLLECTIVES", lambda at: kernel("gemm", at, 5, Collective_name="allreduce")),
    ],
)
def test_trace_beyond_the_memory_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, event: Any
) -> None:
    monkeypatch.setattr(columns, limit, 90)
    with pytest.raises(InputError, match="too large to analyse: more than 90"):
        trace_of(tmp_path, [event(at) for at in range(100)])


@pytest.mark.slow
def test_several_processes_read_the_same_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # given traces of four ranks, of which one cannot be read and one is torn, and a size limit that every file exceeds
    monkeypatch.setattr("rankscope.analysis.parallel.workers.WORTH_A_PROCESS_BYTES", 1)
    for rank in range(4):
        data = text_of(500, distributedInfo={"rank": rank, "world_size": 4})
        (tmp_path / f"rank-{rank}.json").write_bytes({2: b"hello", 3: data[:-300]}.get(rank, data))
    # when they are read by one process and by several, from a thread as in a server, with all options
    chosen: dict[str, Any] = {"communication_pattern": re.compile("gemm_1$"), "detail": True}
    alone = analyze([tmp_path], **chosen)
    collected: list[Any] = []
    thread = threading.Thread(target=lambda: collected.append(analyze([tmp_path], engine=LocalEngine(2), **chosen)))
    thread.start()
    thread.join()
    # then the answers are the same to the byte
    assert msgspec.json.encode(collected[0]) == msgspec.json.encode(alone)
    assert len(alone.source.warnings) == 2
    assert all(row.detail is not None and row.communication_us for row in alone.ranks)
    with pytest.raises(InputError, match=r"rank-2\.json: not JSON"):
        analyze([tmp_path / "rank-0.json", tmp_path / "rank-2.json"], engine=LocalEngine(2))
