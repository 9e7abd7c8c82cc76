"""Ranks and hosts that `rankscope analyze` names in simulated fleets of known truth, beside those that simpler methods name.
Prints JSON.

usage: python -m benchmarks.fleets.fleet_truth [--seeds N] [--only KIND ...] [--jobs N] [--keep DIR] [--list-wrong]

A fleet is an array of own times, 2 to 1,024 ranks by 35 to 1,000 steps, written as a run directory (fleet.py). Its kinds are in
kinds.py: ranks and whole hosts that are slow always, in bursts, in random steps, in turn; missing records and ranks; few
steps that take very long; noise, heavy tails, pauses. Each fleet with a fault is also judged without it, with the same noise.

- Right: of a fault, at least half of the ranks at fault or their host are named, and nothing else. Without a fault, no rank is
  named; the verdict is "rotating" if the ranks wait for each other for 10 % of the time or more, and may be from 5 % on. Of rare
  steps, their rank and cause are right and the verdict is not "balanced". "Not enough data" is right only for runs of less than
  200 steps without a fault, where the slow rank left no record, and where healing it saves 5 % of the step, which is the limit.
- Exactly named: the ranks are those at fault, and so are the hosts, where a whole host is.
- False: a rank or host is named that is not at fault.
- Cost: the saving that the verdict's slowdown implies is within 15 % of the true one: the time of the same job without the fault.

The simpler methods (fleet_baselines.py) name ranks and nothing else, so they are compared by these: names are right if no other
rank is named, and at least half of those at fault, or none where none is. For that, rankscope is judged in the same way.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from benchmarks.common.result import budget, environment, finish
from benchmarks.fleets.baselines import BASELINES, frontier_of
from benchmarks.fleets.fleet import ExpectedAnswer, Floats, PlantedFleet, phase_times, write_fleet
from benchmarks.fleets.kinds import FAULTY, HEALTHY
from benchmarks.fleets.scores import Score, cost_error, interval_holds, named_ranks, score_of, score_of_ranks

from rankscope.analysis.engine import analyze

OURS: Final = "rankscope"
COST_ERROR: Final = 0.15
ENOUGH_STEPS: Final = 200
"""Number of steps from which on a healthy run must be recognised as such."""


class FleetCase(NamedTuple):
    """One fleet to judge."""

    kind: str
    seed: int
    has_fault: bool = True
    """False for a kind with a fault that is left out."""

    @property
    def name(self) -> str:
        """Kind, and whether its fault is left out."""
        return self.kind if self.has_fault else f"{self.kind}, without the fault"

    @property
    def healthy(self) -> bool:
        """True without a fault."""
        return self.kind in HEALTHY or not self.has_fault


class FleetOutcome(NamedTuple):
    """Answers about one fleet."""

    job: FleetCase
    expected: ExpectedAnswer
    steps: int
    score: Score
    names: dict[str, Score]
    """Method, of which rankscope is one, to the score of the ranks that it names."""
    saving: float
    """True share of the typical step that healing the fault saves; of rare steps, their share of the time."""
    cost_error: float | None
    interval_holds: bool | None
    frontier_last: int | None
    """Last place, from 0, that a rank at fault has in frontier accounting; ``None`` without one that has records."""
    answer: dict[str, Any]
    """The verdict, for people."""


def jobs_of(only: Sequence[str], seeds: int) -> list[FleetCase]:
    """Return the jobs of the kinds whose name contains any of ``only``."""
    jobs = [FleetCase(kind, seed) for kind in HEALTHY for seed in range(seeds)]
    jobs += [FleetCase(kind, seed, fault) for kind in FAULTY for fault in (True, False) for seed in range(seeds)]
    return [job for job in jobs if any(part in job.name for part in only)]


def fleet_of(job: FleetCase) -> PlantedFleet:
    """Return the fleet of a job; its kind and seed determine the noise and the ranks at fault."""
    rng = np.random.default_rng((zlib.crc32(job.kind.encode()), job.seed))
    fleet = (FAULTY | HEALTHY)[job.kind](rng)
    return fleet if job.has_fault else fleet.without_fault()


def recorded_times(fleet: PlantedFleet) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Return step times, own times and own times by phase [ranks, steps], NaN where no record is."""
    phases = {phase: np.where(fleet.recorded, times, np.nan) for phase, times in phase_times(fleet).items()}
    own = sum(phases.values(), start=np.zeros(fleet.shape))
    return own + fleet.blocked, own, phases


