"""Check overlap and straggler on public traces against golden values, and against HTA in the same run.

usage: python -m benchmarks.traces.trace_truth [--data FOLDER] [--repeats N]

FOLDER holds `golden.json` and one folder of Kineto traces per key (default: ../shared/data/traces). Every analysis runs in a
process of its own, imports included; the two tools take turns. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common.result import budget, environment, finish

HTA = """
import json, logging, math, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
try:
    frame = analysis.get_comm_comp_overlap(visualize=False)
    overlap = {int(r): (None if math.isnan(p) else p / 100) for r, p in zip(frame["rank"], frame["comp_comm_overlap_pctg"])}
except Exception as error:
    overlap = {"error": str(error)}
try:
    stragglers = [int(rank) for rank in analysis.get_potential_stragglers()]
except Exception as error:
    stragglers = str(error)
print("RESULT" + json.dumps({"overlap": overlap, "stragglers": stragglers}))
"""


def run(command: list[str]) -> tuple[str, float]:
    """Run a process. Returns its standard output, empty if it failed, and its seconds."""
    started = time.perf_counter()
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return (completed.stdout if completed.returncode == 0 else ""), time.perf_counter() - started


def ours(folder: Path) -> tuple[dict[str, Any], float]:
    text, seconds = run([sys.executable, "-m", "rankscope", "analyze", str(folder), "--format", "json"])
    return json.loads(text), seconds


def hta(folder: Path) -> tuple[dict[str, Any], float]:
    text, seconds = run([sys.executable, "-c", HTA, str(folder)])
    result = text.rpartition("RESULT")[2]
    return (json.loads(result) if result else {"overlap": {}, "stragglers": None}), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data" / "traces")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if not (args.data / "golden.json").is_file():
        sys.exit(f"{args.data}: no golden.json there; name the folder of reference traces with --data")
    golden: dict[str, dict[str, Any]] = json.loads((args.data / "golden.json").read_text())

    folders = sorted({key.partition("/")[0] for key in golden})
    traces: dict[str, Any] = {}
    worst = 0.0
    wrong = {"rankscope": 0, "hta": 0}
    seconds: dict[str, list[float]] = {"rankscope": [], "hta": []}
    dlrm: dict[str, Any] = {}
    for repeat in range(args.repeats):
        totals = {"rankscope": 0.0, "hta": 0.0}
        for folder in folders:
            print(f"repeat {repeat + 1}/{args.repeats}: {folder}", file=sys.stderr)
            own_result, took = ours(args.data / folder)
            totals["rankscope"] += took
            theirs, took = hta(args.data / folder)
            totals["hta"] += took
            if repeat:
                continue
            if folder.startswith("dlrm"):
                dlrm = {"rankscope": [own_result["verdict"]["rank"]], "hta": theirs["stragglers"]}
            for key, truth in golden.items():
                if key.partition("/")[0] != folder:
                    continue
                rank = int(key.rpartition("rank-")[2].partition(".")[0])
                row: dict[str, Any] = next((row for row in own_result["ranks"] if row["rank"] == rank), {})
                fields = [name for name in truth if name.endswith("_us")]
                error = max(abs((row.get(name) or 0.0) - truth[name]) / (1.0 + 1e-4 * truth[name]) for name in fields)
                worst = max(worst, error)
                answers = {"rankscope": row.get("overlap_ratio"), "hta": theirs["overlap"].get(str(rank))}
                for tool, answer in answers.items():
                    right = answer == truth["overlap_ratio"] or (
                        answer is not None
                        and truth["overlap_ratio"] is not None
                        and abs(answer - truth["overlap_ratio"]) <= 0.005
                    )
                    wrong[tool] += not right
                traces[key] = {"golden": truth["overlap_ratio"], **answers, "worst_error_of_tolerance": round(error, 6)}
        for tool, total in totals.items():
            seconds[tool].append(total)
    medians = {tool: statistics.median(values) for tool, values in seconds.items()}
    ratio = medians["rankscope"] / medians["hta"]
    budgets = [
        budget("worst error of any golden field, in tolerances of 1 us + 0.01 %", worst, 1.0),
        budget("overlap ratios off by more than 0.005", wrong["rankscope"], 0),
        budget("median time over HTA's, imports included", ratio, 1.0),
    ]
    figures = {
        "traces": traces,
        "wrong_overlap_ratios": wrong,
        "stragglers_dlrm_8ranks_v100": dlrm,
        "median_seconds_all_folders": medians,
        "repeats": args.repeats,
    }
    finish(figures, budgets, environment("rankscope", "HolisticTraceAnalysis"))


if __name__ == "__main__":
    main()
