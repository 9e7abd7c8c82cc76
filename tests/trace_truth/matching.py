"""Collectives of a job: which records of different ranks are one and the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.trace_truth.cells import middle
from tests.trace_truth.checking import read_checked
from tests.trace_truth.collectives import Collective, collectives_of, uncalled
from tests.trace_truth.figures import Figures
from tests.trace_truth.reading import RefusedError

FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")
POINT_TO_POINT = ("send", "recv", "send_recv", "coalesced")
NOT_JUDGED = {
    "all_to_allv": "uneven_all_to_all",
    "send_recv": "p2p",
    "coalesced": "p2p",
    "dispatch": "expert_parallel",
    "combine": "expert_parallel",
    "notify": "expert_parallel",
    "unknown": "unknown_operation",
}
MILLISECOND = 1_000_000


@dataclass(eq=False)
class Instance:
    """One collective on all its ranks, or a send with its receive."""

    parts: dict[int, Collective]

    @property
    def any(self) -> Collective:
        """One of its parts."""
        return next(iter(self.parts.values()))

    @property
    def together(self) -> bool:
        """True if no rank leaves before the last has come."""
        return self.any.op not in FROM_ROOT + TO_ROOT + ("send",)

    @property
    def shortest(self) -> int:
        """Transfer where no rank leaves before the last has come."""
        return min(part.inside for part in self.parts.values())


class MatchedJob:
    """Traces of the ranks of a job, whose clocks may be apart by constant times."""

    def __init__(self, folder: Path) -> None:
        paths = [path for path in sorted(folder.rglob("*")) if path.name.endswith((".json", ".json.gz", ".json.zst"))]
        read_ranks = [Figures(*read_checked(path)) for path in paths]
        self.figures = {figures.file.rank: figures for figures in read_ranks if figures.file.rank is not None}
        if len(self.figures) < len(paths):
            raise RefusedError("are both of rank")
        self.undamaged = {rank: of_rank for rank, of_rank in self.figures.items() if not of_rank.lacking}
        self.collectives = {rank: collectives_of(of_rank) for rank, of_rank in self.undamaged.items()}
        worlds = [int(of_rank.file.distributed.get("world_size", 0)) for of_rank in self.figures.values()]
        self.world = max(len(self.figures), *worlds)
        self.matched: list[Instance] = []
        """Those that no rank leaves before the last has come."""
        self.directed: list[Instance] = []
        """Sends with their receives, and operations with a root."""
        self.partial: list[Instance] = []
        """Those of which some ranks are missing."""
        self.unmatched: Counter[str] = Counter()
        self.excluded: Counter[str] = Counter()
        self.by_sequence = 0
        self._match()
        self._match_pairs()
        if missing := max((uncalled(of_rank) for of_rank in self.undamaged.values()), default=0):
            self.unmatched["call_missing"] += missing
        self.ahead = self._clocks()
        spreads = [self._spread(instance) for instance in self.matched]
        self.residual = middle(spreads) if spreads else float(MILLISECOND)

    def _match(self) -> None:
        groups: dict[tuple[int, str, tuple[int, ...] | None], dict[int, list[Collective]]] = {}
        for rank, collectives in self.collectives.items():
            for collective in collectives:
                if collective.op not in POINT_TO_POINT:
                    groups.setdefault((collective.step, collective.group, collective.ranks), {}).setdefault(rank, []).append(
                        collective
                    )
        for (_, _, members), by_rank in groups.items():
            of_all_ranks = [collective for of_rank in by_rank.values() for collective in of_rank]
            numbered = all(collective.sequence is not None for collective in of_all_ranks)
            shifted = not numbered and len({len(of_rank) for of_rank in by_rank.values()}) > 1
            for key in sorted({_key(collective, numbered=numbered) for collective in of_all_ranks}):
                parts = {
                    rank: collective
                    for rank in sorted(by_rank)
                    for collective in by_rank[rank]
                    if _key(collective, numbered=numbered) == key
                }
                self._judge(Instance(parts), members, shifted=shifted, numbered=numbered)

    def _judge(self, instance: Instance, members: tuple[int, ...] | None, *, shifted: bool, numbered: bool) -> None:
        parts = instance.parts.values()
        ops = {part.op for part in parts}
        expected = set(members or (self.undamaged if len(self.undamaged) == self.world else ()))
        if reasons := [NOT_JUDGED[op] for op in ops if op in NOT_JUDGED]:
            self.excluded[reasons[0]] += 1
        elif not instance.together and any(part.root is None for part in parts):
            self.excluded["broadcast" if instance.any.op == "broadcast" else "rooted"] += 1
        elif ops == {"all_to_all"} and _differ(part.bytes for part in parts):
            self.excluded["uneven_all_to_all"] += 1
        elif shifted and expected and expected <= set(self.undamaged):
            self.unmatched["order_shifted"] += 1
        elif set(instance.parts) != expected:
            missing = not expected or not expected <= set(self.undamaged)
            self.unmatched["rank_missing" if missing else "incomplete"] += 1
            if instance.together and not shifted and _disagreement(instance) is None:
                self.partial.append(instance)
        elif (differing := _disagreement(instance)) is not None:
            self.unmatched[differing] += 1
        elif not instance.together:
            self.directed.append(instance)
        else:
            self.matched.append(instance)
            self.by_sequence += numbered

    def _match_pairs(self) -> None:
        """The k-th send of a rank to another one belongs to the k-th receive there."""
        ends: dict[tuple[int, str, int, int], dict[str, list[tuple[int, Collective]]]] = {}
        for rank, collectives in self.collectives.items():
            for collective in collectives:
                if collective.op in ("send", "recv") and collective.peer is not None:
                    way = (rank, collective.peer) if collective.op == "send" else (collective.peer, rank)
                    sides = ends.setdefault((collective.step, collective.group, *way), {"send": [], "recv": []})
                    sides[collective.op].append((rank, collective))
        for (_, _, sender, receiver), sides in ends.items():
            if not {sender, receiver} <= set(self.undamaged):
                self.unmatched["rank_missing"] += max(map(len, sides.values()))
                continue
            if len(sides["send"]) != len(sides["recv"]):
                self.unmatched["order_shifted" if all(sides.values()) else "incomplete"] += max(map(len, sides.values()))
                continue
            for send, receive in zip(sides["send"], sides["recv"], strict=True):
                self.directed.append(Instance(dict([send, receive])))

    def _clocks(self) -> dict[int, int]:
        """Return how far each rank's clock is ahead of that of the first one: what ends together shows it.

        Ranks of one host have one clock.
        """
        hosts = {rank: figures.file.head.get("host_name", rank) for rank, figures in self.figures.items()}
        first = min(self.figures)
        ahead = dict.fromkeys(self.figures, 0)
        for rank, host in hosts.items():
            distances = [
                instance.parts[rank].end - instance.parts[first].end
                for instance in self.matched
                if rank in instance.parts and first in instance.parts
            ]
            if host != hosts[first] and distances:
                ahead[rank] = round(middle(distances))
        return ahead

    def arrival(self, rank: int, collective: Collective) -> int:
        """Return a rank's arrival on the common clock."""
        return collective.arrived - self.ahead[rank]

    def end(self, rank: int, collective: Collective) -> int:
        """Return a rank's end on the common clock."""
        return collective.end - self.ahead[rank]

    def _spread(self, instance: Instance) -> int:
        ends = [self.end(rank, part) for rank, part in instance.parts.items()]
        return max(ends) - min(ends)


def _key(collective: Collective, *, numbered: bool) -> int:
    return collective.sequence if numbered and collective.sequence is not None else collective.index


def _disagreement(instance: Instance) -> str | None:
    """Return in what the ranks of an instance disagree."""
    parts = instance.parts.values()
    stated: dict[str, list[object]] = {
        "operation_differs": [collective.op for collective in parts],
        "bytes_differ": [collective.bytes for collective in parts],
        "dtype_differs": [collective.dtype for collective in parts],
    }
    return next((name for name, values in stated.items() if _differ(values)), None)


def _differ(values: Iterable[object]) -> bool:
    """Return whether values differ; what is not known agrees with anything."""
    return len(set(values) - {None}) > 1