def judged(job: FleetCase, keep: Path | None = None) -> FleetOutcome:
    """Write a fleet, analyse it, and compare the answers with the truth. ``keep``: folder in which the run stays."""
    fleet = fleet_of(job)
    with tempfile.TemporaryDirectory() as folder:
        run = (Path(folder) if keep is None else keep) / f"{job.name}-{job.seed}".replace(" ", "_")
        if run.exists():
            shutil.rmtree(run)
        write_fleet(fleet, run)
        analysis = analyze([run])
    verdict, score = analysis.verdict, score_of(analysis, fleet)
    walls, own, phases = recorded_times(fleet)
    named = {OURS: named_ranks(verdict)} | {name: set(method(walls, own, phases)) for name, method in BASELINES.items()}
    order = np.argsort(-frontier_of(phases)[0]).tolist()
    places = [order.index(rank) for rank in fleet.expected.ranks if rank not in fleet.absent]
    fields = ("kind", "ranks", "hosts", "pattern", "cause", "slowdown", "saves", "confidence", "steps_needed", "summary")
    answer = {name: getattr(verdict, name) for name in fields}
    answer["rare_steps"] = None if analysis.rare_steps is None else analysis.rare_steps.summary
    return FleetOutcome(
        job=job,
        expected=fleet.expected,
        steps=fleet.shape[1],
        score=score,
        names={name: score_of_ranks(ranks, fleet.expected) for name, ranks in named.items()},
        saving=fleet.saving if fleet.rare_share is None else fleet.rare_share,
        cost_error=cost_error(analysis, fleet) if score.right else None,
        interval_holds=interval_holds(analysis, fleet) if score.right else None,
        frontier_last=max(places, default=None),
        answer={**answer, "waiting": round(fleet.waiting, 3)},
    )


def judged_or_failed(job: FleetCase, keep: Path | None = None) -> FleetOutcome | str:
    """Return the outcome of a job, or the traceback with which its analysis failed."""
    try:
        return judged(job, keep)
    except Exception:  # noqa: BLE001  # one failure must not cost the other results
        return traceback.format_exc()


def share(values: Iterable[bool | None]) -> float | None:
    """Return the share of true values among those that are known; ``None`` without any."""
    collected = [value for value in values if value is not None]
    return round(sum(collected) / len(collected), 4) if collected else None


def frontier_finds(outcomes: Sequence[FleetOutcome], more: int) -> float | None:
    """Return the share of faults whose k ranks are among the first ``k + more`` of frontier accounting, if it knew k."""
    return share(
        None if outcome.frontier_last is None else outcome.frontier_last < len(outcome.expected.ranks) + more
        for outcome in outcomes
    )


def figures_of(outcomes: Sequence[FleetOutcome]) -> dict[str, Any]:
    """Return the figures of some outcomes: shares of the runs, 0 to 1."""
    at_fault = [outcome for outcome in outcomes if outcome.expected.must_name]
    errors = [outcome.cost_error for outcome in outcomes if outcome.cost_error is not None]
    return {
        "runs": len(outcomes),
        "right": share(outcome.score.right for outcome in outcomes),
        "exactly_named": share(outcome.score.exact for outcome in at_fault),
        "false": share(outcome.score.false for outcome in outcomes),
        "undecided": share(outcome.score.undecided for outcome in outcomes),
        "true_saving": round(float(np.mean([outcome.saving for outcome in outcomes])), 4),
        "stated_over_true_saving_p50": round(1 + float(np.median(errors)), 3) if errors else None,
        "cost_within_15_percent": share(abs(error) <= COST_ERROR for error in errors),
        "interval_has_true_saving": share(outcome.interval_holds for outcome in outcomes),
        "by_ranks_alone": {
            name: {
                "right": share(outcome.names[name].right for outcome in outcomes),
                "exactly_named": share(outcome.names[name].exact for outcome in at_fault),
                "false": share(outcome.names[name].false for outcome in outcomes),
            }
            for name in (OURS, *BASELINES)
        },
        "frontier_first": frontier_finds(outcomes, 0),
        "frontier_among_first_two": frontier_finds(outcomes, 1),
    }


def budgets_of(outcomes: Sequence[FleetOutcome]) -> list[dict[str, object]]:
    """Return the budgets that the kinds that were run determine."""
    parts = {
        "all runs": outcomes,
        "runs with a fault": [outcome for outcome in outcomes if not outcome.job.healthy],
        "healthy runs": [outcome for outcome in outcomes if outcome.job.healthy],
    }
    figures = {name: figures_of(part) for name, part in parts.items() if part}
    long = [outcome.score.undecided for outcome in parts["healthy runs"] if outcome.steps >= ENOUGH_STEPS]
    of_all = figures["all runs"]
    least = [
        (f"right, of {part}", figures[part]["right"], 0.95) for part in ("runs with a fault", "healthy runs") if part in figures
    ]
    least += [
        ("exactly named, of runs with ranks at fault", of_all["exactly_named"], 0.9),
        ("cost within 15 % of the true saving, of right answers", of_all["cost_within_15_percent"], 0.9),
    ]
    most = [(f"a rank or host named that is not at fault, of {part}", figure["false"], 0.01) for part, figure in figures.items()]
    most += [("not enough data, of healthy runs of 200 steps or more", share(long), 0.05)]
    alone = of_all["by_ranks_alone"]
    for name, item in ((name, alone[name]) for name in BASELINES):
        least += [
            (f"{share_name.replace('_', ' ')}, by ranks alone, beyond {name}", alone[OURS][share_name] - item[share_name], 0.0)
            for share_name in ("right", "exactly_named")
            if item[share_name] is not None
        ]
    return [
        budget(name, value, limit, at_least=at_least)
        for rows, at_least in ((least, True), (most, False))
        for name, value, limit in rows
        if value is not None
    ]


