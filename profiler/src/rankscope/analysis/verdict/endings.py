"""First rank to end, among the ranks that did not reach the end of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rankscope.analysis.result.analysis import Verdict
from rankscope.base.text import ranks_text
from rankscope.runs.records import RankInfo

CLEARLY_NS: Final = 50_000_000
"""Smallest gap between two ends that orders them. Ranks that a launcher ends together are closer than this."""

CLEARLY_ACROSS_HOSTS_NS: Final = 1_000_000_000
"""Smallest gap that orders ends on different hosts, whose clocks may differ by less than this."""


@dataclass(frozen=True, slots=True)
class Endings:
    """Ranks that crashed or were killed, ascending."""

    crashed: list[int]
    killed: list[int]
    first: int | None
    """First of these ranks to end; ``None`` where that is not clear. Launchers kill the other ranks when one has exited."""

    @property
    def failed(self) -> bool:
        """True if the job failed by itself: a rank crashed, or one was killed before the others. Else all were ended together."""
        return bool(self.crashed) or self.first is not None

    def failure(self) -> str | None:
        """Return how the job failed, the first rank first; ``None`` if it did not fail by itself."""
        return "; ".join(self.sentences()) if self.failed else None

    def sentences(self) -> list[str]:
        """Return one sentence per way to end; the rank that ended first comes first."""
        sentences: list[str] = []
        for ranks, text in ((self.crashed, "crashed"), (self.killed, "killed")):
            others = [rank for rank in ranks if rank != self.first]
            if self.first in ranks:
                alone = len(self.crashed) + len(self.killed) == 1
                sentences.insert(
                    0, f"rank {self.first} {text} before the end of training" + ("" if alone else ", the first to end")
                )
            if others:
                after = "" if self.first is None else f" after rank {self.first}"
                sentences.append(f"{ranks_text(others)} {text}{after or ' before the end of training'}")
        return sentences

    def advise(self, verdict: Verdict, hosts: Mapping[int, str]) -> list[str]:
        """Return the next actions after ``verdict``, with a look at the job's error output. That look comes first, unless the
        job did not fail by itself and a rank is to blame for the time before its end, or the verdict is a hang.
        """
        ended = sorted(self.crashed + self.killed)
        if not ended:
            return verdict.next
        if self.first is None:
            look = f"Look at the job's own error output: {ranks_text(ended)} ended early"
        else:
            where = f" on {hosts[self.first]}" if self.first in hosts else ""
            look = f"Look at the job's own error output of rank {self.first}{where}, which ended first"
        comes_last = verdict.kind == "hang" or (verdict.kind == "straggler" and not self.failed)
        return [*verdict.next, look] if comes_last else [look, *verdict.next]


def endings(infos: Mapping[int, RankInfo]) -> Endings:
    """Return the early endings in the ranks' own records."""
    crashed = sorted(rank for rank, info in infos.items() if info.end_reason == "crash")
    killed = sorted(rank for rank, info in infos.items() if info.end_reason == "killed")
    return Endings(crashed, killed, _first({rank: infos[rank] for rank in (*crashed, *killed)}))


def _first(ended: Mapping[int, RankInfo]) -> int | None:
    if len(ended) == 1:
        return next(iter(ended))
    times = sorted((info.end_unix_ns, rank) for rank, info in ended.items() if info.end_unix_ns is not None)
    if len(times) < len(ended) or not times:
        return None
    (earliest, first), (following, second) = times[:2]
    # If one rank crashed and all others were killed, it crashed before the launcher killed them.
    alone = ended[first].end_reason == "crash" and all(ended[rank].end_reason == "killed" for rank in ended if rank != first)
    clearly = CLEARLY_NS if ended[first].clock_name == ended[second].clock_name else CLEARLY_ACROSS_HOSTS_NS
    return first if alone or following - earliest >= clearly else None
