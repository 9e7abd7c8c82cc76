"""Verdicts on real NCCL jobs of four ranks with one planted delay, by source of evidence. Prints one JSON object.

Each job trains in one layout (``tests/profiler/jobs/parallel.py``). One rank sleeps in each step: in its data loader, in
forward or in backward; in one job its GPU does more before forward, and in the last jobs nothing is planted. With fewer than four
GPUs the ranks share the first one, where the driver runs them in turns of 7 ms (seen on an H200). A collective of any size then
takes up to 27 ms, and a queue of ten takes 0.2 s. Ranks also wait for each other's turns. A delay of the host that is shorter
than the queue costs nothing, so the planted one is longer.

The sources:

- **flight recorder**, **inspector**: ``rankscope run`` records durations of collectives, with ``--flight-recorder-times`` or
  ``--nccl-inspector PLUGIN``, beside its step records
- **windows**: ``rankscope run`` with three profiled steps
- **dumps**, **traces**, **logs**: files of one job without rankscope, from torch's Flight Recorder, torch.profiler and NCCL
  Inspector

    python -m benchmarks.gpu.gpu_nccl [--plugin libnccl-profiler-inspector.so] [--steps 32]

Without ``--plugin`` (build it from ``plugins/profiler/inspector`` of NVIDIA's NCCL) the jobs of that source are left out, and
the result says so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.result import budget, finish
from benchmarks.gpu.gpu import gpu_environment

from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError

JOB = Path(__file__).resolve().parents[2] / "tests" / "profiler" / "jobs" / "parallel.py"
RANKS = 4
PAUSE_SECONDS = 0.3
MOST_SECONDS = 180
CAUSES = {"data": "input", "forward": "host", "backward": "host", "device": "compute"}
UNRECORDED = ("dumps", "traces", "logs")


@dataclass(frozen=True)
class NcclCase:
    """A job: its layout, the planted fault as ``PHASE:RANK`` or ``none:0``, and the sources of evidence."""

    layout: str
    fault: str
    sources: tuple[str, ...]

    @property
    def rank(self) -> int | None:
        """The rank that is late."""
        phase, _, rank = self.fault.partition(":")
        return None if phase == "none" else int(rank)


CASES = (
    NcclCase("ddp", "data:1", ("windows",)),
    NcclCase("fsdp2", "forward:2", ("flight recorder",)),
    NcclCase("fsdp2", "backward:0", ("inspector",)),
    NcclCase("tp", "forward:1", ("flight recorder",)),
    NcclCase("hsdp", "forward:3", ("inspector",)),
    NcclCase("fsdp2+tp", "forward:1", UNRECORDED),
    NcclCase("pp-1f1b+ddp", "forward:3", ("flight recorder",)),
    NcclCase("pp-1f1b+fsdp2", "forward:2", ("inspector",)),
    NcclCase("fsdp2", "device:1", ("flight recorder",)),
    NcclCase("fsdp2", "none:0", ("flight recorder",)),
    NcclCase("fsdp2+tp", "none:0", ("inspector",)),
)


def start(command: list[str], **more: str) -> None:
    """Run a job to its end."""
    job = subprocess.Popen(
        command, env={**os.environ, **more}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, output = job.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    if job.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {job.returncode}\n{output[-3000:]}")


def evidence_of(case: NcclCase, folder: Path, steps: int, plugin: Path | None) -> dict[str, Path]:
    """Run the job of a case. Return what to analyze, by source."""
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(JOB)]
    job += ["--device", "cuda", "--sync", "--layout", case.layout, "--fault", case.fault]
    job += ["--pause", str(PAUSE_SECONDS), "--steps", str(steps)]
    if case.sources == UNRECORDED:
        paths = {name: folder / name for name in UNRECORDED}
        for path in paths.values():
            path.mkdir()
        more = {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "20000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000"}
        if plugin is not None:
            more |= {"NCCL_PROFILER_PLUGIN": str(plugin), "NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_VERBOSE": "1"}
            more |= {"NCCL_INSPECTOR_DUMP_DIR": str(paths["logs"]), "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "0"}
            more["NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"] = "500"
        start([*job, "--dumps", str(paths["dumps"]), "--traces", str(paths["traces"])], **more)
        return paths if plugin is not None else {name: path for name, path in paths.items() if name != "logs"}
    (source,) = case.sources
    options = ["--window-steps", "0"]
    if source == "windows":
        options = ["--window-first", str(steps * 2 // 3), "--window-every", "0", "--window-steps", "3"]
    elif source == "inspector":
        options += ["--nccl-inspector", str(plugin)]
    else:
        options.append("--flight-recorder-times")
    run = folder / "run"
    start([sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--no-verdict", *options, "--", *job])
    return {source: run}


def judged(case: NcclCase, source: str, path: Path) -> dict[str, Any]:
    """Return the verdict on a job by one source, beside the truth."""
    row: dict[str, Any] = {"layout": case.layout, "fault": case.fault, "source": source, "rank": case.rank}
    try:
        verdict = analyze([path]).verdict
    except InputError as error:
        return row | {"verdict": None, "named": None, "right": False, "why": str(error)}
    named = verdict.rank if verdict.kind == "straggler" else None
    row |= {"verdict": verdict.kind, "named": named, "also_named": [rank for rank in verdict.ranks if rank != named]}
    row |= {"cause": verdict.cause, "phase": verdict.phase, "confidence": verdict.confidence, "by": verdict.evidence_source}
    return row | {"right": named == case.rank and verdict.kind != "insufficient_data"}


def main() -> None:
    """Run the jobs and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, help="NCCL Inspector's libnccl-profiler-inspector.so")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--keep", type=Path, help="folder to keep runs and files in")
    args = parser.parse_args()
    rows, left_out = [], []
    for number, case in enumerate(CASES):
        if args.plugin is None and case.sources == ("inspector",):
            left_out.append(f"{case.layout} {case.fault}: no --plugin")
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if args.keep is None else args.keep / f"{number:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            plugin = None if args.plugin is None else args.plugin.absolute()
            for source, path in evidence_of(case, folder, args.steps, plugin).items():
                rows.append(judged(case, source, path))
                print(json.dumps(rows[-1]), f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    late, quiet = ([row for row in rows if (row["rank"] is None) is without] for without in (False, True))
    named = [row for row in late if row["named"] is not None]
    budgets = [
        budget("late rank named", sum(row["right"] for row in late) / len(late), 0.98, at_least=True),
        budget("another rank named, of all jobs", (len(named) - sum(row["right"] for row in named)) / len(rows), 0.01),
        budget("a rank named where none is late", sum(row["named"] is not None for row in quiet), 0),
        budget("cause right, of the causes given", _causes(named), 0.9, at_least=True),
    ]
    job = {"ranks": RANKS, "pause_ms": PAUSE_SECONDS * 1000, "steps": args.steps}
    finish({"rows": rows, "left_out": left_out}, budgets, gpu_environment(**job))


def _causes(named: list[dict[str, Any]]) -> float:
    """Return the share of right causes among the named ranks whose cause is given."""
    is_right = [row["cause"] == CAUSES[row["fault"].partition(":")[0]] for row in named if row["cause"] not in (None, "unknown")]
    return sum(is_right) / len(is_right) if is_right else 0.0


if __name__ == "__main__":
    main()
