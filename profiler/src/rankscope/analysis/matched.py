"""The collectives of all ranks put together: matched, on one clock, and who waited for whom in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from rankscope.analysis.bandwidth import Sample, samples
from rankscope.analysis.blame import Blame, assign_blame
from rankscope.analysis.clock import Clocks, consistent, fit_clocks
from rankscope.analysis.fabric import run_fabric
from rankscope.analysis.figures import Figures, figures_of_collectives
from rankscope.analysis.matching import Matching, match_collectives
from rankscope.analysis.reduce import Reduction
from rankscope.analysis.waiting import Waits, waits_of
from rankscope.runs.records import CollectiveRecord, RankInfo


class Matched(msgspec.Struct, frozen=True, dict=True):
    """What collectives of several ranks tell together.

    What takes long to work out of them is worked out when it is first asked for: a run that goes on is judged again and again.
    """

    matching: Matching
    """Without matches that the clocks show to be impossible."""
    clocks: Clocks
    waits: Waits
    blame: Blame
    collectives: Mapping[int, Sequence[CollectiveRecord]]
    """Rank to its records."""
    source: Literal["windows", "traces"]

    @cached_property
    def samples(self) -> list[Sample]:
        """What each instance tells of bandwidth."""
        return list(samples(self.matching, self.waits))

    @cached_property
    def figures(self) -> Figures:
        """Sizes and shares of the operations."""
        return figures_of_collectives(list(self.collectives.values()), self.source)


def match_ranks(
    collectives: Mapping[int, Sequence[CollectiveRecord]],
    *,
    ranks: Collection[int],
    hosts: Mapping[int, str],
    machines: Mapping[int, str],
    world_size: int | None,
    source: Literal["windows", "traces"],
) -> Matched:
    """Match, correct clocks, assign blame to ``ranks``.

    ``collectives`` may lack ranks whose records are not whole. Ranks of one of ``hosts`` share a clock; ``machines`` are those
    whose name no other has.
    """
    matching = match_collectives(collectives, world_size=world_size)
    clocks = fit_clocks(matching.matches, hosts)
    matching = consistent(matching, clocks)
    waits = waits_of(matching, clocks, machines)
    blame = assign_blame(matching.matches, clocks, list(ranks), waits)
    return Matched(matching, clocks, waits, blame, collectives, source)


def match_windows(windows: Mapping[int, Reduction], infos: Mapping[int, RankInfo], world_size: int | None) -> Matched:
    """The collectives of profiled steps put together. ``windows``: of every rank there is."""
    return match_ranks(
        {rank: reduction.collectives for rank, reduction in windows.items()},
        ranks=windows,
        hosts={rank: info.host for rank, info in infos.items()},
        machines=run_fabric(infos, ()).hosts,
        world_size=world_size,
        source="windows",
    )
