"""Trace files of all kinds: old, odd, damaged, hostile."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.collectives.windows import reduce_file
from rankscope.analysis.trace import files
from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.files import TraceText
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


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"\x7fELF\x02\x01\x01\x00" * 20, "not JSON"),
        (b"PK\x03\x04 zip", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"traceEvents": [{"ph": "X", "na', "truncated"),
        (b'{"traceEvents": [}', "truncated"),
        (b'{"hello": "world"}', "no list of traceEvents"),
        (b'{"traceEvents": {"a": 1}}', "no list of traceEvents"),
        (b'{"traceEvents": null}', "no list of traceEvents"),
        (b"[]", "nothing to analyse"),
        (b'{"traceEvents": []}', "nothing to analyse"),
        (b'{"traceEvents": [1, "two", null, []]}', "nothing to analyse"),
        (gzip.compress(b'{"traceEvents": []}' * 1000, mtime=0)[:40], "truncated"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"\x1f\x8b\x08\x00not really gzip", "gzip"),
    ],
)
def test_an_unreadable_file_is_one_line_with_its_name_and_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="a folder"):
        read_trace(tmp_path)


def test_a_bomb_is_refused_before_it_fills_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 10_000_000)
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(b" " * 20_000_000))
    with pytest.raises(InputError, match="too large"):
        sum(map(len, TraceText(path)))


def test_metadata_are_those_of_the_file(tmp_path: Path) -> None:
    content = {"traceEvents": [event()], "distributedInfo": {"rank": 5, "world_size": 9, "backend": "nccl"}, "host_name": "n7"}
    trace = read_trace(write(tmp_path / "rank-3.json", content))
    assert (trace.rank, trace.world_size, trace.host) == (5, 9, "n7")


def test_times_are_absolute_where_the_trace_has_a_base(tmp_path: Path) -> None:
    content = {"traceEvents": [event(ts=4458677009853.422, dur=2636.669)], "baseTimeNanoseconds": 1711964646000000000}
    trace = read_trace(write(tmp_path / "rank-0.json", content))
    assert trace.start.tolist() == [1711964646000000000 + 4458677009853422]
    assert (trace.end - trace.start).tolist() == [2636669]


def test_categories_of_2021_are_known(tmp_path: Path) -> None:
    events = [event(cat="Kernel"), event(cat="Memcpy", ts=20), event(cat="Memset", ts=30), event(cat="Operator", ts=0, dur=100)]
    (row,) = reduce_file(read_trace(write(tmp_path / "rank-0.json", events))).breakdowns
    assert (row.compute_us, row.memcpy_us, row.window_us) == (5, 10, 25)


def test_impossible_times_cost_their_event_and_not_the_file(tmp_path: Path) -> None:
    times: list[dict[str, Any]] = [{"dur": -3}, {"dur": 1e30}, {"ts": 1e300}, {"ts": "soon"}, {"dur": None}]
    types: list[dict[str, Any]] = [{"args": [1]}, {"name": {"a": 1}}]
    host = [event("aten::mm", cat="cpu_op", **bad) for bad in times]
    events = [event(), *host, *(event(**bad) for bad in times + types)]
    trace = read_trace(write(tmp_path / "rank-0.json", {"traceEvents": events}))
    assert (trace.quality.device_events, trace.quality.without_time, trace.damaged) == (6, 5, 7)
    (window,) = reduce_file(trace).breakdowns
    assert (window.compute_us, window.window_us) == (5, 5)


@pytest.mark.parametrize("base", [2**63, 2**64 - 1, -5])
def test_an_impossible_base_time_is_no_base_time(tmp_path: Path, base: int) -> None:
    trace = read_trace(write(tmp_path / "rank-0.json", {"traceEvents": [event(ts=10)], "baseTimeNanoseconds": base}))
    assert trace.start.tolist() == [10_000]


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-Infinity", "NaN"])
def test_numbers_that_json_does_not_have_cost_their_event_and_not_the_file(tmp_path: Path, value: str) -> None:
    text = json.dumps({"traceEvents": [event(), event(ts=20, dur=123456789)]}).replace("123456789", value)
    trace = read_trace(write(tmp_path / "rank-0.json", text))
    assert (trace.quality.without_time, trace.damaged) == (1, 0)
    assert reduce_file(trace).breakdowns[0].window_us == 5


def test_names_that_are_not_utf8_do_not_cost_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(json.dumps([event(name="caf?")]).encode().replace(b"?", b"\xe9"))
    assert reduce_file(read_trace(path)).breakdowns[0].compute_us == 5


def test_odd_metadata_around_good_events_does_not_cost_the_file(tmp_path: Path) -> None:
    content = {
        "traceEvents": [event()],
        "distributedInfo": "none",
        "deviceProperties": 3,
        "baseTimeNanoseconds": "soon",
        "host_name": 5,
    }
    trace = read_trace(write(tmp_path / "rank-1.json", content))
    assert (trace.rank, trace.world_size, trace.host) == (None, None, None)
