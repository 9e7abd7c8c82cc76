"""A part of ``alerts.py``: cost of watching a large run that is in progress. Prints one JSON object.

A run of many ranks is written beforehand. It then grows in the temporary folder in real time, record by record, as its recorder
would have written it. The real command, `rankscope alerts watch` at its default interval, follows it in a process of its own; the
processor time of that process and its children is measured. After a while one rank becomes slow, and the time until the alert is
measured.

The peer is a watcher that keeps no state: `rankscope analyze` of the whole run at each evaluation.

    python -m benchmarks.alerts.watcher_job [--ranks 1024] [--seconds 330] [--peers 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import make_run
from benchmarks.common.make_run import CHUNK, Shape, begin_run, parts_of, walls_of, write_ranks
from benchmarks.common.processes import cpu_seconds, ended_children_cpu_s, peak_rss_bytes
from benchmarks.common.result import CORES, budget, environment, finish, report_activity

from rankscope.alerts.replay.growing_run import GrowingRun

CORE_SHARE = 0.015
PAST_STEPS = 500
"""Number of steps before the watcher starts."""
SETTLE_S = 30.0
"""Time for the watcher to read the existing records; its cost is a figure of its own."""
CALM_SHARE = 0.3
"""Share of the time before one rank becomes slow."""
SLOW_US = 40_000.0
SLOWER = {"TrainingStepRegression"}
"""Alerts that are also correct: steps take longer since then."""


def written(run: Path, ranks: int, seconds: float) -> tuple[int, int, int]:
    """Write a run whose past ends now and that continues for ``seconds``.

    Returns the time of now in the run, the end of the first slow step (both unix ns), and the number of steps.
    """
    calm, slow = Shape(ranks=ranks, steps=0, slow_us=0.0), Shape(ranks=ranks, steps=0, slow_us=SLOW_US)
    chunks = [walls_of(calm, chunk) for chunk in range(2 + int(seconds * 1e6 / 200_000) // CHUNK)]
    calm_us = np.concatenate(chunks)
    slow_us = np.concatenate([walls_of(slow, chunk) for chunk in range(len(chunks))])
    past_us = float(calm_us[:PAST_STEPS].sum())
    first_slow = int(np.searchsorted(np.cumsum(calm_us), past_us + (SETTLE_S + CALM_SHARE * seconds) * 1e6))
    walls = np.concatenate([calm_us[:first_slow], slow_us[first_slow:]])
    ends_us = np.cumsum(walls)
    last = min(len(walls), int(np.searchsorted(ends_us, past_us + (SETTLE_S + seconds + 60) * 1e6)))
    # The times of the run start at 0: writing takes so long that "now" is only determined afterwards.
    make_run.START_NS = 0
    with ProcessPoolExecutor(CORES, mp_context=get_context("fork")) as pool:
        for shape, steps in ((calm, range(first_slow)), (slow, range(first_slow, last))):
            list(pool.map(partial(write_ranks, run, shape, steps, walls), parts_of(ranks)))
    begin_run(run, slow)
    return int(past_us * 1000), int(ends_us[first_slow] * 1000), last


class Grower(threading.Thread):
    """Thread that lets the run grow twice a second. ``shift_ns``: offset from the run's times to this machine's clock."""

    def __init__(self, growing: GrowingRun, shift_ns: int) -> None:
        super().__init__(daemon=True)
        self._growing = growing
        self._shift_ns = shift_ns
        self.done = threading.Event()
        self.behind_s = 0.0

    def run(self) -> None:
        """Let the run grow until ``done`` is set."""
        while not self.done.wait(0.5):
            now = time.time_ns()
            self._growing.advance(now - self._shift_ns)
            self.behind_s = max(self.behind_s, (time.time_ns() - now) / 1e9)


def watched(growing: GrowingRun, shift_ns: int, state: Path, seconds: float) -> dict[str, Any]:
    """Return the processor time, memory and events of the command while the run grows."""
    command = [sys.executable, "-m", "rankscope", "alerts", "watch", str(growing.path), "--format", "json", "--state", str(state)]
    grower = Grower(growing, shift_ns)
    grower.start()
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    events: list[dict[str, Any]] = []

    def listen() -> None:
        assert watcher.stdout is not None
        events.extend({"seen": time.time_ns(), **json.loads(line)} for line in watcher.stdout)

    threading.Thread(target=listen, daemon=True).start()
    time.sleep(SETTLE_S)
    settled, began = cpu_seconds(watcher.pid), time.monotonic()
    time.sleep(seconds)
    spent, took = cpu_seconds(watcher.pid) - settled, time.monotonic() - began
    rss = peak_rss_bytes(watcher.pid)
    watcher.terminate()
    watcher.wait(30)
    grower.done.set()
    grower.join()
    return {
        "share": spent / took,
        "start_s": settled,
        "seconds": took,
        "rss": rss,
        "events": events,
        "behind_s": grower.behind_s,
    }


def naive(run: Path, times: int) -> list[float]:
    """Return the processor seconds of each of several analyses of the whole run."""
    spent: list[float] = []
    for _ in range(times):
        before = ended_children_cpu_s()
        subprocess.run(
            [sys.executable, "-m", "rankscope", "analyze", str(run), "--format", "json"], check=True, stdout=subprocess.DEVNULL
        )
        spent.append(ended_children_cpu_s() - before)
    return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--peers", type=int, default=2, help="evaluations of the watcher without a memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report_activity(f"writing a run of {args.ranks:,} ranks")
        run = Path(folder) / "run"
        now_ns, slow_ns, steps = written(run, args.ranks, args.seconds)
        report_activity(f"{steps:,} steps; growing to where it is now")
        growing = GrowingRun(run, Path(folder), latest_unix_ns=2**62)
        growing.advance(now_ns)
        shift_ns = time.time_ns() - now_ns
        report_activity(f"watching it for {SETTLE_S + args.seconds:.0f} s")
        observed = watched(growing, shift_ns, Path(folder) / "state", args.seconds)
        report_activity(f"analysing all of it, {args.peers} times")
        peer_seconds = naive(run, args.peers)
    fired = [event for event in observed["events"] if event["event"] == "firing"]
    slow = Shape(ranks=args.ranks, steps=0).slow_rank
    right = [
        event
        for event in fired
        if (event["labels"]["alertname"], event["labels"].get("rank")) == ("TrainingStraggler", str(slow))
    ]
    latency = (right[0]["seen"] - shift_ns - slow_ns) / 1e9 if right else None
    others = sorted({event["labels"]["alertname"] for event in fired if event not in right})
    figures = {
        "ranks": args.ranks,
        "steps": steps,
        "watched_s": round(observed["seconds"], 1),
        "share_of_a_core": round(observed["share"], 4),
        "cpu_s_to_take_in_what_is_there": round(observed["start_s"], 2),
        "peak_rss_mib": round(observed["rss"] / 2**20, 1),
        "straggler_told_after_s": None if latency is None else round(latency, 1),
        "other_alerts": others,
        "growing_was_late_by_at_most_s": round(observed["behind_s"], 2),
        "peer_cpu_s_per_evaluation": [round(seconds, 2) for seconds in peer_seconds],
        "peer_share_of_a_core_at_5_s": round(sum(peer_seconds) / max(1, len(peer_seconds)) / 5, 3),
    }
    budgets = [
        budget("share_of_a_core", round(observed["share"], 4), CORE_SHARE),
        budget("straggler_is_told", len(right), 1, at_least=True),
        budget("alerts_about_anything_else", len(set(others) - SLOWER), 0),
    ]
    finish(figures, budgets, environment("rankscope", "numpy"))


if __name__ == "__main__":
    main()
