"""Cost of matching the collectives of a large job, and of charging waits to their origins. Prints one JSON object.

The job trains with tensor parallelism in groups of ``--group`` ranks: most collectives are of such a group, every eighth is of a
data-parallel one, and every fortieth of the whole job. In the first case one rank is late, and its delay spreads over the groups.
In the second one all arrivals are independent, so every rank delays others: no job has so many origins. One process per case
converts the records of each rank to columns, matches them, fits the clocks of the hosts and assigns blame. Times are CPU times of
the stages. The peak of resident memory is of the whole process, with the simulation.

    python -m benchmarks.analysis.arrivals [--ranks 1024] [--group 8] [--steps 16] [--collectives 160]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from benchmarks.common.result import budget, environment, finish
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import CollectiveColumnsBuilder
from rankscope.analysis.collectives.clock import consistent, fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.waits.blame import assign_blame
from rankscope.runs.records import CollectiveRecord

RECORDS_PER_SECOND, BLAME_SECONDS, PEAK_BYTES = 1e6, 60.0, 2**30
COMPUTE_NS, NOISE, TRANSFER_NS, STEP_NS = 1_000_000, 0.03, 100_000, 10**9
LATE_NS = 300_000
"""Extra compute time of the late rank before each collective."""
DATA_EVERY, WORLD_EVERY = 8, 40
MOST_SKEW_NS = 5_000_000


@dataclass(frozen=True, slots=True)
class JobSize:
    """Size of a job, its late rank and its times, [ranks, steps times collectives]."""

    ranks: int
    group: int
    steps: int
    collectives: int
    is_random: bool = False
    """Whether all arrivals are independent, without a late rank."""

    @property
    def late(self) -> int:
        """Rank that is late."""
        return self.ranks * 3 // 5

    def kind(self, number: int) -> str:
        """Return the kind of group of a collective."""
        return "world" if number % WORLD_EVERY == WORLD_EVERY - 1 else "dp" if number % DATA_EVERY == DATA_EVERY - 1 else "tp"

    def members(self, rank: int, kind: str) -> list[int] | None:
        """Return the ranks of a group; the whole job is not listed."""
        if kind == "world":
            return None
        first = rank // self.group * self.group
        return list(range(first, first + self.group) if kind == "tp" else range(rank % self.group, self.ranks, self.group))

    def times(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Simulate arrivals and ends of all collectives, on each rank's clock."""
        rng = np.random.default_rng(0)
        skew = np.repeat(rng.integers(-MOST_SKEW_NS, MOST_SKEW_NS, self.ranks // self.group), self.group)
        starts = np.empty((self.steps * self.collectives, self.ranks), np.int64)
        ends = np.empty_like(starts)
        for step in range(self.steps):
            now = np.full(self.ranks, (step + 1) * STEP_NS)
            for number in range(self.collectives):
                now += np.rint(COMPUTE_NS * rng.lognormal(0, NOISE, self.ranks)).astype(np.int64)
                now[self.late] += 0 if self.is_random else LATE_NS
                shape, axis = {"tp": ((-1, self.group), 1), "dp": ((-1, self.group), 0), "world": ((1, -1), 1)}[self.kind(number)]
                end = (
                    np.broadcast_to(now.reshape(shape).max(axis=axis, keepdims=True), now.reshape(shape).shape).ravel()
                    + TRANSFER_NS
                )
                at = step * self.collectives + number
                starts[at], ends[at] = now + skew, end + skew
                now = np.full(self.ranks, end.max()) if self.is_random else end
        return starts.T.copy(), ends.T.copy()

    def records(self) -> Iterator[tuple[int, list[CollectiveRecord]]]:
        """Yield the records of each rank."""
        starts, ends = self.times()
        for rank in range(self.ranks):
            groups = {kind: (kind, self.members(rank, kind)) for kind in ("tp", "dp", "world")}
            yield (
                rank,
                [
                    CollectiveRecord(
                        step=at // self.collectives,
                        group=name,
                        group_ranks=members,
                        group_size=len(members) if members else self.ranks,
                        index=at % self.collectives,
                        sequence=at,
                        op="all_reduce",
                        dtype="BFloat16",
                        bytes=1 << 20,
                        enqueue_unix_ns=start - 1000,
                        start_unix_ns=start,
                        end_unix_ns=end,
                        stream=7,
                    )
                    for at, (start, end) in enumerate(zip(starts[rank].tolist(), ends[rank].tolist(), strict=True))
                    for name, members in [groups[self.kind(at % self.collectives)]]
                ],
            )


def measure(job: JobSize) -> tuple[dict[str, float], int]:
    """Return the figures, and the rank that imposed most wait."""
    count = job.ranks * job.steps * job.collectives
    builder, converting_s = CollectiveColumnsBuilder(), 0.0
    for rank, rows in job.records():
        began = time.process_time()
        builder.add(rank, rows)
        converting_s += time.process_time() - began
    records = builder.build()
    marks = [time.process_time()]
    matching = match_collectives(records, world_size=job.ranks)
    marks.append(time.process_time())
    clocks = fit_clocks(matching.matches, {rank: f"host-{rank // job.group}" for rank in range(job.ranks)})
    matching = consistent(matching, clocks)
    marks.append(time.process_time())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    blame = assign_blame(matching.matches, clocks, range(job.ranks))
    marks.append(time.process_time())
    matching_s, clocks_s, blame_s = np.diff(marks).tolist()
    figures = {
        "records": count,
        "instances": len(matching.matches),
        "unmatched": matching.unmatched,
        "pairs": len(blame.pairs),
        "converting_s": converting_s,
        "records_converted_per_second": count / converting_s,
        "matching_s": matching_s,
        "clocks_s": clocks_s,
        "blame_s": blame_s,
        "peak_before_blame_mib": before / 1024,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "share_of_late_rank": blame.share(job.late) or 0.0,
    }
    return figures, max(blame.imposed_us, key=lambda rank: blame.imposed_us[rank])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--collectives", type=int, default=160)
    args = parser.parse_args()
    cases: dict[str, dict[str, float]] = {}
    budgets = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for name, is_random in (("late rank", False), ("random arrivals", True)):
            job = JobSize(args.ranks, args.group, args.steps, args.collectives, is_random)
            figures, worst = pool.submit(measure, job).result()
            assert is_random or worst == job.late, f"rank {worst} is blamed, but rank {job.late} is late"
            cases[name] = figures
            rate = figures["records"] / figures["matching_s"]
            budgets += [
                budget(f"{name}: records matched per second, from columns", round(rate), RECORDS_PER_SECOND, at_least=True),
                budget(f"{name}: blame_s", round(figures["blame_s"], 2), BLAME_SECONDS),
                budget(f"{name}: peak_bytes of all stages", round(figures["peak_mib"] * 2**20), PEAK_BYTES),
            ]
    size = {"ranks": args.ranks, "group": args.group, "steps": args.steps, "collectives": args.collectives}
    finish(cases, budgets, environment("rankscope", "numpy"), job=size)


if __name__ == "__main__":
    main()
