"""Lines of code in the samples of a stack, with their phases, and threads that load batches, recognised by stacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import pytest

from rankscope.profiler.helper.sampling import stack_lines
from rankscope.profiler.helper.sampling.loaders import batch_source, loader_samples, waits_for_others
from rankscope.profiler.helper.sampling.stack_lines import (
    PhaseTimeline,
    StackFrame,
    StackInterval,
    StackLines,
    calls_in,
    own_frame,
    stack_intervals,
)
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import BatchSource, LoaderSamples, Phase, StackLine

MS = 1_000_000
LIBRARY = "/usr/lib/python3/site-packages/torch/nn/linear.py"
FETCH = "/usr/lib/python3/site-packages/torch/utils/data/_utils/fetch.py"
STANDARD = f"{stack_lines._STANDARD[0]}threading.py"
WRAPPERS = importlib.util.find_spec("rankscope.profiler.rank.wrappers.attach")
RECORDER = "" if WRAPPERS is None else str(WRAPPERS.origin)
"""Also where the project is installed as its source tree, as `pip install -e` does."""


def event(ph: str, name: str, line: int, ts: int, tid: int = 7) -> dict[str, object]:
    return {"name": name, "ph": ph, "tid": tid, "ts": ts, "pid": 1, "cat": "py-spy", "args": {"filename": "t.py", "line": line}}


def test_samples_of_a_thread_become_one_interval_per_stack() -> None:
    trace = msgspec.json.encode(
        [
            event("B", "main", 1, 100),
            event("B", "other", 9, 100, tid=8),
            event("B", "step", 2, 100),
            event("E", "step", 2, 300),
            event("B", "step", 3, 300),
            event("E", "other", 9, 400, tid=8),
            event("E", "step", 3, 600),
            event("E", "main", 1, 600),
        ]
    )
    intervals = [
        (interval.start_us, interval.end_us, [frame.line for frame in interval.frames]) for interval in stack_intervals(trace)[7]
    ]
    assert intervals == [(100, 300, [1, 2]), (300, 600, [1, 3])]
    assert [interval.frames[0].line for interval in stack_intervals(trace)[8]] == [9]
    assert stack_intervals(b"[]") == {}
    with pytest.raises(msgspec.DecodeError):
        stack_intervals(b'[{"name": 1}]')


@pytest.mark.parametrize(
    ("files", "own"),
    [
        (["/job/train.py", "/job/model.py"], 1),
        (["/job/train.py", LIBRARY, "/job/model.py", LIBRARY, STANDARD], 2),
        (["/job/train.py", RECORDER, LIBRARY], 0),
        ([STANDARD, LIBRARY], 1),
        # The script is the user's code wherever it is, and so is the package that it is in
        (["<frozen runpy>", "/v/site-packages/mine/train.py", LIBRARY], 1),
        (["/v/site-packages/mine/train.py", "/v/site-packages/mine/model.py", "/v/site-packages/other/x.py"], 1),
        # Below the data loader, the line of the dataset counts, also of an installed one, but not that of the loop
        (["/job/train.py", FETCH, "/job/data.py", LIBRARY], 2),
        (["/job/train.py", FETCH, LIBRARY], 2),
    ],
)
def test_own_frame_is_the_innermost_frame_outside_libraries(files: list[str], own: int) -> None:
    frames = [StackFrame(file, number, "<module>" if number == 0 else "f") for number, file in enumerate(files)]
    if files[0].startswith("<"):
        frames[1] = StackFrame(files[1], 1, "<module>")
    assert own_frame(frames) is frames[own]


def step(began_ms: int) -> list[PhaseInterval]:
    """Return a step of 10 ms of data, 50 ms of forward, 20 ms of backward, 10 ms of the optimizer."""
    bounds: list[tuple[Phase, int, int]] = [("data", 0, 10), ("forward", 10, 60), ("backward", 60, 80), ("optimizer", 80, 90)]
    return [PhaseInterval(phase, (began_ms + began) * MS, (began_ms + end) * MS, 0) for phase, began, end in bounds]


def test_time_is_assigned_the_phase_of_the_enclosing_step() -> None:
    phases = PhaseTimeline([step(1090), step(1000)])
    ats = [phases.between(at * MS, at * MS) for at in (999, 1005, 1030, 1070, 1085, 1095, 1149, 1200, 1300)]
    assert ats == [None, "data", "forward", "backward", "optimizer", "data", "forward", None, None]
    assert phases.between(1030 * MS, 1036 * MS) == "forward"
    assert phases.between(1058 * MS, 1064 * MS) is None
    # The same phase of two steps: others lie between
    assert phases.between(1030 * MS, 1120 * MS) is None


def test_line_has_sample_share_phase_and_called_function(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\n\n\ndef forward():\n    time.sleep(1)\n    f(g())\n")
    main = StackFrame(str(script), 6, "<module>")
    pause, library = StackFrame(str(script), 5, "forward"), StackFrame(LIBRARY, 3, "Linear.forward")
    # 40 ms of the pause in forward of each step, and the rest at another line, in a library
    intervals = []
    for began_us in (0, 90_000):
        intervals += [
            StackInterval(began_us, began_us + 12_000, (main,)),
            StackInterval(began_us + 12_000, began_us + 52_000, (main, pause)),
            StackInterval(began_us + 52_000, began_us + 90_000, (main, library)),
        ]
    phases = PhaseTimeline([step(1000), step(1090)])
    samples, lines = StackLines().of(intervals, rate=100, zero_ns=(1000 * MS, 1006 * MS), phases=phases)
    assert samples == 18
    assert [(line.line, line.samples, line.call, line.innermost) for line in lines] == [
        (6, 10, None, "Linear.forward"),
        (5, 8, "time.sleep", None),
    ]
    # Line 6 is in several phases
    assert [line.phase for line in lines] == [None, "forward"]


def test_called_function_is_recorded_only_where_a_line_has_one_call(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text(
        "a.b.c(1)\nf(g())\nx = 1\nfor i in rows(\n    3):\n    h()(2)\nhook(lambda: time.sleep(1))\ndef k():\n  self.net(i)\n"
    )
    named = {(1, "<module>"): "a.b.c", (4, "<module>"): "rows", (7, "<module>"): "hook"}
    assert calls_in(source) == named | {(7, "<lambda>"): "time.sleep", (9, "k"): "self.net"}
    assert calls_in(tmp_path / "missing.py") == {}
    source.write_text("not python (")
    assert calls_in(source) == {}
    source.write_bytes(b"\0")
    assert calls_in(source) == {}


PACKAGES = "/usr/lib/python3/site-packages"
STDLIB = STANDARD.rpartition("/")[0]
LOADER = StackFrame(f"{PACKAGES}/torch/utils/data/dataloader.py", 1, "__next__")
FETCH_FRAME = StackFrame(f"{PACKAGES}/torch/utils/data/_utils/fetch.py", 2, "fetch")
WORKER = StackFrame(f"{PACKAGES}/torch/utils/data/_utils/worker.py", 3, "_worker_loop")
PIN = StackFrame(f"{PACKAGES}/torch/utils/data/_utils/pin_memory.py", 4, "_pin_memory_loop")
DATASET = StackFrame("/job/data.py", 5, "Samples.__getitem__")
SCRIPT = StackFrame("/job/train.py", 6, "<module>")
FILL = StackFrame("/job/train.py", 7, "fill")
RUN = StackFrame(f"{STDLIB}/threading.py", 8, "Thread.run")
PROCESS = StackFrame(f"{STDLIB}/multiprocessing/process.py", 9, "BaseProcess.run")
WAIT = StackFrame(f"{STDLIB}/threading.py", 10, "Condition.wait")
GET = StackFrame(f"{STDLIB}/queue.py", 11, "Queue.get")
PUT = StackFrame(f"{STDLIB}/queue.py", 12, "Queue.put")
PROCESS_GET = StackFrame(f"{STDLIB}/multiprocessing/queues.py", 13, "Queue.get")
POLL = StackFrame(f"{STDLIB}/multiprocessing/connection.py", 14, "wait")
RESULT = StackFrame(f"{STDLIB}/concurrent/futures/_base.py", 15, "Future.result")
LOCK = StackFrame(f"{STDLIB}/logging/__init__.py", 16, "Handler.acquire")


@pytest.mark.parametrize(
    ("frames", "source"),
    [
        ([SCRIPT, LOADER, FETCH_FRAME, DATASET], "loader"),
        ([SCRIPT, LOADER, PROCESS_GET, POLL], "workers"),
        ([SCRIPT, GET, WAIT], "queue"),
        ([SCRIPT, WAIT], "queue"),
        ([SCRIPT, RESULT, WAIT], "queue"),
        ([SCRIPT, PUT, WAIT], None),
        ([SCRIPT, LOCK], None),
        ([SCRIPT], None),
        # What a dataset waits for is part of loading
        ([SCRIPT, LOADER, FETCH_FRAME, StackFrame(f"{PACKAGES}/requests/api.py", 1, "get")], "loader"),
        ([SCRIPT, StackFrame(f"{PACKAGES}/datasets/iterable_dataset.py", 1, "__iter__")], "loader"),
        # A folder of the script's own is no library
        ([SCRIPT, StackFrame("/job/datasets/text.py", 1, "read")], None),
    ],
)
def test_stack_identifies_the_batch_source(frames: list[StackFrame], source: BatchSource | None) -> None:
    assert batch_source(frames) == source


def intervals(*parts: tuple[int, list[StackFrame]]) -> list[StackInterval]:
    """Return consecutive stays of so many samples at 100 a second."""
    result, at = [], 0
    for samples, frames in parts:
        result.append(StackInterval(at, at + samples * 10_000, tuple(frames)))
        at += samples * 10_000
    return result


def test_loader_threads_are_grouped_by_their_target_function() -> None:
    threads = {
        1: intervals((30, [RUN, FILL, LOADER, FETCH_FRAME, DATASET]), (10, [RUN, FILL, PUT, WAIT])),
        2: intervals((20, [RUN, FILL, LOADER, FETCH_FRAME, DATASET]), (5, [RUN, FILL, GET, WAIT])),
        3: intervals((40, [RUN, PIN, PROCESS_GET, POLL])),
        4: intervals((40, [RUN, StackFrame(f"{PACKAGES}/tqdm/_monitor.py", 1, "run"), WAIT])),
    }
    (loader,) = loader_samples(threads, "thread", StackLines(), rate=100)
    assert (loader.kind, loader.target) == ("thread", "train.py:fill")
    assert (loader.samples, loader.loads, loader.gets, loader.puts) == (65, 50, 5, 10)
    assert [(line.file, line.line, line.samples) for line in loader.lines] == [("/job/data.py", 5, 50)]


def test_forked_worker_has_own_lines_and_loads_only_on_request() -> None:
    above = [SCRIPT, LOADER, PROCESS, WORKER]
    threads = {1: intervals((30, [*above, FETCH_FRAME, DATASET]), (10, [*above, PROCESS_GET, POLL]))}
    (loader,) = loader_samples(threads, "process", StackLines(), rate=100)
    assert (loader.samples, loader.loads, loader.gets) == (40, 30, 10)
    assert [(line.file, line.samples) for line in loader.lines] == [("/job/data.py", 30)]


@pytest.mark.parametrize(
    ("source", "samples", "gets", "waits"),
    [("workers", 20, 0, True), ("queue", 20, 0, True), ("workers", 5, 0, False), ("loader", 90, 0, False), (None, 90, 50, True)],
)
def test_workers_are_sampled_only_where_a_thread_waits(source: BatchSource | None, samples: int, gets: int, waits: bool) -> None:
    line = StackLine(file="t.py", line=1, function="f", samples=samples, batches_from=source)
    loader = LoaderSamples(kind="thread", target="t.py:fill", samples=100, loads=100, gets=gets)
    assert waits_for_others([line], [loader], 100) is waits