TABLE: Final = """\
Shares of the runs. Columns of methods: the ranks that they name are right, by ranks alone. Last column: all ranks at fault are
among the first of frontier accounting, as many as are at fault and one more."""


def table_of(figures: dict[str, dict[str, Any]], outcomes: Sequence[FleetOutcome]) -> dict[str, Any]:
    """Return the figures as a table: a row per kind, those without their fault in one."""
    left_out = [outcome for outcome in outcomes if not outcome.job.has_fault]
    rows = {kind: of_kind for kind, of_kind in figures.items() if kind in FAULTY or kind in HEALTHY}
    rows |= {"those with a fault, without it": figures_of(left_out)} if left_out else {}
    rows |= {"all": figures_of(outcomes)}
    columns = {"right": "right", "exactly_named": "exactly named", "false": "false", "undecided": "not enough data"}
    columns |= {"cost_within_15_percent": "cost within 15 %"}
    methods = (OURS, *BASELINES)
    return {
        "text": TABLE,
        "columns": ["kind", "runs", *columns.values(), *methods, "first of the frontier and one more"],
        "rows": [
            [
                kind,
                row["runs"],
                *(percent(row[column]) for column in columns),
                *(percent(row["by_ranks_alone"][name]["right"]) for name in methods),
                percent(row["frontier_among_first_two"]),
            ]
            for kind, row in rows.items()
        ],
    }


def percent(value: float | None) -> str:
    """Return a share as text."""
    return "" if value is None else f"{100 * value:.3g} %"


def wrong_answer(outcome: FleetOutcome) -> str | None:
    """Return an answer that is not right, or not exact, beside the expected one, as text; ``None`` if it is."""
    score = outcome.score
    states = {
        "false name": score.false,
        "undecided": score.undecided and not score.right,
        "wrong": not score.right,
        "not exactly named": not score.exact and outcome.expected.must_name,
        "wrong cost": outcome.cost_error is not None and abs(outcome.cost_error) > COST_ERROR,
    }
    state = next((name for name, holds in states.items() if holds), None)
    if state is None:
        return None
    expected = {name: value for name, value in outcome.expected._asdict().items() if value}
    answer = {name: value for name, value in outcome.answer.items() if value not in (None, [])}
    cost = f", saves {outcome.saving:.3f}" + ("" if outcome.cost_error is None else f", error {outcome.cost_error:+.2f}")
    return f"{outcome.job.name}, seed {outcome.job.seed}: {state}\n  expected {expected}{cost}\n  got {answer}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="fleets of each kind")
    parser.add_argument("--only", nargs="*", default=[""], metavar="KIND", help="run the kinds whose name contains any of these")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the run directories here")
    parser.add_argument("--list-wrong", action="store_true", help="print each wrong answer on stderr")
    args = parser.parse_args()
    jobs = jobs_of(args.only, args.seeds)
    if not jobs:
        parser.error(f"no kind contains {' or '.join(args.only)}")
    outcomes: list[FleetOutcome] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for number, outcome in enumerate(pool.map(partial(judged_or_failed, keep=args.keep), jobs), 1):
            if isinstance(outcome, str):
                print(f"{jobs[number - 1].name}, seed {jobs[number - 1].seed}: failed\n{outcome}", file=sys.stderr)
            else:
                outcomes.append(outcome)
                if args.list_wrong and (text := wrong_answer(outcome)) is not None:
                    print(text, file=sys.stderr)
            if number % 20 == 0:
                print(f"{number} of {len(jobs)}", file=sys.stderr, flush=True)
    kinds: dict[str, list[FleetOutcome]] = {}
    for outcome in outcomes:
        kinds.setdefault(outcome.job.name, []).append(outcome)
    figures = {kind: figures_of(of_kind) for kind, of_kind in kinds.items()}
    budgets = [*(budgets_of(outcomes) if outcomes else []), budget("analyses that failed", len(jobs) - len(outcomes), 0)]
    finish(
        figures | ({"all": figures_of(outcomes)} if outcomes else {}),
        budgets,
        environment("rankscope", "numpy"),
        runs=len(outcomes),
        table=table_of(figures, outcomes) if outcomes else None,
    )


if __name__ == "__main__":
    main()
