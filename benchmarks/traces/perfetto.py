"""Cost of an export to Perfetto. Prints one JSON object.

A synthetic run and one four times as long are exported with the same limit of events: time grows with the records read, memory
must not. A large Kineto trace is exported and compared with a naive merge script: json.load, change the times, json.dump.

    python -m benchmarks.traces.perfetto [--ranks 64] [--steps 1000] [--trace FILE]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.make_run import Shape, write_run
from benchmarks.common.result import budget, environment, finish

MEMORY_BUDGET_MIB = 600
GROWTH_BUDGET = 1.25
"""Limit for the peak memory of a run four times as long over that of the short one."""
MERGE_BUDGET = 4.0
"""Limit for the CPU time over that of the naive merge, which neither sorts, nor finds collectives, nor corrects clocks."""
MERGE_MEMORY_BUDGET = 1.0
REPEATS = 3
TRACE = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "hta_df_index_resolver"

NAIVE = """
import gzip, json, pathlib, sys
events = []
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json*")):
    with (gzip.open if path.suffix == ".gz" else open)(path) as file:
        for event in json.load(file)["traceEvents"]:
            if "ts" in event:
                event["ts"] = float(event["ts"]) - 1.0
            events.append(event)
with gzip.GzipFile(sys.argv[2], "wb", compresslevel=6) as file:
    file.write(json.dumps({"traceEvents": events}).encode())
"""

MEASURED = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__") if sys.argv[0].endswith(".py") else runpy.run_module(
        sys.argv[0], run_name="__main__", alter_sys=False)
except SystemExit as left:
    assert not left.code, left.code
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print("\\nUSED", used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def measure(*words: object) -> tuple[float, float, float]:
    """Run a Python program in a process of its own. Returns its wall and CPU seconds, and its peak memory in MiB."""
    began = time.perf_counter()
    completed = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, words)], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    wall = time.perf_counter() - began
    cpu, peak = completed.stdout.rpartition("USED")[2].split()
    return wall, float(cpu), float(peak)


def export(path: Path, out: Path, *options: str) -> tuple[float, float, float]:
    return measure("rankscope", "export", path, "--perfetto", out, *options)


def median(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    wall, cpu, peak = zip(*rows, strict=True)
    return statistics.median(wall), statistics.median(cpu), statistics.median(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trace", type=Path, default=TRACE)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"ranks": arguments.ranks, "steps": arguments.steps}
    budgets: list[dict[str, object]] = []

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, steps in (("short", arguments.steps), ("long", 4 * arguments.steps)):
            write_run(root / name, Shape(ranks=arguments.ranks, steps=steps, window_every=500, collectives=12))
        limit = ["--max-events", "200000"]
        for name in ("short", "long"):
            wall, cpu, peak = export(root / name, root / "out.json.gz", "--no-verdict", *limit)
            figures[name] = {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "peak_mib": round(peak)}
        wall, cpu, peak = export(root / "short", root / "out.json.gz", *limit)
        figures["short_with_verdict"] = {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "peak_mib": round(peak)}
        budgets.append(budget("peak memory without verdict, MiB", figures["long"]["peak_mib"], MEMORY_BUDGET_MIB))
        growth = figures["long"]["peak_mib"] / figures["short"]["peak_mib"]
        budgets.append(budget("peak memory, run four times as long", growth, GROWTH_BUDGET))
        if arguments.trace.exists():
            (root / "naive.py").write_text(NAIVE)
            ours: list[tuple[float, float, float]] = []
            naive: list[tuple[float, float, float]] = []
            for _ in range(REPEATS):
                ours.append(export(arguments.trace, root / "out.json.gz", "--no-verdict"))
                naive.append(measure(root / "naive.py", arguments.trace, root / "naive.json.gz"))
            own_median, theirs = median(ours), median(naive)
            names = ("wall_s", "cpu_s", "peak_mib")
            figures["trace"] = dict(zip(names, (round(value, 2) for value in own_median), strict=True))
            figures["trace_naive_merge"] = dict(zip(names, (round(value, 2) for value in theirs), strict=True))
            budgets.append(budget("CPU time of a trace over a naive merge of it", own_median[1] / theirs[1], MERGE_BUDGET))
            budgets.append(
                budget("peak memory of a trace over that of a naive merge", own_median[2] / theirs[2], MERGE_MEMORY_BUDGET)
            )
    finish(figures, budgets, environment("rankscope"))


if __name__ == "__main__":
    main()
