"""Whom `rankscope analyze` names in simulated fleets with a known fault, and in healthy ones, beside simpler methods on the same runs.

usage: python benchmarks/fleet_truth.py [--seeds N] [--only KIND] [--jobs N] [--keep DIR] [--list-wrong]

A fleet is an array of own times, 2 to 1,024 ranks x 35 to 1,000 steps, written as a run directory (fleets.py). The kinds are in
fleet_kinds.py: single ranks and whole hosts that are slow always, in bursts, in random steps, in turns; missing records and ranks;
few steps that take very long; noise, heavy tails and pauses. Each faulty fleet is also judged without its fault.

- Right: of a fault, at least half of the ranks at fault or their host are named, and nothing else. Without one, no rank is named, and
  the verdict is "rotating" where the ranks wait for each other for 10 % of the time or more, and may be so from 5 % on. Of rare
  steps, their rank and cause are right and the verdict is not "balanced".
- Exactly named: the ranks are those at fault, and the hosts, where a whole host is.
- False: a rank or host is named that is not at fault.
- Cost: the verdict's slowdown is that which the same fleet has against itself without the fault; saving within 15 %.

Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from budget import budget
from fleet_baselines import BASELINES, frontier_shares
from fleet_kinds import FAULTY, HEALTHY
from fleets import Expected, Fleet, Floats, phase_times, write_fleet

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Analysis

WAITING: Final = 0.1
"""Share of the time from which on ranks that wait for each other must be reported."""
SOME_WAITING: Final = 0.05
"""Share of the time from which on they may be reported."""
COST_ERROR: Final = 0.15
ENOUGH_STEPS: Final = 200
"""Number of steps from which on a healthy run must be recognised as such."""
TWIN: Final = ", without the fault"


class Job(NamedTuple):
    """One fleet to judge."""

    kind: str
    seed: int
    faulty: bool
    """False for a healthy kind, and for a faulty one without its fault."""

    @property
    def name(self) -> str:
        """Kind, and whether its fault is left out."""
        return self.kind if self.faulty or self.kind in HEALTHY else self.kind + TWIN


class Score(NamedTuple):
    """Answer of one method about one fleet, compared with the truth."""

    right: bool
    exact: bool
    """True if exactly the ranks and hosts at fault are named."""
    false: bool
    """True if one is named that is not at fault."""
    undecided: bool = False


class Outcome(NamedTuple):
    """Answers about one fleet."""

    job: Job
    expected: Expected
    ours: Score
    others: dict[str, Score]
    steps: int
    saving: float
    """True share of the typical step, or of the job for rare steps, that healing saves."""
    cost_error: float | None
    """Stated saving divided by the true one, minus 1; ``None`` where no saving is expected, or none is right."""
    frontier_places: list[int] | None
    """Place of each rank at fault in the order of frontier accounting, from 0, ascending; ``None`` without any."""
    answer: dict[str, Any]
    """The verdict, for people."""


def fleet_of(job: Job) -> Fleet:
    """Return the fleet of a job. The fault and the noise follow from its kind and seed."""
    rng = np.random.default_rng((zlib.crc32(job.kind.encode()), job.seed))
    fleet = (FAULTY | HEALTHY)[job.kind](rng)
    return fleet if job.faulty or job.kind in HEALTHY else fleet.without_fault()


def score_of(analysis: Analysis, fleet: Fleet) -> Score:
    """Compare the answer about a fleet with the truth."""
    expected, verdict = fleet.expected, analysis.verdict
    rotating = verdict.pattern == "rotating"
    ranks = set() if rotating else set(verdict.ranks) | ({verdict.rank} - {None})
    hosts = set(verdict.hosts)
    false = not (ranks <= set(expected.ranks) and hosts <= set(expected.hosts))
    undecided = verdict.kind == "insufficient_data"
    exact = not undecided and ranks == set(expected.ranks) and hosts == set(expected.hosts)
    turns = verdict.kind == "straggler" and rotating and verdict.rank is None and not hosts
    if undecided and expected.answer != "rare":
        return Score(expected.undecided, exact=False, false=False, undecided=True)
    if expected.answer == "names":
        named = 2 * len(ranks) >= len(expected.ranks) or (bool(hosts) and hosts == set(expected.hosts))
        right = (verdict.kind == "straggler" and named) or (expected.or_rotating and turns)
    elif expected.answer == "rare":
        right = _is_right_about_rare_steps(analysis, expected)
    else:
        must = expected.answer == "rotating" or fleet.waiting >= WAITING
        may = must or fleet.waiting >= SOME_WAITING
        right = (turns and may) or not (must or verdict.kind in ("straggler", "hang") or ranks)
        right = right and expected.cause in (None, verdict.cause)
    return Score(right and not false, exact, false, undecided)


def _is_right_about_rare_steps(analysis: Analysis, expected: Expected) -> bool:
    rare = analysis.rare_steps
    rank = next(iter(expected.ranks), None)
    return (
        rare is not None
        and rare.rank == rank
        and expected.cause in (None, rare.cause)
        and analysis.verdict.kind not in ("balanced", "hang")
    )


def score_of_ranks(named: Sequence[int], expected: Expected) -> Score:
    """Compare the ranks that a simpler method names with the truth. It need not know hosts, rare steps or rotating slowness."""
    culprits, false = set(expected.ranks), not set(named) <= set(expected.ranks)
    nobody = not named and (not culprits or expected.undecided or expected.or_rotating)
    right = nobody or (bool(named) and 2 * len(named) >= len(culprits))
    return Score(right and not false, set(named) == culprits, false)


def cost_error_of(analysis: Analysis, fleet: Fleet, score: Score) -> float | None:
    """Return the stated saving divided by the true one, minus 1, where one is to be stated."""
    if not score.right:
        return None
    if fleet.rare_share is not None:
        return None if analysis.rare_steps is None else analysis.rare_steps.share / fleet.rare_share - 1
    if fleet.expected.answer != "names" or score.undecided or analysis.verdict.pattern == "rotating":
        return None
    slowdown = analysis.verdict.slowdown
    return -1.0 if slowdown is None else (1 - 1 / slowdown) / fleet.saving - 1


def recorded_times(fleet: Fleet) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Return step times, own times and own times by phase [ranks, steps], NaN where no record is."""
    phases = {phase: np.where(fleet.recorded, times, np.nan) for phase, times in phase_times(fleet).items()}
    own = sum(phases.values(), start=np.zeros(fleet.shape))
    return own + fleet.blocked, own, phases


