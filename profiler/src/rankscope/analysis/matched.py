"""The collectives of all ranks put together: matched, on one clock, and who waited for whom in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from rankscope.analysis.blame import Blame, assign_blame
from rankscope.analysis.clock import Clocks, consistent, fit_clocks
from rankscope.analysis.fabric import run_fabric
from rankscope.analysis.matching import Matching, match_collectives
from rankscope.analysis.reduce import Reduction
from rankscope.analysis.waiting import Waits, waits_of
from rankscope.runs.records import CollectiveRecord, RankInfo


class Matched(msgspec.Struct, frozen=True):
    """What collectives of several ranks tell together."""

    matching: Matching
    """Without matches that the clocks show to be impossible."""
    clocks: Clocks
    waits: Waits
    blame: Blame


def match_ranks(
    collectives: Mapping[int, Sequence[CollectiveRecord]],
    *,
    ranks: Collection[int],
    hosts: Mapping[int, str],
    machines: Mapping[int, str],
    world_size: int | None,
) -> Matched:
    """Match, correct clocks, assign blame to ``ranks``.

    ``collectives`` may lack ranks whose records are not whole. Ranks of one of ``hosts`` share a clock; ``machines`` are those
    whose name no other has.
    """
    matching = match_collectives(collectives, world_size=world_size)
    clocks = fit_clocks(matching.matches, hosts)
    matching = consistent(matching, clocks)
    waits = waits_of(matching, clocks, machines)
    return Matched(matching, clocks, waits, assign_blame(matching.matches, clocks, list(ranks), waits))


def match_windows(windows: Mapping[int, Reduction], infos: Mapping[int, RankInfo], world_size: int | None) -> Matched:
    """The collectives of profiled steps put together. ``windows``: of every rank there is."""
    return match_ranks(
        {rank: reduction.collectives for rank, reduction in windows.items()},
        ranks=windows,
        hosts={rank: info.host for rank, info in infos.items()},
        machines=run_fabric(infos, ()).hosts,
        world_size=world_size,
    )
