"""Cost of the recorder in training. Prints one JSON object.

Three measurements, all on real gloo ranks (DistributedDataParallel, two processes started by torchrun):

- **blocks**: blocks of steps with and without the recorder alternate in the same processes, on one model. The wrappers are
  removed for the blocks without. Two floors run beside them: empty functions in the same places, and the least Python that
  records the events of a step and puts them into a ring, without any guard. Host time is the CPU time of the training thread,
  which other processes on the machine do not add to. The figure is the median of the differences of neighbouring blocks, with a
  95 % bootstrap interval.
- **all in**: the same script, plain, under ``rankscope run`` with its default budget (windows, helper processes, metrics file)
  and under TraceML (PyPI ``traceml-ai``), in turns. A step lasts 50 ms. The host sleeps for most of it, as it does while a GPU
  computes, so additional work shows in the CPU time. The figures are CPU time beyond the plain script, per step: that of the
  training processes, and that of all started processes.
- **start-up**: time from the start of Python to the end of the first step, with and without the recorder attached.

With ``--device cuda``, *blocks* alone, with both ranks on one GPU. The recorder then also puts marks on the device's stream; the
floors do not.

    python -m benchmarks.recorder.overhead [--blocks 40] [--rounds 5] [--without-traceml] [--device cuda]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.common.processes import ended_children_cpu_s
from benchmarks.common.result import budget, environment, finish

ALWAYS_ON_US = 30.0
OF_THE_FLOOR = 1.5
ALWAYS_ON_OF_50_MS = 0.003
ALL_IN = 0.01
START_UP_S = 1.0
RANKS = 2
JOB = Path(__file__).with_name("overhead_job.py")
PR_SET_CHILD_SUBREAPER = 36
"""Option of prctl that makes orphans children of this process, from <linux/prctl.h>."""
TINY_STEPS = 150
"""Number of steps per block. A step takes about a millisecond, so that microseconds show."""
LONG_STEPS = 250
"""Number of steps of a run of the measurement *all in*."""


def _torchrun(*args: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(JOB), *args]


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def _run(command: Sequence[str], **more: str) -> float:
    """Run a command. Returns the CPU seconds of it and of all processes that it started, including those that outlived it."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    before = ended_children_cpu_s()
    completed = subprocess.run(command, env=_environment(**more), capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {completed.returncode}\n{completed.stderr[-3000:]}")
    with suppress(ChildProcessError):
        while True:
            os.wait()
    return ended_children_cpu_s() - before


def _spread(values: Sequence[float], *, draws: int = 2000) -> dict[str, float]:
    """Return the median with its 95 % percentile bootstrap interval."""
    source = random.Random(0)  # reproducible, not secret
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(draws))
    low, high = medians[int(0.025 * draws)], medians[int(0.975 * draws)]
    return {"median": statistics.median(values), "ci95_low": low, "ci95_high": high, "n": len(values)}


def blocks(folder: Path, count: int, device: str) -> dict[str, Any]:
    """Measure *blocks*, see the module's docstring."""
    _run(_torchrun("blocks", "--folder", str(folder), "--blocks", str(count), "--steps", str(TINY_STEPS), "--device", device))
    figures: dict[str, Any] = {}
    cpu, wall, booked, without_cpu, without_wall = [], [], [], [], []
    floors: dict[str, list[float]] = {"empty": [], "least": []}
    for rank in range(RANKS):
        result = json.loads((folder / f"blocks-{rank}.json").read_text(encoding="utf-8"))
        assert result["steps"] >= count * TINY_STEPS, "not every step was recorded"
        for on, off in zip(result["with"], result["without"], strict=True):
            cpu.append(on[0] - off[0])
            wall.append(on[1] - off[1])
            booked.append(on[2])
            without_cpu.append(off[0])
            without_wall.append(off[1])
        for arm, values in floors.items():
            values += [floor[0] - off[0] for floor, off in zip(result[arm], result["without"], strict=True)]
    figures["host_us_per_step"] = _spread(cpu)
    figures["wall_us_per_step"] = _spread(wall)
    figures["floor_empty_us_per_step"] = _spread(floors["empty"])
    figures["floor_least_us_per_step"] = _spread(floors["least"])
    figures["booked_us_per_step"] = _spread(booked)
    figures["step_cpu_us_without"] = statistics.median(without_cpu)
    figures["step_wall_us_without"] = statistics.median(without_wall)
    return figures


