"""Threads and processes that load the batches of a training thread, as their stacks show them. Pure, except for ``workers_of``.

A loader is recognised by its stack: a library that loads data, or a wait for room in a queue, as of a thread that loads ahead.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final, Literal

from rankscope.base.process import children_of
from rankscope.profiler.helper.sampling.stack_lines import (
    PhaseTimeline,
    StackFrame,
    StackInterval,
    StackLines,
    is_own,
    short_function,
    started_frames,
)
from rankscope.runs.records import BatchSource, LoaderSamples, StackLine

LEAST_WAIT: Final = 0.1
"""Least share of the samples in which a thread must wait for its worker processes to be sampled."""
MAX_TARGETS: Final = 8
"""Largest number of targets in a record."""
MAX_WORKERS: Final = 4
"""Largest number of worker processes that are sampled."""
TORCH_WORKER: Final = "pt_data_worker"
"""Name that torch gives to the worker processes of a ``DataLoader``."""

_LIBRARIES: Final = re.compile(
    r"/torch/utils/data/|/(?:site|dist)-packages/"
    r"(?:torchdata|webdataset|datasets|streaming|litdata|grain|nvidia/dali|petastorm|ffcv|tensorflow/python/data)/"
)
"""Libraries that load data."""
_PINS: Final = "/torch/utils/data/_utils/pin_memory.py"
"""Its thread hands on what worker processes load."""
_QUEUES: Final = ("/multiprocessing/queues.py", "/queue.py")
_WAITS: Final = ("/threading.py", "/selectors.py", "/multiprocessing/connection.py")
_NOT_LOADERS: Final = ("resource_tracker", "rankscope.profiler.helper", "compile_worker")
"""Words on the command lines of other child processes."""


def _wait_of(frames: Sequence[StackFrame]) -> Literal["get", "put"] | None:
    """Return whether a thread waits for another one (an item of a queue, the result of a future, a condition), or for room in a
    queue.
    """
    waits = False
    for frame in reversed(frames):
        function = short_function(frame)
        if frame.file.endswith(_QUEUES) and function in ("get", "put"):
            return "get" if function == "get" else "put"
        if "/concurrent/futures/" in frame.file:
            return "get" if function in ("result", "_worker") else None
        if not frame.file.endswith(_WAITS):
            break
        waits |= function in ("wait", "recv", "recv_bytes")
    return "get" if waits else None


def batch_source(frames: Sequence[StackFrame]) -> BatchSource | None:
    """Return where a training thread with this stack gets batches from, see ``StackLine.batches_from``."""
    gets = _wait_of(frames) == "get"
    if any(_LIBRARIES.search(frame.file) for frame in frames):
        return "workers" if gets else "loader"
    return "queue" if gets else None


@dataclass(slots=True)
class _LoaderTimes:
    total_us: int = 0
    loads_us: int = 0
    waits_us: Counter[str] = field(default_factory=Counter)
    busy: list[StackInterval] = field(default_factory=list)


def loader_samples(
    threads: Mapping[int, Sequence[StackInterval]],
    kind: Literal["thread", "process"],
    lines: StackLines,
    *,
    rate: int,
) -> list[LoaderSamples]:
    """Return the samples of threads that run code of the user or of a library that loads data, by their targets.

    ``kind``: they are threads of the rank's process, or those of its worker processes. ``rate``: samples per second.
    """
    targets: defaultdict[str, _LoaderTimes] = defaultdict(_LoaderTimes)
    for intervals in threads.values():
        begun = [(interval, started_frames(interval.frames)) for interval in intervals]
        every = [frame for _, frames in begun for frame in frames]
        if not any(is_own(frame) or _LIBRARIES.search(frame.file) for frame in every) or any(
            frame.file.endswith(_PINS) for frame in every
        ):
            continue
        target = targets[_target(begun[0][1])]
        for interval, frames in begun:
            us, wait = interval.end_us - interval.start_us, _wait_of(frames)
            target.total_us += us
            if any(_LIBRARIES.search(frame.file) for frame in frames) and not (kind == "process" and wait):
                target.loads_us += us
            if wait is None:
                target.busy.append(StackInterval(interval.start_us, interval.end_us, tuple(frames)))
            else:
                target.waits_us[wait] += us
    most = sorted(targets.items(), key=lambda item: -(item[1].total_us - item[1].waits_us["get"]))[:MAX_TARGETS]

    def samples(us: int) -> int:
        return round(us * rate / 1e6)

    return [
        LoaderSamples(
            kind=kind,
            target=name,
            samples=samples(target.total_us),
            loads=samples(target.loads_us),
            gets=samples(target.waits_us["get"]),
            puts=samples(target.waits_us["put"]),
            lines=lines.of(target.busy, rate=rate, zero_ns=(0, 0), phases=PhaseTimeline(()))[1],
        )
        for name, target in most
        if samples(target.total_us)
    ]


def _target(frames: Sequence[StackFrame]) -> str:
    frame = next((frame for frame in frames if is_own(frame)), frames[0])
    return f"{PurePath(frame.file).name}:{short_function(frame)}"[:200]


def workers_of(pid: int) -> list[int]:
    """Return at most ``MAX_WORKERS`` worker processes of a process, also those that a fork server started."""
    processes: list[int] = []
    above = [pid]
    while above:
        children = [child for parent in above for child in children_of(parent)]
        above = [child for child in children if child != os.getpid() and not _is_other(child)]
        processes += above
    servers = {child for child in processes if children_of(child)}
    processes = [child for child in processes if child not in servers] or processes
    of_torch = [child for child in processes if _name(child) == TORCH_WORKER]
    return sorted(of_torch or processes)[:MAX_WORKERS]


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _is_other(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return any(word in words for word in _NOT_LOADERS)
    return True


def waits_for_others(lines: Iterable[StackLine], loaders: Iterable[LoaderSamples], samples: int) -> bool:
    """Return whether the training thread, or a thread that loads for it, waits for other threads or processes in a tenth of its
    ``samples`` or more.
    """
    waits = sum(line.samples for line in lines if line.batches_from in ("workers", "queue"))
    return waits >= LEAST_WAIT * samples or any(loader.loads and loader.gets >= LEAST_WAIT * loader.samples for loader in loaders)
