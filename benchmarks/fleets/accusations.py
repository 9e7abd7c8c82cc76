"""Measure false accusations of healthy ranks and detection of slow ones, on simulated own times judged like step records.

usage: python -m benchmarks.fleets.accusations [--seeds N]

The own times are seeded. Noise is log-normal and autocorrelated: it lasts for some steps. In half of the runs, ranks also have
intermittent outliers. Every rank has a small bias of its own. Rates are grouped by the duration of the noise as a share of the
run: a rank whose noise lasts as long as the run is a slow rank in that run. Other runs have long pauses of any rank, with and
without a lasting fault of a quarter of the step. Prints JSON.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.common.result import budget, environment, finish

from rankscope.analysis.evidence.compared import StepOwnTimes
from rankscope.analysis.evidence.step_table.steps import Matrices, StepTable
from rankscope.analysis.inference.judging.moving_wait import moving_waits
from rankscope.analysis.inference.judging.rank_judge import SuspectedRanks, judge_ranks
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks

STEP_US = 100_000.0
RANKS = (2, 3, 4, 8, 16, 64)
STEPS = (35, 200)
LASTS = (1, 6, 20, 100)
"""Number of steps that noise lasts: about (1 + r) / (1 - r) for an autocorrelation r."""
SCATTER = (0.03, 0.2)
BIAS = 0.01
SPIKES = (0.0, 0.2)
"""Share of the steps in which some rank is an outlier, by twice the step on average. More would be a rotating fault."""


def own_times(
    rng: np.random.Generator, ranks: int, steps: int, *, lasts: float, scatter: float, spikes: float = 0.0
) -> np.ndarray:
    """Return the own times of a healthy run, [ranks, steps]."""
    keep = (lasts - 1) / (lasts + 1)
    noise = rng.normal(size=(ranks, steps))
    for step in range(1, steps):
        noise[:, step] = keep * noise[:, step - 1] + np.sqrt(1 - keep**2) * noise[:, step]
    own = STEP_US * (1 + rng.normal(0, BIAS, size=(ranks, 1))) * np.exp(scatter * noise)
    return own + (rng.random(own.shape) < min(0.03, spikes / ranks)) * rng.exponential(2 * STEP_US, own.shape)


def verdict(own: np.ndarray) -> SlowRanks | SuspectedRanks | None:
    """Return the slow ranks, or a suspect without enough data, as for a run without windows."""
    ranks, steps = own.shape
    wall = own.max(axis=0) + 0.04 * STEP_US
    table = StepTable(
        attempt=0,
        ranks=np.arange(ranks),
        steps=np.arange(steps),
        values=Matrices(
            {"own_us": own, "wall_us": np.tile(wall, (ranks, 1)), "blocked_us": wall - own}, np.arange(ranks), np.arange(steps)
        ),
        start_unix_ns=np.zeros((ranks, steps), dtype=np.int64),
        profiled=np.zeros((ranks, steps), dtype=bool),
        tags={},
    )
    judged = StepOwnTimes(table, np.arange(ranks), own, float(wall.mean()))
    result, moving = judge_ranks(judged), moving_waits(judged)
    return result.slow or (moving.as_slow(judged) if moving.stands_out else None) or result.suspect


def accusations(seeds: int) -> dict[str, Any]:
    """Return the rates of false accusations by the duration of the noise as a share of the run."""
    classes: dict[str, dict[str, int]] = {}
    for ranks, steps, lasts, scatter, spikes in itertools.product(RANKS, STEPS, LASTS, SCATTER, SPIKES):
        share = lasts / steps
        name = "up to a tenth" if share <= 0.1 else "up to a third" if share <= 1 / 3 else "longer"
        for seed in range(seeds):
            rng = np.random.default_rng((ranks, steps, lasts, round(scatter * 100), round(spikes * 100), seed))
            result = verdict(own_times(rng, ranks, steps, lasts=lasts, scatter=scatter, spikes=spikes))
            counts = classes.setdefault(name, {"runs": 0, "named": 0, "too_little": 0})
            counts["runs"] += 1
            counts["named"] += isinstance(result, SlowRanks)
            counts["too_little"] += isinstance(result, SuspectedRanks)
    return {name: {**count, "rate": count["named"] / count["runs"]} for name, count in classes.items()}


PAUSED_STEPS_US = (40_000.0, 80_000.0, 160_000.0)
"""Step times of the runs with long pauses of 50 to 150 ms."""

PLANTED: dict[str, tuple[int, int, list[int] | None, str, Callable[[int, int], float]]] = {
    # what: (ranks, steps, slow ranks, pattern, extra share of a step of a slow rank at a step)
    "fixed, 20 % of a step": (8, 300, [1], "fixed", lambda rank, _step: 0.2 * (rank == 1)),
    "two ranks, 30 %": (8, 300, [1, 3], "fixed", lambda rank, _step: 0.3 * (rank in {1, 3})),
    "two ranks of four, 30 %": (4, 60, [1, 3], "fixed", lambda rank, _step: 0.3 * (rank in {1, 3})),
    "half of the ranks, 30 %": (8, 60, [0, 1, 3, 6], "fixed", lambda rank, _step: 0.3 * (rank in {0, 1, 3, 6})),
    "one step in ten, 100 %": (8, 300, [1], "intermittent", lambda rank, step: 1.0 * (rank == 1 and step % 10 == 0)),
    "one step in ten, 300 %": (8, 300, [1], "intermittent", lambda rank, step: 3.0 * (rank == 1 and step % 10 == 0)),
    "one step in ten, 300 %, two ranks": (2, 100, [1], "intermittent", lambda rank, step: 3.0 * (rank == 1 and step % 10 == 5)),
    "rotating, 60 %": (8, 300, None, "rotating", lambda rank, step: 0.6 * (step % 8 == rank)),
}


def detections(seeds: int) -> dict[str, Any]:
    """Return the share of planted faults that are found, and with the right pattern, if noise lasts for 6 steps."""
    result: dict[str, Any] = {}
    for fault, (ranks, steps, expected, pattern, extra) in PLANTED.items():
        right = same = unsure = 0
        for seed in range(seeds):
            own = own_times(np.random.default_rng(seed), ranks, steps, lasts=6, scatter=0.05)
            own += STEP_US * np.array([[extra(rank, step) for step in range(steps)] for rank in range(ranks)])
            answer = verdict(own)
            unsure += isinstance(answer, SuspectedRanks)
            hit = isinstance(answer, SlowRanks) and (expected is None or sorted(answer.ranks) == expected)
            right += hit
            same += isinstance(answer, SlowRanks) and hit and answer.pattern == pattern
        shares = {"found": right, "with_the_right_pattern": same, "too_little": unsure}
        result[fault] = {"runs": seeds, **{name: count / seeds for name, count in shares.items()}}
    return result


def paused(rng: np.random.Generator, ranks: int, step_us: float) -> np.ndarray:
    """Return own times of 100 steps with short pauses of all ranks and, in 5 to 10 % of the steps, a long one of any rank."""
    own = step_us * (1 + rng.normal(0, BIAS, size=(ranks, 1))) * np.exp(0.03 * rng.normal(size=(ranks, 100)))
    own += rng.exponential(0.1 * step_us, own.shape)
    steps = np.flatnonzero(rng.random(100) < rng.uniform(0.05, 0.1))
    own[rng.integers(0, ranks, len(steps)), steps] += rng.uniform(50_000, 150_000, len(steps))
    return own


def pauses(seeds: int) -> dict[str, Any]:
    """Return the rates among long pauses: false accusations, and detections of a lasting fault of a quarter of the step."""
    result: dict[str, Any] = {}
    for step_us, ranks in itertools.product(PAUSED_STEPS_US, (2, 4, 8)):
        counts: Counter[str] = Counter()
        for seed in range(seeds):
            own = paused(np.random.default_rng((seed, ranks, int(step_us))), ranks, step_us)
            counts["accused"] += isinstance(verdict(own), SlowRanks)
            own[1] += 0.25 * own.max(axis=0).mean()
            answer = verdict(own)
            counts["found"] += isinstance(answer, SlowRanks) and answer.ranks == [1]
            counts["found_as_fixed"] += isinstance(answer, SlowRanks) and (answer.ranks, answer.pattern) == ([1], "fixed")
        result[f"{ranks} ranks, {step_us / 1000:g} ms"] = {"runs": seeds, **{name: n / seeds for name, n in counts.items()}}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60)
    seeds = parser.parse_args().seeds
    null, planted, among = accusations(seeds), detections(seeds), pauses(seeds)
    usual = [null[name] for name in ("up to a tenth", "up to a third")]
    rate = sum(item["named"] for item in usual) / sum(item["runs"] for item in usual)
    decided = min(item["found"] + item["too_little"] for item in planted.values())
    least = min(item["found"] for item in planted.values())
    accused = sum(item["accused"] for item in among.values()) / len(among)
    named = sum(item["found"] for item in among.values()) / len(among)
    budgets = [
        budget("false accusations, noise of up to a third of the run", rate, 0.02),
        budget("least found of any planted fault, or said to be too little to tell", decided, 0.95, at_least=True),
        budget("least found of any planted fault", least, 0.9, at_least=True),
        budget("false accusations among long pauses", accused, 0.02),
        budget("lasting faults found among long pauses", named, 0.95, at_least=True),
    ]
    figures = {"false_accusations_by_how_long_noise_lasts": null, "planted": planted, "pauses": among, "seeds": seeds}
    finish(figures, budgets, environment("rankscope", "numpy"))


if __name__ == "__main__":
    main()
