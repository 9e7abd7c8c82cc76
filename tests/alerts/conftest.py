"""Fixtures for the tests of alerts: runs on disk, and HTTP servers with scripted behaviour."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.alerts.receive.receiver_process import ListeningTarget, listening_target
from tests.local_http import answering, respond
from tests.step_files import append

from rankscope.runs.paths import rank_dir
from rankscope.runs.records import AttemptInfo, EndReason, PhaseTimes, RankInfo, RunInfo, StepRecord
from rankscope.runs.small_files import create_attempt, create_run, write_record

START_NS = 1_700_000_000_000_000_000


@pytest.fixture
def target() -> Iterator[ListeningTarget]:
    """Webhook target to which a receiver forwards alerts."""
    with listening_target() as target:
        yield target


class RunOnDisk:
    """A run of 4 ranks that can grow and end; rank ``slow`` loads its data 60 ms longer in every step."""

    def __init__(self, path: Path, *, slow: int | None, name: str) -> None:
        self.path = path
        self.slow = slow
        self.run_id = f"{name}-1"
        self.steps = 0
        create_run(path, RunInfo(run_id=self.run_id, name=name, start_unix_ns=START_NS))
        create_attempt(path, AttemptInfo(attempt=0, start_unix_ns=START_NS, world_size=4, backend="gloo"))
        self.end(None)

    def grow(self, steps: int = 60, *, ranks: Iterable[int] = range(4)) -> None:
        for rank in ranks:
            append(
                rank_dir(self.path, 0, rank), "steps", *(self._step(step, rank) for step in range(self.steps, self.steps + steps))
            )
        self.steps += steps

    def _step(self, step: int, rank: int) -> StepRecord:
        jitter = float((step * 7 + rank * 13) % 5) * 100.0
        late = 60_000.0 if rank == self.slow else 0.0
        blocked = 60_000.0 - late - jitter if self.slow is not None else 5_000.0 - jitter
        own = {"data": 2_000.0 + late, "h2d": 0.0, "forward": 10_000.0 + jitter, "optimizer": 3_000.0, "between_steps": 1_000.0}
        phases = PhaseTimes(backward=20_000.0 + blocked, **own)
        return StepRecord(
            step=step,
            start_unix_ns=START_NS + step * 100_000_000,
            wall_us=sum(own.values()) + 20_000.0 + blocked,
            phases_us=phases,
            blocked_us=PhaseTimes(backward=blocked),
            cpu_us=36_000.0,
        )

    def end(self, reason: EndReason | None = "exit", *, ranks: range = range(4), end_unix_ns: int | None = None) -> None:
        """Write the rank.json of ``ranks``: ended for ``reason``, or still running if it is ``None``."""
        for rank in ranks:
            write_record(
                rank_dir(self.path, 0, rank) / "rank.json",
                RankInfo(
                    rank=rank,
                    world_size=4,
                    host=f"node{rank // 2}",
                    pid=100 + rank,
                    start_unix_ns=START_NS,
                    end_unix_ns=None if reason is None else end_unix_ns or START_NS + 10**10,
                    end_reason=reason,
                ),
            )


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunOnDisk]:
    """Factory of runs of 60 steps below ``tmp_path / "runs"``, live unless ``ended``: ``make_run("llama", slow=2)``."""

    def make(name: str = "llama", *, slow: int | None = 2, ended: bool = False) -> RunOnDisk:
        run = RunOnDisk(tmp_path / "runs" / name, slow=slow, name=name)
        run.grow()
        if ended:
            run.end()
        return run

    return make


class HttpSink:
    """A webhook receiver that keeps the bodies it accepted; ``answers`` are its statuses in turn, the last one repeated."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[int] = [200]
        self.delay_s = 0.0
        self.requests: list[str] = []
        self.accepted: list[Any] = []

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.requests.append(request.path)
        time.sleep(self.delay_s)
        if 200 <= status < 300:
            self.accepted.append(msgspec.json.decode(body))
        respond(request, status, b"", **({"Location": "/elsewhere"} if 300 <= status < 400 else {}))


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    """A running ``HttpSink``."""
    sink = HttpSink()
    with answering(sink.answer) as sink.url:
        yield sink


@pytest.fixture
def trickle() -> Iterator[str]:
    """Address of a receiver that accepts every request and sends a header line every 30 ms, so that no single read times out."""

    def answer(request: BaseHTTPRequestHandler, _body: bytes) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(100):
            request.wfile.write(b"X-Slow: 1\r\n")
            time.sleep(0.03)
        request.wfile.write(b"Content-Length: 0\r\n\r\n")

    with answering(answer) as url:
        yield url
