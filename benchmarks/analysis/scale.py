"""Cost of analysing a large run, and of following one that grows. Prints one JSON object.

The whole command is timed, and the memory of all its processes together is measured; so is a comparison with a second such run.
Reading and judging are then timed separately. Finally, an update of a followed run is timed, after as much has been recorded as
the job records in 30 s: of the run as it is, and after a week in which GPUs were sampled. Reported are medians of ``--repeats``.
Written data is on disk before anything is timed, because writing it is the work of other machines.

    python -m benchmarks.analysis.scale [--ranks 1024] [--steps 10000] [--repeats 3] [--run RUN]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.common.make_run import RANKS_PER_HOST, Shape, grow_run, write_run
from benchmarks.common.processes import ended_children_cpu_s, rss_bytes
from benchmarks.common.result import budget, environment, finish

from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.run_analysis import analysis_of, read_evidence
from rankscope.runs.paths import host_dir, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import HardwareSample
from rankscope.runs.segment_writer import JsonLinesWriter
from rankscope.runs.small_files import write_record

SECONDS_BUDGET, BYTES_BUDGET, UPDATE_BUDGET = 3.5, 700 * 2**20, 0.25
COMPARE_BYTES_BUDGET = 2**30
NEW_SECONDS = 30.0
SAMPLED_DAYS, SAMPLED_EVERY_S, SAMPLED_HOSTS = 7, 5, 8
"""How long, how often and on how many hosts GPUs are sampled: the host of the slow rank and those that it is compared with."""
UPDATES = 5


@dataclass(frozen=True, slots=True)
class Command:
    """Cost of a whole command, and its result."""

    wall_s: float
    cpu_s: float
    """CPU seconds of all its processes."""
    peak_bytes: int
    result: dict[str, Any]
    """Its JSON."""

    def budgets(self) -> list[dict[str, object]]:
        """Return the budgets of time and memory."""
        return [
            budget("whole_s", round(self.wall_s, 2), SECONDS_BUDGET),
            budget("peak_bytes", self.peak_bytes, BYTES_BUDGET),
        ]


def typical(repeats: list[Command]) -> Command:
    """Return the command with the median time."""
    return sorted(repeats, key=lambda item: item.wall_s)[len(repeats) // 2]


def whole_command(*arguments: str | Path) -> Command:
    """Run a command of ``rankscope`` and measure it."""
    begin, before = time.perf_counter(), ended_children_cpu_s()
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", *map(str, arguments), "--format", "json"], stdout=subprocess.PIPE
    )
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, rss_bytes(process.pid))
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    seconds = time.perf_counter() - begin
    watcher.join()
    return Command(seconds, ended_children_cpu_s() - before, peak, json.loads(out))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--run", type=Path, help="written by make_run.py with these ranks and steps; it will have grown")
    args = parser.parse_args()
    shape = Shape(ranks=args.ranks, steps=args.steps)
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or write_run(Path(folder) / "run", shape)
        os.sync()
        wholes = [whole_command("analyze", run) for _ in range(args.repeats)]
        typical_run = typical(wholes)
        other = Path(folder) / "other"
        write_other(other, shape)
        comparison = whole_command("compare", run, other)
        begin = time.perf_counter()
        evidence = read_evidence(run)
        read_s = time.perf_counter() - begin
        begin, cpu = time.perf_counter(), time.process_time()
        analysis_of(evidence)
        judge_s, judge_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        del evidence
        updates, first_s = follow(run, shape)
        add_week(run, shape)
        after_week, _ = follow(run, shape)
    figures = {
        "ranks": args.ranks,
        "steps": args.steps,
        "verdict": typical_run.result["verdict"]["summary"],
        "whole_s": round(typical_run.wall_s, 2),
        "wholes_s": [round(item.wall_s, 2) for item in wholes],
        "whole_cpu_s": round(typical_run.cpu_s, 2),
        "read_s": round(read_s, 2),
        "judge_s": round(judge_s, 2),
        "judge_cpu_s": round(judge_cpu_s, 2),
        "peak_bytes": typical_run.peak_bytes,
        "compare_s": round(comparison.wall_s, 2),
        "compare_cpu_s": round(comparison.cpu_s, 2),
        "first_update_s": round(first_s, 2),
        "updates_s": [round(wall, 3) for wall, _ in updates],
        "updates_cpu_s": [round(cpu, 3) for _, cpu in updates],
        "updates_after_week_s": [round(wall, 3) for wall, _ in after_week],
    }
    budgets = [*typical_run.budgets(), budget("compare_peak_bytes", comparison.peak_bytes, COMPARE_BYTES_BUDGET)]
    for name, measured in (("update_s", updates), ("update_after_week_of_samples_s", after_week)):
        budgets.append(budget(name, round(float(np.median([wall for wall, _ in measured])), 3), UPDATE_BUDGET))
    finish(figures, budgets, environment("rankscope", "numpy"))


def write_other(run: Path, shape: Shape) -> None:
    """Write another run in which the same rank is slower."""
    write_run(run, replace(shape, slow_us=1.5 * shape.slow_us, seed=shape.seed + 1))
    write_record(run / "run.json", msgspec.structs.replace(RunReader(run).info, run_id="other"))


def add_week(run: Path, shape: Shape) -> None:
    """Add samples of the GPUs of some hosts, up to the end of the run, and which rank has which GPU."""
    reader = RunReader(run)
    end_ns = max(int(rows["start_unix_ns"][-1]) for rows in reader.step_rows(0, shape.slow_rank, last=1))
    first = max(0, shape.slow_rank // RANKS_PER_HOST - SAMPLED_HOSTS // 2)
    for host in range(first, first + SAMPLED_HOSTS):
        writer = JsonLinesWriter(host_dir(run, f"node{host:04d}"), "gpu")
        ranks = range(host * RANKS_PER_HOST, (host + 1) * RANKS_PER_HOST)
        for before_s in range(SAMPLED_DAYS * 86_400, -3600, -SAMPLED_EVERY_S):
            writer.append(*(gpu_sample(end_ns - before_s * 10**9, rank) for rank in ranks))
        writer.close()
        for rank in ranks:
            info = reader.rank(0, rank)
            if info is not None:
                write_record(
                    rank_dir(run, 0, rank) / "rank.json",
                    msgspec.structs.replace(info, gpu_uuid=f"GPU-{rank}", gpu_name="NVIDIA H100"),
                )


def gpu_sample(unix_ns: int, rank: int) -> HardwareSample:
    """Return a sample of the GPU of a rank."""
    return HardwareSample(
        unix_ns=unix_ns,
        gpu_uuid=f"GPU-{rank}",
        gpu_index=rank % RANKS_PER_HOST,
        simulated=True,
        throttle_reasons=[],
        utilization_ratio=0.9,
        memory_total_bytes=80 << 30,
        temperature_celsius=60.0,
        power_watts=500.0,
        sm_clock_hertz=1.98e9,
    )


def follow(run: Path, shape: Shape) -> tuple[list[tuple[float, float]], float]:
    """Return the wall and CPU seconds of each update, and the wall seconds of the first one, which reads everything."""
    online = OnlineAnalysis(run)
    begin = time.perf_counter()
    steps = online.update().source.steps
    first_s = time.perf_counter() - begin
    new_steps = shape.steps_in(NEW_SECONDS)
    updates: list[tuple[float, float]] = []
    for _ in range(UPDATES):
        grow_run(run, shape, steps, steps + new_steps)
        os.sync()
        begin, cpu = time.perf_counter(), time.process_time()
        result = online.update().source.steps
        updates.append((time.perf_counter() - begin, time.process_time() - cpu))
        assert result == steps + new_steps, "not every new step was seen"
        steps = result
    return updates, first_s


if __name__ == "__main__":
    main()
