"""Helper of a rank whose collectives are timed, with clocks that stand still, for tests without a rank."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from tests.flight_dump_files import document
from tests.profiler.handovers import context_of, handover_of, step
from tests.profiler.request_pipe import RequestPipe
from tests.waiting import wait_until

from rankscope.base.atomic_files import replace_file
from rankscope.profiler.flight_files import DURATIONS, done_file, dump_file
from rankscope.profiler.helper.collectives import collective_times, flight_times, inspector_log
from rankscope.profiler.helper.collectives.collective_times import CollectiveTimes
from rankscope.runs.durations import DurationBlock
from rankscope.runs.paths import inspector_dir

PID = 4321
BASE_US = 1_790_000_000_000_000
_VARIABLES = (
    "NCCL_PROFILER_PLUGIN",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_ENABLE_TIMING",
)


class Helper:
    """Helper of rank 0 of two, which has taken three steps. Its clocks stand still."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
        self.run, self.scratch = folder / "run", folder / "scratch"
        inspector_dir(self.run).mkdir(parents=True)
        self.scratch.mkdir()
        self.log = inspector_dir(self.run) / f"h-pid{PID}.log"
        self.blocks: list[DurationBlock] = []
        self.reported: list[str] = []
        self.waiting = 0
        self.begun = True
        self.now = 1_000_000.0
        for module in (collective_times, inspector_log, flight_times):
            monkeypatch.setattr(module, "time", self)
        for name in _VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        self.requests = RequestPipe()
        monkeypatch.setattr(flight_times, "_REQUESTS", self.requests.writer)
        self.task: CollectiveTimes | None = None

    def time(self) -> float:
        return self.now

    monotonic = time

    @staticmethod
    def time_ns() -> int:
        return time.time_ns()

    def look(self, seconds: float = 2.0) -> None:
        """Let the time of the next look come, and wait for its end."""
        if self.task is None:
            handover = handover_of(self.run, pid=PID, world_size=2)
            context = context_of(handover, self.scratch, self.reported.append, begun=lambda: self.begun)
            self.task = CollectiveTimes(context, self.blocks.append, lambda: self.waiting)
            for number in range(3):
                self.task.step(step(number))
        self.now += seconds
        self.task.tick()
        wait_until(lambda task=self.task: not task._busy)

    def replace(self) -> None:
        """Kill the helper; the next look is that of another one."""
        self.task = None

    def end(self) -> None:
        """End the rank."""
        assert self.task is not None
        self.task.finish()

    @property
    def numbers(self) -> list[int]:
        """Numbers of the recorded operations."""
        return [number for block in self.blocks for number in block.number]

    def dump(self, entries: list[dict[str, Any]], *, took_us: int = 1000) -> None:
        """Answer the request for a dump."""
        assert self.requests.received() == [DURATIONS]
        replace_file(dump_file(self.scratch, DURATIONS, "nccl"), pickle.dumps(document({"0": [0, 1]}, entries)))
        replace_file(done_file(self.scratch, DURATIONS), f"{took_us} us".encode())
