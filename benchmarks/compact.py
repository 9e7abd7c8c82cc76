"""What compacting a run saves, and what reading it costs before and after: prints one JSON object.

The run is synthetic but shaped as a recorded one: 8 ranks of steps with phases and blocked time to the nanosecond, a profiled
window now and then with its collectives and operators.

    python benchmarks/compact.py [--ranks 8] [--steps 50000]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from rankscope.runs.compact import compact_run
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import (
    AttemptInfo,
    CollectiveRecord,
    KernelRecord,
    PhaseTimes,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.writer import JsonLinesWriter, create_attempt, create_run, write_record

SIZE_BUDGET = 0.2
"""Parquet to JSON Lines."""
READ_BUDGET = 2.0
"""CPU time to read all step records one by one, Parquet to JSON Lines, both in the page cache: columns have to become records
again, which lines of JSON are. From a disk, a sixth of the bytes has to come.
"""
WINDOW_EVERY, WINDOW_STEPS, BUCKETS, KERNELS = 2000, 3, 12, 30
START_NS = 1_790_000_000_000_000_000


def steps(rng: random.Random, count: int) -> Iterator[StepRecord]:
    """Steps of about 250 ms."""
    now = START_NS
    for number in range(count):
        forward, backward, optimizer = (rng.gauss(mean, mean / 40) for mean in (70_000, 150_000, 20_000))
        data, between = rng.expovariate(1 / 800), rng.expovariate(1 / 300)
        phases = [round(value, 3) for value in (data, forward, backward, optimizer, between)]
        wall = round(sum(phases), 3)
        blocked = round(backward * rng.uniform(0.05, 0.2), 3)
        sampled = number % 10 == 0
        yield StepRecord(
            step=number,
            start_unix_ns=now,
            wall_us=wall,
            phases_us=PhaseTimes(
                data=phases[0], h2d=None, forward=phases[1], backward=phases[2], optimizer=phases[3], between_steps=phases[4]
            ),
            blocked_us=PhaseTimes(forward=0.0, backward=blocked, optimizer=0.0),
            cpu_us=round((wall - blocked) * 0.98, 3),
            run_queue_us=round(rng.expovariate(1 / 150), 3),
            voluntary_switches=rng.randrange(20, 60),
            involuntary_switches=rng.randrange(4),
            gc_us=round(rng.expovariate(1 / 2000), 3) if number % 40 == 0 else 0.0,
            samples=32,
            input_elements=32 * 2048,
            allocated_bytes=30 * 2**30 + rng.randrange(64) * 2**20 if sampled else None,
            reserved_bytes=40 * 2**30 if sampled else None,
            peak_allocated_bytes=38 * 2**30 if sampled else None,
            allocator_retries=0 if sampled else None,
            resident_bytes=9 * 2**30 + rng.randrange(2**20) * 4096 if sampled else None,
            profiled=number % WINDOW_EVERY < WINDOW_STEPS,
            tags=["checkpoint"] if number % 1000 == 999 else [],
        )
        now += int(wall * 1000)


def windows(rng: random.Random, count: int) -> Iterator[tuple[StepBreakdown, list[CollectiveRecord], list[KernelRecord]]]:
    """What the profiled steps leave."""
    for number in (n for n in range(count) if n % WINDOW_EVERY < WINDOW_STEPS):
        start = START_NS + number * 250_000_000
        window, communication, hidden = 250_000.0, rng.uniform(4e4, 6e4), rng.uniform(2e4, 3e4)
        breakdown = StepBreakdown(
            step=number,
            start_unix_ns=start,
            device_kind="cuda",
            window_us=window,
            compute_us=180_000.0,
            communication_us=round(communication, 3),
            overlap_us=round(hidden, 3),
            exposed_communication_us=round(communication - hidden, 3),
            memcpy_us=120.0,
            exposed_memcpy_us=20.0,
            idle_us=round(window - 180_000 - (communication - hidden) - 20, 3),
            events=rng.randrange(40_000, 41_000),
        )
        collectives = []
        for index in range(BUCKETS):
            begin = start + index * 12_000_000 + rng.randrange(10**6)
            collectives.append(
                CollectiveRecord(
                    step=number,
                    group="default_pg",
                    group_size=8,
                    index=index,
                    sequence=number * BUCKETS + index,
                    op="all_reduce",
                    dtype="BFloat16",
                    bytes=25 * 2**20,
                    enqueue_unix_ns=begin,
                    start_unix_ns=begin + rng.randrange(10**5),
                    end_unix_ns=begin + 10**5 + rng.randrange(3 * 10**6),
                    stream=20,
                    compute_spans_us=[(0.0, round(rng.uniform(100, 900), 3)), (1000.5, round(rng.uniform(1100, 2900), 3))],
                )
            )
        kernels = [
            KernelRecord(
                step=number,
                name=f"void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_{kernel}x128_32x3_nn_align8>",
                kind="compute",
                total_us=round(rng.uniform(100, 9000), 3),
                calls=rng.randrange(1, 96),
            )
            for kernel in range(KERNELS)
        ]
        yield breakdown, collectives, kernels


def record(run: Path, ranks: int, count: int) -> int:
    """Write the run. Returns the number of its records."""
    create_run(run, RunInfo(run_id="bench", name="bench", start_unix_ns=START_NS))
    create_attempt(run, AttemptInfo(attempt=0, start_unix_ns=START_NS, world_size=ranks))
    records = 0
    for rank in range(ranks):
        rng = random.Random(rank)
        folder = rank_dir(run, 0, rank)
        info = RankInfo(rank=rank, world_size=ranks, host="n1", pid=rank, start_unix_ns=START_NS, end_reason="exit")
        write_record(folder / "rank.json", info)
        rows = list(windows(rng, count))
        for stream, found in (
            ("steps", list(steps(rng, count))),
            ("windows", [breakdown for breakdown, _, _ in rows]),
            ("collectives", [row for _, collectives, _ in rows for row in collectives]),
            ("kernels", [row for _, _, kernels in rows for row in kernels]),
        ):
            writer = JsonLinesWriter(folder, stream)  # type: ignore[arg-type]
            for first in range(0, len(found), 500):
                writer.append(*found[first : first + 500])
            writer.close()
            records += len(found)
    return records


def size_of(run: Path, suffix: str) -> int:
    """Bytes in files of that kind."""
    return sum(path.stat().st_size for path in run.rglob(f"*{suffix}"))


def read_steps(run: Path, ranks: int) -> int:
    """Read every step record of every rank, as an analysis does."""
    reader = RunReader(run)
    return sum(sum(1 for _ in reader.steps(0, rank)) for rank in range(ranks))


def seconds(call: Callable[[], object], times: int) -> float:
    """CPU time of this process per call, the median: other processes of the machine are not in it."""
    taken = []
    for _ in range(times):
        begin = time.process_time()
        call()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        records = record(run, args.ranks, args.steps)
        jsonl_bytes, jsonl_files = size_of(run, ".jsonl"), len(list(run.rglob("*.jsonl")))
        jsonl_s = seconds(lambda: read_steps(run, args.ranks), args.times)
        begin = time.process_time()
        result = compact_run(run)
        compact_s = time.process_time() - begin
        assert sum(result.records.values()) == records
        assert read_steps(run, args.ranks) == args.ranks * args.steps
        parquet_s = seconds(lambda: read_steps(run, args.ranks), args.times)
        one_s = seconds(lambda: sum(1 for _ in RunReader(run).steps(0, args.ranks - 1)), args.times)
        sizes = {path.name: path.stat().st_size for path in sorted(run.rglob("*.parquet"))}
    figures = {
        "ranks": args.ranks,
        "steps": args.steps,
        "records": records,
        "jsonl_bytes": jsonl_bytes,
        "jsonl_files": jsonl_files,
        "parquet_bytes": sum(sizes.values()),
        "parquet_files": sizes,
        "compact_s": round(compact_s, 2),
        "compact_us_per_record": round(compact_s / records * 1e6, 1),
        "read_jsonl_s": round(jsonl_s, 3),
        "read_parquet_s": round(parquet_s, 3),
        "read_one_rank_parquet_s": round(one_s, 3),
    }
    size, read = sum(sizes.values()) / jsonl_bytes, parquet_s / jsonl_s
    budgets = [
        {"name": "parquet_to_jsonl_bytes", "value": round(size, 4), "limit": SIZE_BUDGET, "ok": size <= SIZE_BUDGET},
        {"name": "parquet_to_jsonl_read_time", "value": round(read, 3), "limit": READ_BUDGET, "ok": read <= READ_BUDGET},
    ]
    environment = {"python": platform.python_version(), "pyarrow": pa.__version__, "cpus": os.cpu_count()}
    print(json.dumps({"figures": figures, "budgets": budgets, "environment": environment}, indent=2))


if __name__ == "__main__":
    main()
