"""Trace details and communication patterns of the command line, as shown in the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.analysis.breakdowns import breakdown
from tests.command_line import Cli

from rankscope.analysis.collectives.windows import reduce_trace
from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.trace.columns import read_trace
from rankscope.base.errors import InputError


def test_text_is_short_unless_details_are_requested(shared_data: Path) -> None:
    traces = shared_data / "traces/dlrm_8ranks_v100"
    assert "in detail" not in render_text(analyze([traces]))
    text = render_text(analyze([traces], detail=True), width=80, detail=True)
    # The rank of the verdict comes first.
    assert re.findall(r"^rank (\d) in detail, a window of", text, re.MULTILINE) == ["7", "0"]
    assert re.search(r"^ +84  communication +8  1\.7 ms +15\.9%", text, re.MULTILINE)
    assert re.search(r"^optimizer +67 ", text, re.MULTILINE)
    assert re.search(r"^host to device +Pageable -> Device +8 ", text, re.MULTILINE)
    assert "communication: 217 µs transferring, 5.5% of it under compute; 1.5 ms waiting for" in text
    assert re.search(r"^idle 8\.3 ms: 81\.\d% as nothing was launched", text, re.MULTILINE)
    assert "details of 6 more ranks not shown" in text
    assert all(len(line) <= 80 for line in text.splitlines() if str(traces) not in line)


def test_long_names_are_cut_and_escape_sequences_removed(tmp_path: Path) -> None:
    events = [kernel("sgemm", 0, 1000, 7), kernel("odd\x1b]0;pwned\x07" + "x" * 300, 0, 500, 9)]
    text = render_text(write(tmp_path, events, detail=True), width=80, detail=True)
    assert "--communication-pattern" in text
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines() if str(tmp_path) not in line)


def kernel(name: str, ts: float, dur: float, stream: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": {"stream": stream, "device": 0, **args}}


def write(folder: Path, events: list[dict[str, Any]], **options: Any) -> Any:
    (folder / "rank-0.json").write_text(json.dumps({"traceEvents": events}))
    return analyze([folder], **options)


def test_pattern_marks_communication_kernels_and_metadata_outweighs_names(tmp_path: Path) -> None:
    events = [
        kernel("sgemm", 0, 100, 7),
        kernel("homegrown_ring_step", 50, 100, 9),
        kernel("odd_one", 200, 10, 9, **{"Collective name": "allreduce"}),
    ]
    (before,) = write(tmp_path, events).ranks
    assert (before.compute_us, before.communication_us) == (150, 10)
    (after,) = write(tmp_path, events, communication_pattern=re.compile("ring_")).ranks
    assert (after.compute_us, after.communication_us, after.overlap_us) == (100, 110, 50)


def test_pattern_without_a_match_is_a_warning(tmp_path: Path) -> None:
    result = write(tmp_path, [kernel("sgemm", 0, 100, 7)], communication_pattern=re.compile("ring_"))
    assert result.source.warnings == ["the communication pattern 'ring_' is in no kernel's name"]
    assert write(tmp_path, [kernel("ring_1", 0, 100, 7)], communication_pattern=re.compile("ring_")).source.warnings == []


def test_run_has_no_details_and_refuses_a_pattern(synthetic: Callable[..., Any]) -> None:
    path = synthetic().write()
    analysis = analyze([path], detail=True)
    assert analysis.source.warnings == analyze([path]).source.warnings
    assert all(row.detail is None for row in analysis.ranks)
    with pytest.raises(InputError, match="a communication pattern is for traces"):
        analyze([path], communication_pattern=re.compile("x"))


def test_details_round_trip_through_json(example_traces: Path) -> None:
    analysis = analyze([example_traces / "jobs/recompute"], detail=True)
    assert msgspec.json.decode(msgspec.json.encode(analysis), type=type(analysis)) == analysis


def test_command_accepts_details_and_patterns(cli: Cli, example_traces: Path) -> None:
    trace = example_traces / "jobs/recompute/rank-0.json.gz"
    (usual,) = json.loads(cli("analyze", trace, "--format", "json").stdout)["ranks"]
    assert usual["detail"] is None
    completed = cli("analyze", trace, "--detail", "--communication-pattern", "mlp_forward", "--format", "json")
    assert completed.returncode == 0, completed.stderr
    (row,) = json.loads(completed.stdout)["ranks"]
    assert row["communication_us"] > usual["communication_us"] + 0.2 * usual["compute_us"]
    assert row["detail"]["classes"][0]["name"] == "communication"


@pytest.mark.parametrize(
    ("pattern", "message"), [("(", "is no regular expression"), ("", "finds the empty text"), (".*", "finds the empty text")]
)
def test_invalid_pattern_is_a_usage_error(cli: Cli, example_traces: Path, pattern: str, message: str) -> None:
    completed = cli("analyze", example_traces / "jobs/ddp", "--communication-pattern", pattern)
    assert completed.returncode == 2
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr


def test_classes_recompute_and_idle_reasons_of_recorded_windows_are_summed(
    synthetic: Callable[..., Any], add_windows: Callable[..., None]
) -> None:
    # given two profiled steps of rank 0, one of rank 1 from an older recorder without kernel classes
    path = synthetic(ranks=2).write()
    window = breakdown(3, compute=60, exposed=15, idle=25, communication_us=20, overlap_us=5)
    parts = {"class_us": {"gemm": 40.0, "communication": 20.0}, "idle_starved_us": 20.0, "idle_queued_us": 5.0}
    add_windows(
        path,
        0,
        [
            msgspec.structs.replace(window, **parts, recompute_us=8.0),
            msgspec.structs.replace(window, step=4, **parts, recompute_us=None),
        ],
        [],
    )
    add_windows(path, 1, [window], [])
    analysis = analyze([path])
    first, second = analysis.ranks
    assert first.class_us == {"gemm": 80, "communication": 40}
    assert (first.idle_starved_us, first.idle_queued_us, first.recompute_us) == (40, 10, None)
    assert (second.class_us, second.idle_starved_us) == (None, None)
    # and the text shows them for the rank that has them, on request
    assert "in detail" not in render_text(analysis)
    text = render_text(analysis, detail=True)
    assert re.findall(r"^rank (\d) in detail", text, re.MULTILINE) == ["0"]
    assert re.search(r"^gemm +80 µs +40\.0%$", text, re.MULTILINE)
    assert "40 µs idle as nothing was launched, 10 µs idle with work queued" in text


def test_windows_of_steps_keep_the_parts_that_a_run_records(shared_data: Path) -> None:
    trace = read_trace(shared_data / "traces/resnet_8ranks_mi300/rank-0.json.gz")
    reduction = reduce_trace(trace)
    (row,) = analyze([trace.path], detail=True).ranks
    assert row.detail is not None
    for kept, whole in zip(reduction.breakdowns, row.detail.steps, strict=True):
        assert kept.class_us == {part.name: part.busy_us for part in whole.classes}
        assert whole.recompute is not None
        assert kept.recompute_us == whole.recompute.busy_us
        reasons = (kept.idle_starved_us, kept.idle_launching_us, kept.idle_queued_us, kept.idle_unknown_us)
        assert sum(value or 0.0 for value in reasons) == pytest.approx(kept.idle_us)
    assert {kernel.kernel_class for kernel in reduction.kernels if kernel.kind == "communication"} == {None}
    assert "convolution" in {kernel.kernel_class for kernel in reduction.kernels}