def all_in(folder: Path, rounds: int, *, traceml: bool) -> dict[str, Any]:
    """Measure *all in*, see the module's docstring."""
    arms: dict[str, list[dict[str, float]]] = {"plain": [], "rankscope": [], **({"traceml": []} if traceml else {})}
    costs: list[float] = []
    for number in range(rounds):
        order = list(arms) if number % 2 == 0 else list(arms)[::-1]
        for arm in order:
            out = folder / f"{arm}-{number}"
            out.mkdir()
            script = ["long", "--folder", str(out), "--steps", str(LONG_STEPS)]
            print(f"round {number + 1}/{rounds}: {arm}", file=sys.stderr)
            if arm == "rankscope":
                run = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(out / "run"), "--no-verdict", "--"]
                total = _run([*run, *_torchrun(*script)])
                costs += _booked(out / "run")
            elif arm == "traceml":
                command = [str(Path(sys.executable).with_name("traceml")), "run", str(JOB), f"--nproc-per-node={RANKS}"]
                total = _run([*command, "--logs-dir", str(out / "logs"), "--args", *script], BENCH_TRACEML="1")
            else:
                total = _run(_torchrun(*script))
            ranks = [json.loads((out / f"long-{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]
            row = {key: statistics.mean(rank[key] for rank in ranks) for key in ranks[0]}
            arms[arm].append({**row, "everything_cpu_us": total / LONG_STEPS / RANKS * 1e6})
            shutil.rmtree(out)
    figures: dict[str, Any] = {"plain": {key: statistics.median(row[key] for row in arms["plain"]) for key in arms["plain"][0]}}
    for arm in list(arms)[1:]:
        figures[arm] = {
            f"{key}_more": _spread([item[key] - plain[key] for item, plain in zip(arms[arm], arms["plain"], strict=True)])
            for key in arms["plain"][0]
        }
    figures["rankscope"]["booked_share_of_step_time"] = _spread(costs)
    return figures


def _booked(run_dir: Path) -> list[float]:
    import numpy as np

    from rankscope.runs.reader import RunReader

    run = RunReader(run_dir)
    shares = []
    for rank in range(RANKS):
        info = run.rank(0, rank)
        assert info is not None
        assert info.recorder_cost_us is not None
        walls_us = np.concatenate([rows["wall_us"] for rows in run.step_rows(0, rank)])
        assert len(walls_us) >= LONG_STEPS - 1, f"{len(walls_us)} steps"
        shares.append(info.recorder_cost_us / float(walls_us.sum()))
    return shares


def start_up(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure *start-up*, see the module's docstring."""
    from rankscope.profiler.settings import SITE_FOLDER, RecorderSettings

    def once(**more: str) -> float:
        command = [sys.executable, str(JOB), "once"]
        return float(subprocess.run(command, env=_environment(**more), capture_output=True, text=True, check=True).stdout)

    differences, plain = [], []
    once()
    for number in range(rounds):
        settings = RecorderSettings(run_dir=str(folder / f"start-{number}"), run_id="b", name="b", start_unix_ns=time.time_ns())
        attached = {**settings.environment(), "PYTHONPATH": str(SITE_FOLDER)}
        pair = (once(), once(**attached)) if number % 2 == 0 else (once(**attached), once())[::-1]
        plain.append(pair[0])
        differences.append(pair[1] - pair[0])
    return {"seconds_without": statistics.median(plain), "seconds_more": _spread(differences)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40, help="blocks with, and as many without, the recorder")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each arm, and of the start")
    parser.add_argument("--without-traceml", action="store_true")
    parser.add_argument("--only", choices=["blocks", "all_in", "start_up"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    if args.device != "cpu":
        args.only, args.without_traceml = "blocks", True
    _measure(args)


def _measure(args: argparse.Namespace) -> NoReturn:
    figures: dict[str, Any] = {}
    budgets: list[dict[str, object]] = []

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.only in (None, "blocks"):
            figures["blocks"] = blocks(folder, args.blocks, args.device)
            host = figures["blocks"]["host_us_per_step"]["median"]
            if args.device == "cpu":
                budgets.append(budget("always-on: host time per step, us", host, ALWAYS_ON_US))
                least = figures["blocks"]["floor_least_us_per_step"]["median"]
                budgets.append(budget("always-on: of the least that Python needs", host / least, OF_THE_FLOOR))
            budgets.append(budget("always-on: share of a 50 ms step", host / 50_000, ALWAYS_ON_OF_50_MS))
        if args.only in (None, "start_up"):
            figures["start_up"] = start_up(folder, args.rounds)
            budgets.append(budget("start-up: seconds more", figures["start_up"]["seconds_more"]["median"], START_UP_S))
        if args.only in (None, "all_in"):
            figures["all_in"] = all_in(folder, args.rounds, traceml=not args.without_traceml)
            ours = figures["all_in"]["rankscope"]
            budgets.append(budget("all in: booked share of the step time", ours["booked_share_of_step_time"]["median"], ALL_IN))
            if not args.without_traceml:
                theirs = figures["all_in"]["traceml"]
                budgets += [
                    budget(f"all in: {key}, never above TraceML's", ours[key]["median"], theirs[key]["median"])
                    for key in ("cpu_us_more", "everything_cpu_us_more")
                ]
    packages = ["rankscope", "torch", *([] if args.without_traceml else ["traceml-ai"])]
    finish(figures, budgets, environment(*packages, device=args.device))


if __name__ == "__main__":
    main()
