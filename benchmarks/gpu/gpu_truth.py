"""Whom `rankscope analyze` names in simulated NCCL jobs with a known fault, and why: layout by fault by seed. Prints JSON.

usage: python -m benchmarks.gpu.gpu_truth [--seeds N] [--layout NAME ...] [--source traces|dumps|inspector|run ...]

The jobs are those of tests/nccl: a discrete-event model of hosts that launch, and of devices with a stream for compute and one
per process group. Its semantics are stated in tests/nccl/device.py. Each job is read from what it leaves:

- traces: Kineto traces of all ranks, of 16 steps, on the clocks of their hosts.
- dumps: Flight Recorder dumps with durations, of 48 steps. They have no compute, so the cause is not told.
- inspector: verbose logs of the NCCL Inspector plugin, of 48 steps.
- run: the run directory of 48 steps, with step records and the durations of a Flight Recorder, without profiled steps.

Operations inside a CUDA graph are in traces only; of a run of such a job no own time and no duration is known, so these runs are
counted apart.

The cause of a run is right if it is that of the fault, for causes that step records show: late input, more work, checkpoints and
garbage collection. Whether a device or its host is slow only profiled steps show, or a host that uses no CPU meanwhile, so there
"unknown" is right, too; naming the wrong one of them is not.

Jobs of 64 to 1,024 ranks have one seed, some of the faults, 10 steps of traces and 16 of dumps, and budgets of their own.

What the fault costs is known: the same job runs without it. An answer is right if it names the rank at fault; where the fault
costs less than 5 % of the step, also if it names none. Faults of no rank (a slow link, one pause, 3 % slower) must not have a
rank named, except for a slow link those of its group, with the cause "communication". "Not enough data" is counted apart.
No peer reads these files without code in the job, so there is no comparison.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.common.result import budget, environment, finish
from tests.nccl.dumps import write_dumps
from tests.nccl.faults import FAULTS
from tests.nccl.inspector import write_logs
from tests.nccl.layouts import LARGE, LAYOUTS, LayoutJob
from tests.nccl.runs import write_run
from tests.nccl.traces import write_traces

from rankscope.analysis.engine import analyze

STEPS = {"traces": 16, "dumps": 48, "inspector": 48, "run": 48}
"""Steps of a job by source."""
STEPS_OF_LARGE = {"traces": 10, "dumps": 16}
FAULTS_OF_LARGE = ("none", "slow device", "pause of the host", "slow host")
EVERY = LAYOUTS | LARGE
UNANSWERED = 0.05
"""Largest share of jobs without an answer."""
GRAPHED = "run of a CUDA graph"
UNSEEN = ("compute", "host")
"""Causes between which only profiled steps decide."""
COSTS = 0.05
"""Share of the step that a fault must cost for its rank to be named."""


class JobAnswer(NamedTuple):
    """Answer about one job."""

    layout: str
    fault: str
    source: str
    outcome: str
    """``right``, ``wrong``, ``missed`` or ``not enough data``."""
    cause: bool | None
    """True if the cause is right; ``None`` where no rank was to be named, or was not."""
    cost: float
    """What the fault costs, as a share of the step without it."""
    stated: float | None
    """Stated gain as a multiple of the true one."""


@lru_cache
def step_us(layout: str, late: int, steps: int, seed: int) -> float:
    """Return the time of a step of the job without a fault."""
    return LayoutJob(EVERY[layout], FAULTS["none"], late=late, steps=steps, seed=seed).step_us


def judged(layout: str, fault: str, source: str, seed: int) -> JobAnswer:
    """Play a job, analyse what it leaves, and compare the answer with the truth."""
    late = int(np.random.default_rng((seed, 1)).integers(EVERY[layout].world))
    steps = (STEPS_OF_LARGE if layout in LARGE else STEPS)[source]
    job = LayoutJob(EVERY[layout], FAULTS[fault], late=late, steps=steps, seed=seed)
    usual = step_us(layout, late, steps, seed) if fault != "none" else job.step_us
    with tempfile.TemporaryDirectory() as folder:
        if source == "traces":
            write_traces(job, Path(folder), seed=seed, graphed="CUDA graph" in layout)
        elif source == "dumps":
            write_dumps(job, Path(folder))
        elif source == "run":
            write_run(job, Path(folder), seed=seed)
        else:
            write_logs(job, Path(folder), verbose=True)
        analysis = analyze([folder])
    verdict, cost = analysis.verdict, job.step_us / usual - 1
    expected = FAULTS[fault].cause
    is_fault = expected is not None and cost >= COSTS
    if verdict.kind == "insufficient_data":
        return JobAnswer(layout, fault, source, "not enough data", None, cost, None)
    if verdict.kind != "straggler":
        return JobAnswer(layout, fault, source, "missed" if is_fault else "right", None, cost, None)
    if expected is None:
        groups = [members for name, members in job.groups.items() if late in members and name != "0"]
        of_link = verdict.cause == "communication" and any(set(verdict.ranks) <= set(members) for members in groups)
        return JobAnswer(layout, fault, source, "right" if fault == "slow link" and of_link else "wrong", None, cost, None)
    if verdict.ranks != [late]:
        return JobAnswer(layout, fault, source, "wrong", None, cost, None)
    assert verdict.slowdown is not None
    stated = (1 - 1 / verdict.slowdown) / (cost / (1 + cost)) if is_fault else None
    right = verdict.cause == expected or (source == "run" and verdict.cause == "unknown" and expected in UNSEEN)
    cause = right if source in ("traces", "run") and is_fault else None
    return JobAnswer(layout, fault, source, "right", cause, cost, stated)


def share(answers: list[JobAnswer], outcome: str) -> float:
    return sum(answer.outcome == outcome for answer in answers) / max(1, len(answers))


def kind_of(answer: JobAnswer) -> str:
    """Return the name of the answers that an answer is counted with."""
    if answer.layout in LARGE:
        return f"{answer.source} of 64 ranks or more"
    return GRAPHED if answer.source == "run" and "CUDA graph" in answer.layout else answer.source


def jobs_of(layouts: Sequence[str], sources: Sequence[str], seeds: int) -> list[tuple[str, str, str, int]]:
    """Return layout, fault, source and seed of each job, the longest first."""
    usual = [
        job
        for job in product([name for name in layouts if name in LAYOUTS], FAULTS, sources, range(seeds))
        if "CUDA graph" not in job[0] or job[2] in ("traces", "run")
    ]
    large = [
        (name, fault, source, 0)
        for name, fault, source in product(LARGE, FAULTS_OF_LARGE, STEPS_OF_LARGE)
        if name in layouts
        and source in sources
        # Writing and reading the traces of a thousand ranks takes minutes.
        and (source == "dumps" or LARGE[name].world < 100 or (fault == "slow device" and name.startswith("fsdp")))
        and (LARGE[name].world < 1000 or fault != "slow host")
    ]
    return sorted(large, key=lambda job: (job[2] != "traces", -LARGE[job[0]].world)) + usual


def budgets_of(kind: str, of: list[JobAnswer]) -> list[dict[str, object]]:
    """Return the budgets of the answers that are counted together."""
    faulty = [answer for answer in of if FAULTS[answer.fault].cause is not None and answer.cost >= COSTS]
    answered = [answer for answer in faulty if answer.outcome != "not enough data"]
    causes = [answer.cause for answer in faulty if answer.cause is not None]
    budgets = [budget(f"{kind}: another rank named, of all jobs", share(of, "wrong"), 0.01)]
    if answered:
        right = share(answered, "right")
        budgets.insert(0, budget(f"{kind}: right rank, of jobs with a fault and an answer", right, 0.98, at_least=True))
    if kind != GRAPHED:
        budgets.append(budget(f"{kind}: not enough data, of all jobs", share(of, "not enough data"), UNANSWERED))
    if causes:
        budgets.append(budget(f"{kind}: right cause, of right ranks", sum(causes) / len(causes), 0.9, at_least=True))
    return budgets


def figures_of(rows: list[JobAnswer]) -> dict[str, Any]:
    """Return the figures of the answers on one layout."""
    stated = [answer.stated for answer in rows if answer.stated is not None]
    quantiles = [round(float(value), 2) for value in np.quantile(stated, (0.1, 0.5, 0.9))] if stated else None
    wrong = sum(answer.cause is False for answer in rows)
    return Counter(answer.outcome for answer in rows) | {
        "wrong_causes": wrong,
        "stated_over_true_gain_p10_p50_p90": quantiles,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="of the usual layouts; large ones have one")
    parser.add_argument("--layout", nargs="*", default=list(EVERY), choices=list(EVERY))
    parser.add_argument("--source", nargs="*", default=list(STEPS), choices=list(STEPS))
    args = parser.parse_args()
    jobs = jobs_of(args.layout, args.source, args.seeds)
    answers: list[JobAnswer] = []
    with ProcessPoolExecutor() as pool:
        for number, answer in enumerate(pool.map(judged, *zip(*jobs, strict=True)), 1):
            answers.append(answer)
            if answer.outcome != "right" or answer.cause is False:
                print(f"{jobs[number - 1]}: {answer.outcome}, cause {answer.cause}, costs {answer.cost:.1%}", file=sys.stderr)
            if number % 20 == 0:
                print(f"{number} of {len(jobs)}", file=sys.stderr, flush=True)
    kinds: dict[str, list[JobAnswer]] = {}
    for answer in answers:
        kinds.setdefault(kind_of(answer), []).append(answer)
    figures = {
        f"{of[0].source}, {layout}": figures_of(rows)
        for of, layout in product(kinds.values(), args.layout)
        if (rows := [answer for answer in of if answer.layout == layout])
    }
    budgets = [row for kind, of in kinds.items() for row in budgets_of(kind, of)]
    finish(figures, budgets, environment("rankscope", "numpy"), jobs=len(jobs))


if __name__ == "__main__":
    main()
