"""Waiting in the collectives of a job: how long each rank waited, for whom, and how fast data moved meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.trace_truth.cells import Grid, middle
from tests.trace_truth.matching import FROM_ROOT, MILLISECOND, TO_ROOT, Instance, MatchedJob

SHARE_OF_LINKS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather_base": lambda n: (n - 1) / n,
    "reduce_scatter_base": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda _n: 1.0,
    "reduce": lambda _n: 1.0,
    "send": lambda _n: 1.0,
}
"""Bus bandwidth over algorithm bandwidth, by number of ranks, as nccl-tests defines it."""


class JobWaiting:
    """Figures of a job."""

    def __init__(self, folder: Path) -> None:
        self.job = job = MatchedJob(folder)
        self.ranks = sorted(job.figures)
        possible = [instance for instance in job.matched if self._possible(instance)]
        if len(possible) < len(job.matched):
            job.unmatched["impossible"] += len(job.matched) - len(possible)
        self.matched = possible

    def _possible(self, instance: Instance) -> bool:
        """Return whether no rank left long before the last one came."""
        ends = [self.job.end(rank, part) for rank, part in instance.parts.items()]
        return min(ends) >= max(self._arrivals(instance).values()) - MILLISECOND

    def _arrivals(self, instance: Instance) -> dict[int, int]:
        return {rank: self.job.arrival(rank, part) for rank, part in instance.parts.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        job = self.job
        method = ("sequence" if 2 * job.by_sequence >= len(self.matched) else "order") if self.matched else None
        groups = {(instance.any.group, instance.any.ranks) for instance in self.matched}
        return {
            "ranks": self.ranks,
            "matched": len(self.matched),
            "unmatched": dict(sorted(job.unmatched.items())),
            "excluded": dict(sorted(job.excluded.items())),
            "method": method,
            "clock_us": {str(rank): ahead / 1000 for rank, ahead in sorted(job.ahead.items())} if self.matched else None,
            "residual_us": job.residual / 1000 if self.matched else None,
            "waiting": {str(rank): self.of_rank(rank) for rank in self.ranks},
            # Over several groups a rank that comes last may be a victim itself: that is not plain arithmetic.
            "imposed": self.imposed() if len(groups) == 1 else None,
            "bandwidth": list(self.bandwidth()),
        }

    def waits(self, instance: Instance) -> dict[int, tuple[int, int]]:
        """Return the rank that each rank waited for, and for how long, on the clock of the one that waited."""
        arrivals = self._arrivals(instance)
        if instance.together:
            on_cpu = instance.any.on_cpu
            # On a device each collective is its own clock.
            late = arrivals if on_cpu else {rank: -part.inside for rank, part in instance.parts.items()}
            last = max(late, key=lambda rank: (late[rank], rank))
            waits = {rank: (last, late[last] - late[rank]) for rank in late}
            return {rank: (origin, wait) for rank, (origin, wait) in waits.items() if wait > self.job.residual}
        waits = {}
        for rank, part in instance.parts.items():
            others = {other: at for other, at in arrivals.items() if other != rank}
            if part.op in FROM_ROOT:
                others = {other: at for other, at in others.items() if other == part.root}
            if part.op in TO_ROOT and rank != part.root:
                others = {}
            if others:
                origin = max(others, key=lambda other: (others[other], -other))
                wait = others[origin] - arrivals[rank]
                if wait > self.job.residual and self.job.end(rank, part) >= others[origin]:
                    waits[rank] = (origin, wait)
        return waits

    def of_rank(self, rank: int) -> dict[str, float | None]:
        """Return the time of a rank in transfers and in waiting, and how much of each its compute hides."""
        transfer = wait = 0
        spans: dict[str, list[tuple[int, int]]] = {"transfer": [], "wait": []}
        for instance in self.matched:
            if (part := instance.parts.get(rank)) is not None:
                transfer += instance.shortest
                wait += part.inside - instance.shortest
                moving = max(part.start, part.end - instance.shortest)
                spans["transfer"].append((moving, part.end))
                spans["wait"].append((part.start, moving))
        for instance in self.job.directed:
            if (part := instance.parts.get(rank)) is not None:
                waited = self.waits(instance).get(rank, (0, 0))[1]
                transfer += part.inside - waited
                wait += waited
        if not transfer:
            return {"transfer_us": None, "wait_us": None}
        return {"transfer_us": transfer / 1000, "wait_us": wait / 1000, **self._hidden(rank, spans)}

    def _hidden(self, rank: int, spans: dict[str, list[tuple[int, int]]]) -> dict[str, float]:
        if not spans["transfer"]:
            return {}
        compute, talking = (self._spans(rank, kind) for kind in ("compute", "communication"))
        grid = Grid(instant for span in compute + talking + spans["transfer"] + spans["wait"] for instant in span)
        busy, moving, waiting, talk = (
            grid.union(intervals) for intervals in (compute, spans["transfer"], spans["wait"], talking)
        )
        parts = {"transfer": moving, "wait": waiting - moving, "unmatched": talk - moving - waiting}
        hidden = {f"{name}_overlap_us": grid.us(cells & busy) for name, cells in parts.items()}
        return hidden | {f"{name}_exposed_us": grid.us(cells - busy) for name, cells in parts.items()}

    def _spans(self, rank: int, kind: str) -> list[tuple[int, int]]:
        return [(activity.start, activity.end) for activity in self.job.figures[rank].work if activity.kind == kind]

    def imposed(self) -> dict[str, dict[str, float]]:
        """Return the wait that each rank imposed on the others, and the part that no compute of theirs hid.

        Sends and receives are left out: between the stages of a pipeline waiting is the schedule.
        """
        spans: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for instance in self.matched + [item for item in self.job.directed if item.any.op != "send"]:
            for rank, (origin, wait) in self.waits(instance).items():
                begin = instance.parts[rank].arrived
                spans[origin, rank, instance.any.step].append((begin, begin + wait))
        imposed = {str(rank): {"imposed_us": 0.0, "imposed_exposed_us": 0.0} for rank in self.ranks}
        for (origin, victim, _), waited in spans.items():
            compute = self._spans(victim, "compute")
            grid = Grid(instant for span in compute + waited for instant in span)
            cells = grid.union(waited)
            imposed[str(origin)]["imposed_us"] += grid.us(cells)
            imposed[str(origin)]["imposed_exposed_us"] += grid.us(cells - grid.union(compute))
        return imposed

    def _transfer(self, instance: Instance) -> int | None:
        """Return how long data moved; ``None`` where the clocks or the order of arrivals do not show it."""
        if instance.together:
            return instance.shortest
        arrivals = self._arrivals(instance)
        ends = {rank: self.job.end(rank, part) for rank, part in instance.parts.items()}
        op, root = instance.any.op, instance.any.root
        last, end = max(arrivals.values()), max(ends.values())
        if op in FROM_ROOT and root is not None and last - arrivals[root] > self.job.residual:
            return None
        if op in TO_ROOT and root is not None:
            end = ends[root]
        return end - last if end - last > self.job.residual else None

    def bandwidth(self) -> Iterator[dict[str, Any]]:
        """Yield the bandwidths of the transfers, by operation, group and size up to the next power of two.

        Where ranks are missing, the shortest time of any rank gives at least so much.
        """
        rows: dict[tuple[str, str, int, int], list[Instance]] = defaultdict(list)
        for instance in self.matched + self.job.directed + self.job.partial:
            item = instance.any
            size = 2 if item.op == "send" else item.size or (len(instance.parts) if instance not in self.job.partial else 0)
            moved = _bytes(instance)
            rows[item.op, item.group, size, 2 ** (len(f"{moved:b}") - 1) if moved else 0].append(instance)
        for (op, group, size, bucket), instances in sorted(rows.items()):
            on_all_ranks = [item for item in instances if item not in self.job.partial]
            took = {id(item): us / 1000 for item in on_all_ranks if (us := self._transfer(item)) is not None}
            rates = [moved / took[id(item)] / 1000 for item in on_all_ranks if (moved := _bytes(item)) and id(item) in took]
            least = [moved / item.shortest for item in instances if item.together and (moved := _bytes(item))]
            factor = SHARE_OF_LINKS[op](size) if op in SHARE_OF_LINKS and size > 1 else 0
            yield {
                "op": op,
                "group": group,
                "group_size": size or None,
                "size_bucket_bytes": bucket or None,
                "count": len(instances),
                "matched": len(took),
                "transfer_us": middle(took.values()) if took else None,
                "algorithm_gb_s": middle(rates) if rates else None,
                "bus_gb_s": middle(rate * factor for rate in rates) if rates and factor else None,
                "bus_at_least_gb_s": middle(rate * factor for rate in least) if least and factor else None,
            }


def _bytes(instance: Instance) -> int | None:
    """Return the size of a collective: any rank that tells it."""
    return next((part.bytes for part in instance.parts.values() if part.bytes), None)
