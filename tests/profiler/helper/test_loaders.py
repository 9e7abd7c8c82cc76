"""Threads and processes that load batches, recognised by their stacks."""

from __future__ import annotations

import pytest
from tests.profiler.helper.test_stack_lines import STANDARD

from rankscope.profiler.helper.sampling.loaders import batch_source, loader_samples, waits_for_others
from rankscope.profiler.helper.sampling.stack_lines import StackFrame, StackLines, Stay
from rankscope.runs.records import BatchSource, LoaderSamples, StackLine

PACKAGES = "/usr/lib/python3/site-packages"
STDLIB = STANDARD.rpartition("/")[0]
LOADER = StackFrame(f"{PACKAGES}/torch/utils/data/dataloader.py", 1, "__next__")
FETCH = StackFrame(f"{PACKAGES}/torch/utils/data/_utils/fetch.py", 2, "fetch")
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
        ([SCRIPT, LOADER, FETCH, DATASET], "loader"),
        ([SCRIPT, LOADER, PROCESS_GET, POLL], "workers"),
        ([SCRIPT, GET, WAIT], "queue"),
        ([SCRIPT, WAIT], "queue"),
        ([SCRIPT, RESULT, WAIT], "queue"),
        ([SCRIPT, PUT, WAIT], None),
        ([SCRIPT, LOCK], None),
        ([SCRIPT], None),
        # What a dataset waits for is part of loading
        ([SCRIPT, LOADER, FETCH, StackFrame(f"{PACKAGES}/requests/api.py", 1, "get")], "loader"),
        ([SCRIPT, StackFrame(f"{PACKAGES}/datasets/iterable_dataset.py", 1, "__iter__")], "loader"),
        # A folder of the script's own is no library
        ([SCRIPT, StackFrame("/job/datasets/text.py", 1, "read")], None),
    ],
)
def test_a_stack_shows_where_batches_come_from(frames: list[StackFrame], source: BatchSource | None) -> None:
    assert batch_source(frames) == source


def stays(*parts: tuple[int, list[StackFrame]]) -> list[Stay]:
    """Return consecutive stays of so many samples at 100 a second."""
    result, at = [], 0
    for samples, frames in parts:
        result.append(Stay(at, at + samples * 10_000, tuple(frames)))
        at += samples * 10_000
    return result


def test_threads_are_counted_by_the_function_that_they_run() -> None:
    threads = {
        1: stays((30, [RUN, FILL, LOADER, FETCH, DATASET]), (10, [RUN, FILL, PUT, WAIT])),
        2: stays((20, [RUN, FILL, LOADER, FETCH, DATASET]), (5, [RUN, FILL, GET, WAIT])),
        3: stays((40, [RUN, PIN, PROCESS_GET, POLL])),
        4: stays((40, [RUN, StackFrame(f"{PACKAGES}/tqdm/_monitor.py", 1, "run"), WAIT])),
    }
    (loader,) = loader_samples(threads, "thread", StackLines(), rate=100)
    assert (loader.kind, loader.target) == ("thread", "train.py:fill")
    assert (loader.samples, loader.loads, loader.gets, loader.puts) == (65, 50, 5, 10)
    assert [(line.file, line.line, line.samples) for line in loader.lines] == [("/job/data.py", 5, 50)]


def test_a_forked_worker_has_lines_of_its_own_and_loads_only_while_it_has_requests() -> None:
    above = [SCRIPT, LOADER, PROCESS, WORKER]
    threads = {1: stays((30, [*above, FETCH, DATASET]), (10, [*above, PROCESS_GET, POLL]))}
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
