"""Runs written as the recorder writes them: four ranks, of which one has a slow data loader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tests.step_files import append

from rankscope.runs.paths import rank_dir
from rankscope.runs.records import (
    AttemptInfo,
    CollectiveRecord,
    EndReason,
    PhaseTimes,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.small_files import create_attempt, create_run, write_record

START_NS = 1_790_000_000_000_000_000
SLOW_RANK = 2
PROFILED = range(20, 23)
NORMAL_DATA_US, SLOW_DATA_US, COMPUTE_US = 4_000.0, 44_000.0, 30_000.0


def step_record(rank: int, step: int, *, slow_rank: int | None, noise: float) -> StepRecord:
    """Return a step of about 80 ms; the other ranks wait in backward for the rank whose data comes late."""
    late = SLOW_DATA_US - NORMAL_DATA_US
    data = (SLOW_DATA_US if rank == slow_rank else NORMAL_DATA_US) + noise * 400
    forward = COMPUTE_US / 3 + noise * 500
    waiting = late if slow_rank is not None and rank != slow_rank else 0.0
    backward = 2 * COMPUTE_US / 3 + waiting + 800
    phases = PhaseTimes(data=data, forward=forward, backward=backward, optimizer=1_500.0, between_steps=200.0)
    wall = data + forward + backward + 1_700.0
    return StepRecord(
        step=step,
        start_unix_ns=START_NS + step * 80_000_000,
        wall_us=wall,
        phases_us=phases,
        blocked_us=PhaseTimes(backward=waiting + 800),
        cpu_us=wall - waiting - data,
        run_queue_us=100.0,
        samples=32,
        input_elements=32 * 128,
        profiled=step in PROFILED,
    )


def window(rank: int, record: StepRecord, *, slow_rank: int | None) -> tuple[StepBreakdown, CollectiveRecord]:
    """Return the profiled step of a step record: compute, one partly hidden all-reduce, idle while data is loaded."""
    blocked = record.blocked_total_us or 0.0
    data = record.phases_us.data or 0.0
    hidden = 2_000.0
    communication = blocked + hidden + 1_000.0
    exposed = communication - hidden
    compute = record.wall_us - exposed - data - 60.0
    arrival = START_NS + record.step * 80_000_000 + int((data + COMPUTE_US) * 1e3)
    end = (
        START_NS + record.step * 80_000_000 + int(((SLOW_DATA_US if slow_rank is not None else data) + COMPUTE_US + 1_800) * 1e3)
    )
    return (
        StepBreakdown(
            step=record.step,
            start_unix_ns=record.start_unix_ns,
            device_kind="cpu",
            window_us=record.wall_us,
            compute_us=compute,
            communication_us=communication,
            overlap_us=hidden,
            exposed_communication_us=exposed,
            memcpy_us=60.0,
            exposed_memcpy_us=60.0,
            idle_us=data,
            events=400,
        ),
        CollectiveRecord(
            step=record.step,
            group="default_pg",
            group_ranks=[0, 1, 2, 3],
            group_size=4,
            index=0,
            sequence=record.step,
            op="all_reduce",
            dtype="float32",
            bytes=4 << 20,
            enqueue_unix_ns=arrival,
            start_unix_ns=arrival,
            end_unix_ns=end,
        ),
    )


def write_run(
    run: Path,
    *,
    run_id: str = "run-1",
    name: str = "bert-base",
    steps: int = 60,
    ranks: int = 4,
    slow_rank: int | None = SLOW_RANK,
    windows: bool = True,
    finished: bool = True,
    ends: Mapping[int, EndReason] | None = None,
    simulated: bool = False,
    start_unix_ns: int = START_NS,
) -> Path:
    """Write a run of 4 ranks; the data loader of ``slow_rank`` (default 2) is slow.

    ``ends``: end reasons of the ranks that ended differently from the others.
    """
    random = np.random.default_rng(7)
    create_run(
        run,
        RunInfo(
            run_id=run_id, name=name, start_unix_ns=start_unix_ns, price_per_gpu_hour=2.5, currency="USD", simulated=simulated
        ),
    )
    create_attempt(run, AttemptInfo(attempt=0, start_unix_ns=start_unix_ns, world_size=ranks or 4, backend="gloo"))
    for rank in range(ranks):
        folder = rank_dir(run, 0, rank)
        info = RankInfo(
            rank=rank,
            world_size=ranks,
            host=f"node-{rank // 2}",
            pid=1000 + rank,
            local_rank=rank % 2,
            gpu_uuid=f"GPU-{rank:08x}-5d1f-4a52-9c3e-0123456789ab",
            start_unix_ns=start_unix_ns,
            end_unix_ns=start_unix_ns + steps * 80_000_000 if finished else None,
            end_reason=(ends or {}).get(rank, "exit" if finished else None),
        )
        write_record(folder / "rank.json", info)
        append_steps(folder, rank, range(steps), slow_rank=slow_rank, windows=windows, random=random)
    return run


def append_steps(
    folder: Path, rank: int, steps: range, *, slow_rank: int | None, windows: bool, random: np.random.Generator
) -> None:
    """Append step records, and windows for the profiled ones, to a rank's folder."""
    records = [step_record(rank, step, slow_rank=slow_rank, noise=float(random.uniform(-1, 1))) for step in steps]
    append(folder, "steps", *records)
    profiled = [window(rank, record, slow_rank=slow_rank) for record in records if windows and record.step in PROFILED]
    append(folder, "windows", *(breakdown for breakdown, _ in profiled))
    append(folder, "collectives", *(collective for _, collective in profiled))
