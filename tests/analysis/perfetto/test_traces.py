"""Kineto traces exported to Perfetto, parsed by a model of its trace processor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.perfetto_model import Model, load

from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.perfetto.export_result import ExportResult
from rankscope.analysis.perfetto.selection import Selection
from rankscope.base.errors import InputError

Events = list[dict[str, Any]]


def kernel(name: str, ts: float, dur: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    by_key = {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": stream}
    return {**by_key, "args": {"stream": stream, **args}}


def on_cpu(name: str, ts: float, dur: float, *, cat: str = "cpu_op", tid: int = 11) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 10, "tid": tid, "args": {}}


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return on_cpu(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def write(path: Path, events: Events, *, base: int = 1_700_000_000_000_000_000, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": base, **more}))
    return path


def exported(*paths: Path, **selection: Any) -> tuple[Model, ExportResult]:
    data = bytearray()
    export = export_perfetto(paths, data.extend, selection=Selection(**selection))
    model = load(bytes(data))
    assert model.dropped == []
    assert model.lost_arrows == 0
    return model, export


@pytest.mark.slow
def test_all_ranks_of_dlrm_share_one_clock(shared_data: Path) -> None:
    model, export = exported(shared_data / "traces" / "dlrm_8ranks_v100")
    assert model.processes[1:] == [f"rank {rank}" for rank in range(8)]
    # matched collectives end together, to within a few microseconds
    assert export.clock.residual_us is not None
    ends: dict[int, list[int]] = {}
    for event in model.of("collective"):
        ends.setdefault(event.args["index"], []).append(event.end)
    spreads = sorted(max(item) - min(item) for item in ends.values())
    assert {len(item) for item in ends.values()} == {8}
    assert (spreads[3] + spreads[4]) / 2 / 1000 == pytest.approx(export.clock.residual_us, abs=0.01)
    assert spreads[-1] < 10_000
    # and so do the kernels of the raw events below
    kernels = {(event.process, event.start, event.end) for event in model.of("kernel")}
    assert {(event.process, event.start, event.end) for event in model.of("collective")} <= kernels
    # the late rank is the rank of the verdict
    (verdict,) = model.of("verdict")
    assert verdict.args["rank"] == 7
    assert sum(event.end - event.start for event in model.of("wait") if event.name == "waiting for rank 7") > 20_000_000
    assert export.arrows == len([begin for begin, _ in model.arrows if begin.kind == "collective"]) > 0
    # launches are linked to the kernels that they launched
    assert all(begin.kind == "cuda_runtime" for begin, end in model.arrows if end.kind in {"kernel", "gpu_memcpy"})
    assert len(model.of("cpu_op", "rank 7")) == 1633


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "moe_dualpipe_deepep",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("ddp_2ranks_nccl_metadata", "kineto_2021_schema", "resnet_8ranks_mi300")
        ),
    ],
)
def test_reference_traces_lose_nothing_in_perfetto(shared_data: Path, name: str) -> None:
    limit = 60_000
    model, export = exported(shared_data / "traces" / name, max_events=limit)
    assert export.ranks
    assert len(model.slices) > 500
    added = {"collective", "wait", "step", "verdict", "finding", "warning", "clock", "left out"}
    raw = [slice_ for slice_ in model.slices if slice_.kind not in added]
    assert len(raw) + 2 * (len(model.arrows) - export.arrows) <= limit
    assert all("too many" not in omission and "far from" not in omission for omission in export.left_out)


def test_hosts_with_different_clocks_are_aligned(tmp_path: Path) -> None:
    # given rank 1 on a host 3 s ahead, whose files have another base
    for rank, ahead in ((0, 0), (1, 3_000_000_000)):
        base = 1_700_000_000_000_000_000 + rank * 7_000_000_000
        shift = (ahead - rank * 7_000_000_000) / 1000
        events = [
            kernel("ncclDevKernel_AllReduce", shift + 1000 * number + 200 * rank, 500.125 - 200 * rank, 20) for number in range(6)
        ]
        write(tmp_path / f"rank-{rank}.json", events, base=base, host_name=f"n{rank}", distributedInfo={"world_size": 2})
    model, export = exported(tmp_path)
    assert export.clock.offset_us[1] - export.clock.offset_us[0] == pytest.approx(3_000_000)
    assert model.processes[1:] == ["rank 0 · host n0", "rank 1 · host n1"]
    ends = [[event.end for event in model.of("kernel", f"rank {rank}")] for rank in (0, 1)]
    assert ends[0] == ends[1]
    # rank 1 came 200 us later each time
    assert [(event.name, event.end - event.start) for event in model.of("wait")] == [("waiting for rank 1", 200_000)] * 6
    assert export.arrows == 6


def test_overlapping_kernels_of_a_stream_use_a_second_track(tmp_path: Path) -> None:
    events = [kernel("a", 0, 100), kernel("b", 50, 100), kernel("c", 150, 10), on_cpu("outer", 0, 80), on_cpu("inner", 10, 70)]
    model, _ = exported(write(tmp_path / "rank-0.json", events))
    where = {slice_.name: (slice_.track, slice_.depth) for slice_ in model.slices}
    assert where["a"] == ("device 0 stream 7", 0)
    assert where["b"] == ("device 0 stream 7 (2)", 0)
    assert where["c"] == ("device 0 stream 7", 0)
    assert (where["outer"], where["inner"]) == (("thread 11 of 10", 0), ("thread 11 of 10", 1))


def test_stream_annotations_have_a_track_and_arrows_end_at_kernels(tmp_path: Path) -> None:
    events = [
        kernel("gemm", 100.5, 50),
        {**kernel("forward", 100.5, 300), "cat": "gpu_user_annotation"},
        on_cpu("cudaLaunchKernel", 20, 5, cat="cuda_runtime"),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 5, "pid": 10, "tid": 11, "ts": 20},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 5, "pid": 0, "tid": 7, "ts": 100.5, "bp": "e"},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 6, "pid": 0, "tid": 7, "ts": 100.5, "bp": "e"},
        {"ph": "M", "name": "thread_name", "pid": 10, "tid": 11, "ts": 0, "args": {"name": "main \x1b[31m"}},
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 10,
            "tid": 11,
            "ts": 30,
            "s": "t",
            "args": {"Bytes": 7},
        },
    ]
    model, _ = exported(write(tmp_path / "rank-0.json", events))
    assert [(begin.name, end.name) for begin, end in model.arrows] == [("cudaLaunchKernel", "gemm")]
    assert {slice_.name: slice_.track for slice_ in model.slices if slice_.process == "rank 0"} == {
        "cudaLaunchKernel": "main �[31m",
        "[memory]": "main �[31m",
        "gemm": "device 0 stream 7",
        "forward": "device 0 stream 7: annotations",
    }
    assert next(slice_.args for slice_ in model.slices if slice_.name == "[memory]") == {"Bytes": 7}


def test_absolute_times_with_decimals_keep_every_nanosecond(tmp_path: Path) -> None:
    # given microseconds since 1970 with 19 digits, more than a float64 can hold
    text = json.dumps({"traceEvents": [kernel("a", 1111, 1), kernel("b", 2222, 1)]})
    text = text.replace("1111,", "1700000000000000.001,").replace("2222,", "1700000000000002.004,")
    file = tmp_path / "rank-0.json"
    file.write_text(text)
    model, export = exported(file)
    first, second = model.of("kernel")
    assert second.start - first.start == 2_003
    assert first.start + export.base_unix_ns == 1_700_000_000_000_000_001


def test_chosen_steps_are_cut_out_of_a_trace(tmp_path: Path) -> None:
    events = [step(number, 1000 * number, 1000) for number in range(4)]
    events += [kernel(f"k{number}", 1000 * number + 50, 10) for number in range(4)]
    model, export = exported(write(tmp_path / "rank-0.json", events), steps=StepRange(1, 3))
    assert export.steps == (1, 3)
    assert {event.name for event in model.of("kernel")} == {"k1", "k2"}
    assert [event.name for event in model.of("step")] == ["step 1", "step 2"]
    with pytest.raises(InputError, match="none of these steps; there are steps 0 to 3"):
        exported(tmp_path / "rank-0.json", steps=StepRange(9))


def test_chosen_steps_include_the_work_they_launched(tmp_path: Path) -> None:
    events = [step(number, 1000 * number, 1000) for number in range(4)]
    for number in range(4):
        call = on_cpu(f"call{number}", 1000 * number + 50, 10, cat="cuda_runtime")
        events += [
            {**call, "args": {"correlation": number + 1}},
            kernel(f"k{number}", 1000 * number + 1100, 10, correlation=number + 1),
        ]
    model, _ = exported(write(tmp_path / "rank-0.json", events), steps=StepRange(1, 3))
    assert {event.name for event in model.of("kernel")} == {"k1", "k2"}
    assert {event.name for event in model.of("cuda_runtime")} == {"call1", "call2"}


def test_empty_selection_is_an_error_with_the_available_range(tmp_path: Path) -> None:
    # given traces of two ranks without annotated steps, one without events, and operations
    for rank in (2, 5):
        write(tmp_path / f"rank-{rank}.json", [kernel("k", 50, 10)])
    empty = write(tmp_path / "empty" / "rank-0.json", [])
    with pytest.raises(InputError, match="none of these ranks: there are 2, from 2 to 5"):
        exported(tmp_path, ranks=frozenset([3]))
    with pytest.raises(InputError, match="no steps to choose from: none are annotated in it"):
        exported(tmp_path, steps=StepRange(3))
    with pytest.raises(InputError, match=re.escape(f"{empty}: ")):
        exported(empty)
    (empty.parent / "trace-x.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="traced operations are read by `rankscope whatif` only"):
        exported(empty.parent / "trace-x.parquet")


def test_events_beyond_the_limit_are_left_out_shortest_first(tmp_path: Path) -> None:
    events = [kernel(f"k{number}", 100 * number, number + 1) for number in range(50)]
    events += [{"ph": "i", "name": "moment", "pid": 0, "tid": 7, "ts": 5, "s": "t"}] * 10
    file = write(tmp_path / "rank-0.json", events)
    model, export = exported(file, max_events=20)
    assert [event.name for event in model.of("kernel")] == [f"k{number}" for number in range(30, 50)]
    assert any("30 slices of the raw traces" in omission and "10 instants" in omission for omission in export.left_out)
    assert len(exported(file, max_events=50)[0].of("kernel")) == 50


def test_damaged_events_are_counted_and_the_rest_is_exported(tmp_path: Path) -> None:
    events: list[Any] = [
        kernel("good", 10, 5),
        {**kernel("x", 0, 0), "ts": "soon"},
        {**kernel("x", 0, 0), "dur": -5},
        {**kernel("x", 0, 0), "pid": [1]},
        kernel("far", 1e12, 5),
        {"ph": "C", "name": "count", "pid": 1, "tid": 1, "ts": 1, "args": {"a": 1}},
        {"ph": "\x00", "name": "odd", "ts": 1},
        7,
    ]
    wild = kernel("\x00\x1b" + "n" * 9000, 20, 5, deep=[[[[[[1]]]]]], text="\x1b" * 5000)
    model, export = exported(write(tmp_path / "rank-0.json", [*events, wild]))
    assert [slice_.name for slice_ in model.of("kernel")][:1] == ["good"]
    assert all(slice_.name.isprintable() and len(slice_.name) <= 200 for slice_ in model.slices)
    output = " ".join(export.left_out)
    assert "are damaged" in output
    assert "2 counter events" in output


def test_event_of_an_absurd_time_does_not_move_the_others(tmp_path: Path) -> None:
    # given absolute times, and kernels with times in 1970 and 2090
    now = 1_700_000_000_000_000
    events = [kernel(f"k{number}", now + 10 * number, 5) for number in range(9)]
    events += [kernel("old", 3, 5), kernel("ncclDevKernel_AllReduce", 4, 5, 20), kernel("new", 3_800_000_000_000_000, 5)]
    file = write(tmp_path / "rank-0.json", events, base=0)
    model, export = exported(file)
    assert [event.name for event in model.of("kernel")] == [f"k{number}" for number in range(9)]
    assert min(event.start for event in model.slices) + export.base_unix_ns == now * 1000
    assert export.left_out == ["25.0% of the 12 device events of rank 0 are damaged: 3 left out, far in time from the rest"]


def test_unreadable_trace_of_a_folder_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.json", [kernel("a", 0, 5)])
    torn = write(tmp_path / "rank-1.json", [kernel("a", 0, 5), kernel("b", 9, 5)])
    torn.write_text(torn.read_text()[:-60])
    _, export = exported(tmp_path)
    assert export.ranks == [0]
    assert any("rank-1.json: truncated" in omission for omission in export.left_out)
    with pytest.raises(InputError, match=r"rank-1\.json"):
        exported(tmp_path / "rank-0.json", tmp_path / "rank-1.json")
