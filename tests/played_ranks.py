"""Simulated ranks: a test writes into a run what real ranks and their helpers write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from tests import step_files

from rankscope.runs.control import ControlAnswer, ControlInbox, ControlRequest, Kind, answer
from rankscope.runs.paths import Stream, rank_dir
from rankscope.runs.records import AttemptInfo, CollectiveRecord, RankInfo, RunInfo, StepBreakdown, StepRecord
from rankscope.runs.small_files import create_attempt, create_run, write_record

Serve = Callable[[Path, ControlRequest], None]
KINDS: tuple[Kind, ...] = ("capture", "dump")
STEP_NS = 100_000_000
FIRST = 70


def rank_info(rank: int, **fields: object) -> RankInfo:
    return RankInfo(rank=rank, world_size=2, host=f"node{rank}", pid=100 + rank, start_unix_ns=1, **fields)  # type: ignore[arg-type]


def append(run: Path, rank: int, stream: Stream, *records: msgspec.Struct, attempt: int = 0) -> None:
    step_files.append(rank_dir(run, attempt, rank), stream, *records)


def two_ranks(path: Path, *, run_id: str = "r1", simulated: bool = False) -> Path:
    """Write a run of two ranks that train."""
    create_run(path, RunInfo(run_id=run_id, name="test", start_unix_ns=1, simulated=simulated))
    create_attempt(path, AttemptInfo(attempt=0, start_unix_ns=1, world_size=2))
    for rank in (0, 1):
        write_record(rank_dir(path, 0, rank) / "rank.json", rank_info(rank))
        append(path, rank, "steps", StepRecord(step=60, start_unix_ns=1, wall_us=1e5))
    return path


def end(run: Path, *ranks: int) -> None:
    for rank in ranks:
        write_record(rank_dir(run, 0, rank) / "rank.json", rank_info(rank, end_unix_ns=2, end_reason="killed"))


def accept(run: Path, request: ControlRequest, *, attempt: int | None = None) -> None:
    last = FIRST + request.steps - 1
    reply = ControlAnswer(
        id=request.id,
        accepted=True,
        attempt=attempt,
        first_step=FIRST,
        last_step=last,
        ranks=request.ranks,
        answered_unix_ns=1,
    )
    answer(run, reply)


def serve_all(run: Path, request: ControlRequest) -> None:
    """Accept a request for a profile, and write that of both ranks."""
    accept(run, request)
    profile(run, 0, request.steps)
    profile(run, 1, request.steps)


def breakdown(step: int, **changed: float) -> StepBreakdown:
    """Return a window of a second: half of it communication, a fifth of that hidden."""
    parts = {"window_us": 1e6, "compute_us": 4e5, "communication_us": 5e5, "overlap_us": 1e5, "exposed_communication_us": 4e5}
    parts |= {"memcpy_us": 0.0, "exposed_memcpy_us": 0.0, "idle_us": 2e5}
    start = step * 10 * STEP_NS
    return StepBreakdown(step=step, start_unix_ns=start, device_kind="cpu", events=100, **(parts | changed))  # type: ignore[arg-type]


def profile(run: Path, rank: int, steps: int) -> None:
    """Write a profile: rank 1 is 40 ms late to each of ten collectives a step, rank 0 waits, and both leave together."""
    collectives = []
    for step in range(FIRST, FIRST + steps):
        for index in range(10):
            begins = step * 10 * STEP_NS + index * STEP_NS
            here = begins + (40_000_000 if rank == 1 else 0)
            times = {"enqueue_unix_ns": here, "start_unix_ns": here, "end_unix_ns": begins + 50_000_000}
            collectives.append(CollectiveRecord(step=step, group="0", index=index, op="all_reduce", **times))  # type: ignore[arg-type]
    # The breakdowns last: with these short waits the command does not wait for later records.
    append(run, rank, "collectives", *collectives)
    append(run, rank, "windows", *(breakdown(step) for step in range(FIRST, FIRST + steps)))


@contextmanager
def job(run: Path, serve: Serve, *, rank: int | None = None) -> Iterator[list[ControlRequest]]:
    """Run a thread that serves requests like the ranks' helpers; yields the requests it has seen."""
    seen: list[ControlRequest] = []
    over = threading.Event()
    inboxes = [ControlInbox(run, kind, since_unix_ns=0, report=lambda _: None, rank=rank) for kind in KINDS]

    def live() -> None:
        while not over.wait(0.02):
            for inbox in inboxes:
                for request in inbox.pending(now=True):
                    seen.append(request)
                    serve(run, request)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