def judged(job: Job, keep: Path | None = None) -> Outcome:
    """Write a fleet, analyse it, and compare the answer with the truth. ``keep``: folder in which the run stays."""
    fleet = fleet_of(job)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run" if keep is None else keep / f"{job.name.replace(' ', '_').replace('%', 'percent')}-{job.seed}"
        if run.exists():
            shutil.rmtree(run)
        write_fleet(fleet, run)
        analysis = analyze([run])
    verdict, score = analysis.verdict, score_of(analysis, fleet)
    walls, own, phases = recorded_times(fleet)
    order = np.argsort(-frontier_shares(phases)).tolist()
    answer: dict[str, Any] = {
        "kind": verdict.kind,
        "ranks": verdict.ranks,
        "hosts": verdict.hosts,
        "pattern": verdict.pattern,
        "cause": verdict.cause,
        "slowdown": verdict.slowdown,
        "saves": verdict.saves,
        "confidence": verdict.confidence,
        "steps_needed": verdict.steps_needed,
        "summary": verdict.summary,
        "rare_steps": None if analysis.rare_steps is None else analysis.rare_steps.summary,
        "waiting": round(fleet.waiting, 4),
    }
    return Outcome(
        job=job,
        expected=fleet.expected,
        ours=score,
        others={name: score_of_ranks(method(walls, own, phases), fleet.expected) for name, method in BASELINES.items()},
        steps=fleet.shape[1],
        saving=fleet.saving if fleet.rare_share is None else fleet.rare_share,
        cost_error=cost_error_of(analysis, fleet, score),
        frontier_places=sorted(order.index(rank) for rank in fleet.expected.ranks) or None,
        answer=answer,
    )


def judged_or_failed(job: Job, keep: Path | None = None) -> Outcome | str:
    """Return the outcome of a job, or the traceback with which its analysis failed."""
    try:
        return judged(job, keep)
    except Exception:  # noqa: BLE001  # one failure must not cost the other results
        return traceback.format_exc()


def jobs_of(only: str, seeds: int) -> list[Job]:
    """Return the jobs of the kinds whose name contains ``only``."""
    every = [Job(kind, seed, faulty=False) for kind in HEALTHY for seed in range(seeds)]
    every += [Job(kind, seed, faulty=faulty) for kind in FAULTY for faulty in (True, False) for seed in range(seeds)]
    return [job for job in every if only in job.name]


def share(values: Iterable[bool]) -> float | None:
    """Return the share of true values; ``None`` without any."""
    listed = list(values)
    return round(sum(listed) / len(listed), 4) if listed else None


