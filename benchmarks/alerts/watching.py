"""Measure false straggler alerts of a watcher that follows healthy jobs for a week, and its delay for slow ranks.

usage: python -m benchmarks.alerts.watching [--days N] [--jobs N] [--starts N] [--seeds N]

Simulates jobs of 64 ranks with steps of one second. The watcher looks every 5 s at the last 500 steps, with its own tests
(``judge_ranks``), its own ledger and its own confirmation. "Before" is the same without the confirmation.

The noise is that of ``healthy_times.py``; its ``DISTURBED`` is reported beside the others.

How the rates follow:

- A look that cannot name a rank is not judged. Running sums give two necessary conditions of the tests for each look: a mean
  excess of the minimum effect, and an excess beyond that of noise between ranks, with a margin (``MARGIN``). A sample of these
  looks is judged nevertheless ("left_out_judged"); none may name a rank.
- An alert takes three looks in a row. So every third look is judged first, and the looks around those that name a rank.
- ``per_1000_job_days`` is the number of alerts per simulated time. ``at_most`` is its limit with a confidence of 95 % (Poisson,
  exact; with no alert 3.0 / job-days, the rule of three).
- With the confirmation, alerts are too rare to be counted. Their limit is a product of two limits with a confidence of 97.5 %
  each: of the suspicions per job-day, and of the chance that new steps confirm a suspicion. The second is measured on new steps
  from random places of the same jobs, with all tests of a suspicion: the share of trials that name a rank (Clopper and Pearson),
  times the mean number of ranks that they name, divided by the number of ranks, because the suspected rank is given before.
  It assumes that noise does not last from the first verdict through the new steps. The count of alerts with confirmation needs
  no such assumption.
- A job starts once a week. Starts are simulated separately and count with 1/7 per job-day.

Prints JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.alerts.healthy_times import DISTURBED, MORE, NOISES, RANKS, STEP_US, HealthyNoise, Own, own_times
from benchmarks.common.result import budget, environment, finish
from benchmarks.common.upper_limits import CONFIDENCE, binomial_limit, poisson_limit
from numpy.typing import NDArray

from rankscope.alerts.watch.conditions.candidate import Candidate, Subject
from rankscope.alerts.watch.conditions.confirmation import Confirmation, next_test
from rankscope.alerts.watch.ledger import AlertLedger, FiringPolicy
from rankscope.alerts.watcher_alerts import STRAGGLER
from rankscope.analysis.evidence.typical import WARM_UP, after_warm_up
from rankscope.analysis.inference.judging.moving_wait import moving_waits
from rankscope.analysis.inference.judging.rank_judge import judge_ranks
from rankscope.analysis.inference.judging.slow_ranks import FIXED, MINIMUM_EFFECT, SlowRanks
from rankscope.analysis.online import RECENT_STEPS, NewSteps

LOOK_EVERY = 5
"""Steps between two looks."""
FIRE_AFTER = FiringPolicy().fire_after
DAY = 86_400
MARGIN = 0.85
"""Share of the noise between ranks from which a look is judged: the tests need all of it."""
TRIALS = 100
"""Number of suspicions per job-day whose tests are tried on new steps from random places."""
SAMPLED = 10
"""Number of looks per job-day that are judged although they cannot name a rank."""


@dataclass(frozen=True, slots=True)
class Times:
    """Own times as the tests take them."""

    own: Own
    wall_us: float
    ranks: list[int]
    savings: None = None

    @property
    def steps(self) -> range:
        """Numbers of the compared steps."""
        return range(self.own.shape[1])

    @classmethod
    def of(cls, own: Own) -> Times:
        """Return the times of a look without the steps that count as warm-up."""
        judged_times = np.ascontiguousarray(own[:, after_warm_up(own.shape[1])])
        return cls(judged_times, float(judged_times.max(axis=0).mean() + 0.04 * STEP_US), list(range(len(own))))


def slow_in(own: Own) -> SlowRanks | None:
    """Return the slow ranks of a look, as the verdict on a run does."""
    times = Times.of(own)
    moving = moving_waits(times)
    return judge_ranks(times).slow or (moving.as_slow(times) if moving.stands_out else None)


def plausible(own: Own, firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which looks may name a rank, by necessary conditions: looks at the steps from ``firsts`` to ``ends`` [looks]."""
    inorder = np.sort(own.T, axis=1)
    median = inorder[:, RANKS // 2 - 1 : RANKS // 2 + 1].mean(axis=1)
    most, second, least = inorder[:, -1], inorder[:, -2], inorder[:, 0]
    wall = most.astype(np.float64) + 0.04 * STEP_US
    firsts = firsts + np.minimum(WARM_UP, (ends - firsts) // 5)

    def mean(values: NDArray[Any]) -> NDArray[np.float64]:
        total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        result: NDArray[np.float64] = (total[ends] - total[firsts]) / (ends - firsts)
        return result

    limit = MINIMUM_EFFECT * mean(wall)
    result = mean(most - second >= np.maximum(5 * (second - least) / (RANKS - 2), 0.15 * float(wall.min()))) >= FIXED
    means = np.stack([mean(item - median) for item in own])
    means.sort(axis=0)
    middle = (means[RANKS // 2 - 1] + means[RANKS // 2]) / 2
    between = 1.4826 * np.median(np.abs(means - middle), axis=0)
    # Healing a rank saves at most its mean excess, and its lower bound counts.
    result |= means[-1] >= 0.95 * limit + MARGIN * between
    return result


SUBJECT = Subject(run_id="simulated")


def candidates_of(slow: SlowRanks | None) -> list[Candidate]:
    """Return the watcher's candidates for slow ranks."""
    if slow is None:
        return []
    ranks: Sequence[int | None] = [None] if slow.pattern == "rotating" else slow.ranks
    return [SUBJECT.candidate(STRAGGLER, {"summary": "simulated"}, rank=rank) for rank in ranks]


class SimulatedWatch:
    """A watcher's ledger over simulated own times."""

    def __init__(self, own: Own, *, confirms: bool) -> None:
        self._own = own
        self._confirms = confirms
        self._ledger = AlertLedger()
        self.suspicions = 0
        """Number of looks at which any rank became pending."""
        self.fired: list[int] = []
        """End of each look at which any rank's alert fired."""

    @property
    def idle(self) -> bool:
        """True if no alert is pending or fires."""
        return not self._ledger.entries

    def look(self, end: int, slow: SlowRanks | None, *, decided: bool = True) -> None:
        """Apply a look at the steps before ``end``."""
        if not decided:
            return

        def judge_since(since: int, at_least: int) -> NewSteps | None:
            first = max(since, end - RECENT_STEPS)
            if end - first < at_least:
                return None
            slow = slow_in(self._own[:, first:end])
            return NewSteps(end - first, [] if slow is None else [slow])

        pending = {id(entry) for entry in self._ledger.entries}
        firing = {id(entry) for entry in self._ledger.entries if entry.track.state == "firing"}
        confirmation = Confirmation(0, end, judge_since) if self._confirms else None
        self._ledger.update(
            "run",
            candidates_of(slow),
            now_unix_ns=end * 10**9,
            policy=FiringPolicy(least_firing_s=60.0),
            confirmation=confirmation,
        )
        self.suspicions += any(id(entry) not in pending for entry in self._ledger.entries)
        self._ledger.forget(lambda _entry: False)
        if any(entry.track.state == "firing" and id(entry) not in firing for entry in self._ledger.entries):
            self.fired.append(end)


def watched(own: Own, ends: NDArray[np.int64], may_name: NDArray[np.bool_]) -> tuple[SimulatedWatch, SimulatedWatch, int]:
    """Return the watch before and after the correction, and the number of looks that were judged."""
    before, after = SimulatedWatch(own, confirms=False), SimulatedWatch(own, confirms=True)
    slow_of_look: dict[int, SlowRanks | None] = {}

    def slow_at(look: int) -> SlowRanks | None:
        if look not in slow_of_look:
            end = int(ends[look])
            slow_of_look[look] = slow_in(own[:, max(0, end - RECENT_STEPS) : end]) if may_name[look] else None
        return slow_of_look[look]

    # An alert takes as many looks in a row: one in so many is judged first, then those around it.
    near: set[int] = set()
    for look in range(0, len(ends), FIRE_AFTER):
        if slow_at(look) is not None:
            near.update(range(max(0, look - FIRE_AFTER + 1), min(len(ends), look + FIRE_AFTER)))
    for look, end in enumerate(ends.tolist()):
        idle = before.idle and after.idle
        if idle and look not in near:
            continue
        slow = slow_at(look)
        if slow is None and idle:
            continue
        decided = slow is not None or judge_ranks(Times.of(own[:, max(0, end - RECENT_STEPS) : end])).suspect is None
        for watch in (before, after):
            watch.look(end, slow, decided=decided)
    return before, after, sum(bool(may_name[look]) for look in slow_of_look)


@dataclass
class Counts:
    """Counts of one kind of noise."""

    days: float = 0.0
    looks: int = 0
    judged: int = 0
    left_out_judged: int = 0
    left_out_named: int = 0
    suspicions: int = 0
    before: int = 0
    after: int = 0

    def add(self, own: Own, ends: NDArray[np.int64], rng: np.random.Generator, *, sampled: int, most: int) -> None:
        """Watch own times, look after look; count at most ``most`` alerts."""
        may = plausible(own, np.maximum(0, ends - RECENT_STEPS), ends)
        before, after, judged = watched(own, ends, may)
        self.looks += len(ends)
        self.judged += judged
        out = np.flatnonzero(~may)
        for look in rng.choice(out, min(sampled, len(out)), replace=False):
            end = int(ends[look])
            self.left_out_judged += 1
            self.left_out_named += slow_in(own[:, max(0, end - RECENT_STEPS) : end]) is not None
        self.suspicions += before.suspicions
        self.before += min(len(before.fired), most)
        self.after += min(len(after.fired), most)


def named_in_new_steps(own: Own, rng: np.random.Generator, trials: int) -> NDArray[np.int64]:
    """Return the trials that name any rank in new steps from random places, in any test of a suspicion, and the ranks named."""
    starts = rng.integers(0, own.shape[1] - RECENT_STEPS, trials)
    ranks: set[tuple[int, int]] = set()
    for steps in tests():
        for start in starts[plausible(own, starts, starts + steps)].tolist():
            slow = slow_in(own[:, start : start + steps])
            ranks.update((start, rank) for rank in (() if slow is None else slow.ranks))
    return np.array([len({start for start, _ in ranks}), len(ranks)])


def tests() -> Iterator[int]:
    """Yield the number of new steps of each test of a suspicion."""
    steps = 0
    while steps < RECENT_STEPS:
        steps = next_test(steps)
        yield steps


def false_alerts(noise: HealthyNoise, jobs: int, days: int, starts: int, seed: int) -> dict[str, Any]:
    """Return the rates of false alerts of one kind of noise, before and after the correction."""
    began = time.process_time()
    steady, start = Counts(), Counts()
    named = np.zeros(2, np.int64)
    for job in range(jobs):
        for day in range(days):
            rng = np.random.default_rng((seed, job, day, 0))
            own = own_times(rng, DAY + RECENT_STEPS, noise)
            steady.add(own, np.arange(RECENT_STEPS, own.shape[1] + 1, LOOK_EVERY), rng, sampled=SAMPLED, most=DAY)
            steady.days += 1
            named += named_in_new_steps(own, rng, TRIALS)
    trials = jobs * days * TRIALS
    for job in range(starts):
        rng = np.random.default_rng((seed, job, 0, 1))
        own = own_times(rng, RECENT_STEPS + 60, noise)
        start.add(own, np.arange(10, own.shape[1] + 1, LOOK_EVERY), rng, sampled=1, most=1)
    week = 7.0
    started = binomial_limit(start.before, starts, CONFIDENCE) / week
    trials_named, ranks_named = named.tolist()
    confirmed = binomial_limit(trials_named, trials, 0.975) * max(1.0, ranks_named / max(1, trials_named)) / RANKS
    suspected = poisson_limit(steady.suspicions, steady.days, 0.975) + poisson_limit(start.suspicions, week * starts, 0.975)
    return {
        "job_days": steady.days,
        "looks": steady.looks + start.looks,
        "judged": steady.judged + start.judged,
        "left_out_judged": steady.left_out_judged + start.left_out_judged,
        "left_out_named": steady.left_out_named + start.left_out_named,
        "starts": starts,
        "suspicions": steady.suspicions,
        "suspicions_in_starts": start.suspicions,
        "before": {
            "alerts": steady.before,
            "starts_with_an_alert": start.before,
            "per_1000_job_days": 1000 * (steady.before / steady.days + start.before / starts / week),
            "at_most_per_1000_job_days": 1000 * (poisson_limit(steady.before, steady.days) + started),
        },
        "after": {
            "alerts": steady.after,
            "starts_with_an_alert": start.after,
            "per_1000_job_days": 1000 * (steady.after / steady.days + start.after / starts / week),
            "trials_of_new_steps": trials,
            "trials_that_name_a_rank": trials_named,
            "ranks_that_they_name": ranks_named,
            "at_most_per_1000_job_days": 1000 * suspected * confirmed,
        },
        "cpu_s": round(time.process_time() - began, 1),
    }


SLOW = {"10 %": 0.1, "25 %": 0.25, "50 %": 0.5}


def delays(seeds: int) -> dict[str, Any]:
    """Return the steps from the moment at which a rank becomes slow, or a job with a slow rank starts, to the alert."""
    result: dict[str, Any] = {}
    noise = HealthyNoise(0.01, 6)
    for name, slower in SLOW.items():
        for when, onset in (("in a run", 700), ("from the start", 0)):
            steps_to_alert: dict[str, list[int]] = {"before": [], "after": []}
            for seed in range(seeds):
                rng = np.random.default_rng((seed, onset))
                own = own_times(rng, onset + 1000, noise)
                own[17, onset:] *= np.float32(1 + slower)
                ends = np.arange(max(10, onset) + int(rng.integers(LOOK_EVERY)), own.shape[1], LOOK_EVERY)
                watches = {"before": SimulatedWatch(own, confirms=False), "after": SimulatedWatch(own, confirms=True)}
                for end in ends.tolist():
                    look = own[:, max(0, end - RECENT_STEPS) : end]
                    slow = slow_in(look)
                    if slow is None and all(watch.idle for watch in watches.values()):
                        continue
                    decided = slow is not None or judge_ranks(Times.of(look)).suspect is None
                    for watch in watches.values():
                        watch.look(end, slow, decided=decided)
                    if all(watch.fired for watch in watches.values()):
                        break
                for which, watch in watches.items():
                    steps_to_alert[which].append(watch.fired[0] - onset if watch.fired else 10**6)
            result[f"{name} slower, {when}"] = {
                which: {"median_steps": float(np.median(steps)), "most_steps": max(steps)}
                for which, steps in steps_to_alert.items()
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=1, help="jobs per kind of noise")
    parser.add_argument("--starts", type=int, default=60, help="starts of jobs per kind of noise")
    parser.add_argument("--seeds", type=int, default=10, help="slow ranks per delay")
    options = parser.parse_args()
    began = time.process_time()
    delayed = delays(options.seeds)
    print(delayed, file=sys.stderr, flush=True)
    by_noise = {}
    for seed, (name, noise) in enumerate(NOISES.items()):
        by_noise[name] = false_alerts(noise, options.jobs * MORE.get(name, 1), options.days, options.starts, seed)
        print(f"{name}: {by_noise[name]}", file=sys.stderr, flush=True)
    disturbed = false_alerts(DISTURBED, 1, 1, 10, len(NOISES))
    print(f"disturbed: {disturbed}", file=sys.stderr, flush=True)
    left_out = sum(value["left_out_named"] for value in by_noise.values())
    days = sum(value["job_days"] for value in by_noise.values())
    counted = sum(value["after"]["alerts"] + value["after"]["starts_with_an_alert"] for value in by_noise.values())
    most = max(value["after"]["at_most_per_1000_job_days"] for value in by_noise.values())
    in_run = [value for name, value in delayed.items() if name.endswith("in a run")]
    longer = max(value["after"]["median_steps"] / value["before"]["median_steps"] for value in in_run)
    budgets = [
        budget("false alerts per 1,000 job-days, upper limit, worst noise", most, 1.0),
        budget("false alerts counted with the confirmation", counted, 0),
        budget("looks left out that name a rank", left_out, 0),
        budget("delay with the confirmation / without it, median, worst slowness", longer, 2.2),
    ]
    figures = {
        "job_days": days,
        "noises": by_noise,
        "neighbours_of_a_host": disturbed,
        "delays": delayed,
        "cpu_s": round(time.process_time() - began, 1),
    }
    finish(figures, budgets, environment("rankscope", "numpy"))


if __name__ == "__main__":
    main()
