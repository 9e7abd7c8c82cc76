"""Write a synthetic run of any size as the recorder would have written it: step records and windows per rank.

All ranks end each step together, as data-parallel ranks do. One rank, in the middle, needs longer in forward at every step.
Numbers are random with a seed per rank, so that ranks can be written in parallel and a run can be grown later.

    python -m benchmarks.common.make_run RUN [--ranks 256] [--steps 2500] [--slow-us 40000]
"""

from __future__ import annotations

import argparse
import gc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common.result import CORES, report_activity
from numpy.typing import NDArray

from rankscope.runs.paths import rank_dir
from rankscope.runs.records import AttemptInfo, CollectiveRecord, RankInfo, RunInfo, StepBreakdown, StepEvent
from rankscope.runs.segment_writer import JsonLinesWriter, RowWriter
from rankscope.runs.small_files import create_attempt, create_run, write_record
from rankscope.runs.step_columns import HAS_BLOCKED, PROFILED, checksums, unknown_rows

START_NS = 1_790_000_000_000_000_000
MEANS_US = {"data": 800.0, "forward": 70_000.0, "backward": 120_000.0, "optimizer": 20_000.0, "between_steps": 300.0}
TRANSFER_US = 15_000.0
RANKS_PER_HOST = 8
CHUNK = 1000
"""Number of steps generated and written at a time. Each chunk has its own seed, so a run can begin and continue at any step."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """Size and properties of a synthetic run."""

    ranks: int
    steps: int
    slow_us: float = 40_000.0
    """Additional time of the slow rank per step, in microseconds."""
    window_every: int = 2500
    window_steps: int = 3
    collectives: int = 8
    """Number of collectives per profiled step."""
    seed: int = 1

    @property
    def slow_rank(self) -> int:
        """Rank that is slow."""
        return self.ranks // 2

    def steps_in(self, seconds: float) -> int:
        """Return the number of steps that the job records in some time."""
        return round(seconds * 1e6 / (sum(MEANS_US.values()) + TRANSFER_US + self.slow_us))


def own_times(shape: Shape, rank: int, chunk: int) -> dict[str, Floats]:
    """Return the own time of a rank per phase in the steps of one chunk, in microseconds."""
    rng = np.random.default_rng((shape.seed, rank, chunk))
    times = {name: mean * np.exp(rng.normal(0, 0.03, CHUNK)) for name, mean in MEANS_US.items()}
    if rank == shape.slow_rank:
        times["forward"] += shape.slow_us
    return times


def walls_of(shape: Shape, chunk: int) -> Floats:
    """Return the wall time of each step of a chunk: the time of the slowest rank, plus the transfer."""
    longest = np.zeros(CHUNK)
    for rank in range(shape.ranks):
        np.maximum(longest, sum(own_times(shape, rank, chunk).values()), out=longest)
    return longest + TRANSFER_US


def step_rows(shape: Shape, rank: int, chunk: int, walls: Floats, starts: NDArray[np.int64]) -> NDArray[Any]:
    """Return the step records of one rank in one chunk, as rows."""
    rng = np.random.default_rng((shape.seed, rank, chunk, 1))
    own = own_times(shape, rank, chunk)
    blocked = walls - sum(own.values())
    rows = unknown_rows(CHUNK)
    rows["step"] = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK)
    rows["start_unix_ns"], rows["wall_us"] = starts, walls
    for name, times in own.items():
        rows[f"{name}_us"] = times + blocked if name == "backward" else times
    rows["blocked_forward_us"] = rows["blocked_optimizer_us"] = rows["gc_us"] = 0.0
    rows["blocked_backward_us"] = blocked
    rows["cpu_us"] = (walls - blocked) * 0.98
    rows["run_queue_us"] = rng.exponential(150, CHUNK)
    rows["voluntary_switches"], rows["involuntary_switches"] = rng.integers(20, 60, CHUNK), 0
    rows["samples"], rows["input_elements"] = 32, 65_536
    sampled = rows["step"] % 10 == 0
    rows["allocated_bytes"], rows["resident_bytes"] = np.where(sampled, 30 << 30, -1), np.where(sampled, 9 << 30, -1)
    in_window = rows["step"] % shape.window_every - 20
    rows["flags"] = HAS_BLOCKED + PROFILED * ((in_window >= 0) & (in_window < shape.window_steps))
    return with_checksums(rows)


def with_checksums(rows: NDArray[Any]) -> NDArray[Any]:
    """Set the checksums of rows in place and return the rows."""
    rows["checksum"] = checksums(rows.view("<u8").reshape(len(rows), -1))
    return rows


def is_profiled(shape: Shape, step: int) -> bool:
    """Return whether a window covers a step."""
    return step % shape.window_every in range(20, 20 + shape.window_steps)


def window(shape: Shape, rank: int, step: int, start: int, wall: float) -> tuple[StepBreakdown, list[CollectiveRecord]]:
    """Return the records of a profiled step."""
    rng = np.random.default_rng((shape.seed, rank, step, 2))
    exposed, idle = TRANSFER_US, wall / 10
    breakdown = StepBreakdown(
        step=step,
        start_unix_ns=start,
        device_kind="cuda",
        window_us=wall,
        compute_us=wall - exposed - idle,
        communication_us=2 * exposed,
        overlap_us=exposed,
        exposed_communication_us=exposed,
        memcpy_us=0.0,
        exposed_memcpy_us=0.0,
        idle_us=idle,
        events=40_000,
    )
    late_us = shape.slow_us / shape.collectives if rank == shape.slow_rank else 0.0
    apart_ns = round(wall * 1000 / (shape.collectives + 1))
    rows = []
    for index in range(shape.collectives):
        end = start + (index + 1) * apart_ns
        begin = end - 2_000_000 - round((shape.slow_us / shape.collectives - late_us) * 1000) - int(rng.integers(200_000))
        rows.append(
            CollectiveRecord(
                step=step,
                group="default_pg",
                group_size=shape.ranks,
                index=index,
                sequence=step * shape.collectives + index,
                op="all_reduce",
                dtype="BFloat16",
                bytes=25 * 2**20,
                enqueue_unix_ns=begin - 50_000,
                start_unix_ns=begin,
                end_unix_ns=end,
                stream=20,
                compute_spans_us=[(100.0, 900.0)],
            )
        )
    return breakdown, rows


def begin_run(run: Path, shape: Shape) -> None:
    """Write the identity of the run and its ranks."""
    create_run(run, RunInfo(run_id="synthetic", name="synthetic", start_unix_ns=START_NS))
    create_attempt(run, AttemptInfo(attempt=0, start_unix_ns=START_NS, world_size=shape.ranks, backend="nccl"))
    for rank in range(shape.ranks):
        write_record(
            rank_dir(run, 0, rank) / "rank.json",
            RankInfo(
                rank=rank,
                world_size=shape.ranks,
                host=f"node{rank // RANKS_PER_HOST:04d}",
                pid=1000 + rank,
                local_rank=rank % RANKS_PER_HOST,
                device_kind="cuda",
                start_unix_ns=START_NS,
            ),
        )


def write_ranks(run: Path, shape: Shape, steps: range, walls: Floats, ranks: range) -> None:
    """Append steps of some ranks. ``walls``: wall times of all steps in whole chunks, including earlier steps."""
    first, last = steps.start, steps.stop
    gc.disable()  # the objects created here have no reference cycles
    starts = START_NS + np.concatenate([[0], np.cumsum((walls * 1000).astype(np.int64))])
    for rank in ranks:
        folder = rank_dir(run, 0, rank)
        rows, events = RowWriter(folder, rank=rank, attempt=0), JsonLinesWriter(folder, "events")
        writers = {stream: JsonLinesWriter(folder, stream) for stream in ("windows", "collectives")}
        for chunk in range(first // CHUNK, -(-last // CHUNK)):
            within = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            chunk_rows = step_rows(shape, rank, chunk, walls[within], starts[within])
            chunk_rows = chunk_rows[(chunk_rows["step"] >= first) & (chunk_rows["step"] < last)]
            tagged = chunk_rows[chunk_rows["step"] % 1000 == 999]
            ends = (tagged["start_unix_ns"] + (tagged["wall_us"] * 1000).astype(np.int64)).tolist()
            pairs = zip(tagged["step"].tolist(), ends, strict=True)
            events.append(*(StepEvent(step=step, end_unix_ns=end, tags=["checkpoint"]) for step, end in pairs))
            rows.append(chunk_rows.tobytes())
        for step in (step for step in range(first, last) if is_profiled(shape, step)):
            breakdown, collectives = window(shape, rank, step, int(starts[step]), float(walls[step]))
            writers["windows"].append(breakdown)
            writers["collectives"].append(*collectives)
        for writer in (rows, events, *writers.values()):
            writer.close()


def write_run(run: Path, shape: Shape) -> Path:
    """Write a whole run and return its folder."""
    report_activity(f"writing a run of {shape.ranks:,} ranks and {shape.steps:,} steps")
    begin_run(run, shape)
    grow_run(run, shape, 0, shape.steps)
    return run


def grow_run(run: Path, shape: Shape, first: int, last: int) -> None:
    """Append steps ``first`` to ``last`` of every rank, with a process per core."""
    walls = np.concatenate([walls_of(shape, chunk) for chunk in range(-(-last // CHUNK))])
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(write_ranks, run, shape, range(first, last), walls), parts_of(shape.ranks)))


def parts_of(ranks: int) -> list[range]:
    """Divide ranks into several parts per core."""
    each = -(-ranks // (8 * CORES))
    return [range(rank, min(rank + each, ranks)) for rank in range(0, ranks, each)]


def main() -> None:
    """Write the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="folder to write; without one nothing is done")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--slow-us", type=float, default=40_000.0, help="what the planted rank needs longer; 0: no rank is slow")
    args = parser.parse_args()
    if args.run is None:
        parser.print_help()
        return
    write_run(args.run, Shape(ranks=args.ranks, steps=args.steps, slow_us=args.slow_us))


if __name__ == "__main__":
    main()