def frontier_finds(outcomes: Sequence[Outcome], extra: int) -> float | None:
    """Return the share of faults whose k ranks are the first ``k + extra`` of frontier accounting, which is told k."""
    places = [outcome.frontier_places for outcome in outcomes if outcome.frontier_places is not None]
    return share(found[-1] < len(found) + extra for found in places)


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of the outcomes of some kind, or of all."""
    named = [outcome for outcome in outcomes if outcome.expected.answer == "names" and not outcome.expected.undecided]
    errors = [outcome.cost_error for outcome in outcomes if outcome.cost_error is not None]
    names = outcomes[0].others
    return {
        "runs": len(outcomes),
        "right": share(outcome.ours.right for outcome in outcomes),
        "exactly_named": share(outcome.ours.exact for outcome in named),
        "false": share(outcome.ours.false for outcome in outcomes),
        "undecided": share(outcome.ours.undecided for outcome in outcomes),
        "true_saving": round(float(np.mean([outcome.saving for outcome in outcomes])), 4),
        "cost_within_15_percent": share(abs(error) <= COST_ERROR for error in errors),
        "stated_over_true_saving": round(1 + float(np.median(errors)), 3) if errors else None,
        "others": {
            name: {
                "right": share(outcome.others[name].right for outcome in outcomes),
                "exactly_named": share(outcome.others[name].exact for outcome in named),
                "false": share(outcome.others[name].false for outcome in outcomes),
            }
            for name in names
        },
        "frontier_first": frontier_finds(outcomes, 0),
        "frontier_among_first_two": frontier_finds(outcomes, 1),
    }


def budgets_of(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """Return the budgets, of the kinds that were run."""
    faulty = [outcome for outcome in outcomes if outcome.job.faulty]
    healthy = [outcome for outcome in outcomes if not outcome.job.faulty]
    long = [outcome for outcome in healthy if outcome.steps >= ENOUGH_STEPS]
    of: dict[str, Callable[[Sequence[Outcome]], dict[str, Any]]] = {"all": figures_of}
    figures = {name: of["all"](part) for name, part in (("all", outcomes), ("faulty", faulty), ("healthy", healthy)) if part}
    budgets: list[dict[str, object]] = []

    def add(name: str, value: float | None, limit: float, *, at_least: bool = False) -> None:
        if value is not None:
            budgets.append(budget(name, value, limit, at_least=at_least))

    for part, title in (("faulty", "runs with a fault"), ("healthy", "healthy runs")):
        if part in figures:
            add(f"right, of {title}", figures[part]["right"], 0.95, at_least=True)
    add("exactly named, of runs with ranks at fault", figures["all"]["exactly_named"], 0.9, at_least=True)
    for part, title in (("all", "runs"), ("healthy", "healthy runs")):
        if part in figures:
            add(f"a rank or host named that is not at fault, of {title}", figures[part]["false"], 0.01)
    add("undecided, of healthy runs of 200 steps or more", share(outcome.ours.undecided for outcome in long), 0.05)
    add("cost within 15 % of the true saving, of runs named right", figures["all"]["cost_within_15_percent"], 0.9, at_least=True)
    for name, other in figures["all"]["others"].items():
        add(f"right beyond {name}, of all runs", figures["all"]["right"] - other["right"], 0.0, at_least=True)
        if figures["all"]["exactly_named"] is not None:
            ahead = figures["all"]["exactly_named"] - other["exactly_named"]
            add(f"exactly named beyond {name}", ahead, 0.0, at_least=True)
    return budgets


def main() -> int:
    """Measure, print the figures; exit status 1 if a budget does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="fleets of each kind")
    parser.add_argument("--only", default="", metavar="KIND", help="run the kinds whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the run directories here")
    parser.add_argument("--list-wrong", action="store_true", help="print each wrong answer on stderr")
    args = parser.parse_args()
    jobs = jobs_of(args.only, args.seeds)
    if not jobs:
        parser.error(f"no kind contains {args.only!r}")
    outcomes, failed = [], 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for number, outcome in enumerate(pool.map(partial(judged_or_failed, keep=args.keep), jobs), 1):
            if isinstance(outcome, str):
                failed += 1
                print(f"{jobs[number - 1].name}, seed {jobs[number - 1].seed}: the analysis failed\n{outcome}", file=sys.stderr)
                continue
            outcomes.append(outcome)
            if args.list_wrong and not (outcome.ours.right and (outcome.ours.exact or outcome.expected.answer != "names")):
                print(wrong_answer(outcome), file=sys.stderr)
            if number % 20 == 0:
                print(f"{number} of {len(jobs)}", file=sys.stderr, flush=True)
    kinds: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        kinds.setdefault(outcome.job.name, []).append(outcome)
    figures = {kind: figures_of(of_kind) for kind, of_kind in kinds.items()}
    figures["all"] = figures_of(outcomes) | {"failed": failed}
    budgets = [*budgets_of(outcomes), budget("analyses that failed", failed, 0)]
    environment = {"python": platform.python_version(), "numpy": version("numpy"), "rankscope": version("rankscope")}
    result = {"jobs": len(jobs), "seeds": args.seeds, "figures": figures, "budgets": budgets, "environment": environment}
    print(json.dumps(result, indent=1))
    return 0 if all(row["ok"] for row in budgets) else 1


def wrong_answer(outcome: Outcome) -> str:
    """Return a wrong answer beside the expected one, as text."""
    expected = {name: value for name, value in outcome.expected._asdict().items() if value}
    state = "false name" if outcome.ours.false else "undecided" if outcome.ours.undecided else "not exact" if outcome.ours.right else "wrong"
    got = {name: value for name, value in outcome.answer.items() if value is not None and value != []}
    return f"{outcome.job.name}, seed {outcome.job.seed}: {state}\n  expected {expected}\n  got {got}"


if __name__ == "__main__":
    sys.exit(main())
