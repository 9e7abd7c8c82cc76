"""Collectives of all ranks: matched, on one clock, with the waits between ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from rankscope.analysis.collectives.arrivals import CollectiveColumns
from rankscope.analysis.collectives.clock import Clocks, consistent, fit_clocks
from rankscope.analysis.collectives.figures import Figures, figures_of_collectives
from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.collectives.matching import Matching, match_collectives
from rankscope.analysis.collectives.stages import stages_of_records
from rankscope.analysis.collectives.traffic.bandwidth import BandwidthSamples, samples
from rankscope.analysis.collectives.traffic.links import run_fabric
from rankscope.analysis.collectives.traffic.payload import Coordinates
from rankscope.analysis.collectives.waits.blame import Blame, assign_blame
from rankscope.analysis.collectives.waits.waiting import Waits, waits_of
from rankscope.analysis.collectives.windows import Reduction
from rankscope.runs.durations import DurationSource
from rankscope.runs.records import CollectiveRecord, RankInfo


class MatchedCollectives(msgspec.Struct, frozen=True, dict=True):
    """Matched collectives of several ranks, with the clocks, waits and blame derived from them.

    Expensive results are computed at first use and cached, because a run that is followed is judged repeatedly.
    """

    matching: Matching
    """Matches, without those that the clocks show to be impossible."""
    clocks: Clocks
    waits: Waits
    blame: Blame
    collectives: Mapping[int, Sequence[CollectiveRecord]]
    """Records by rank; of a run only its sends and receives."""
    source: Literal["windows", "traces", DurationSource]
    coordinates: Coordinates = {}

    @property
    def records(self) -> CollectiveColumns:
        """Columns of all records."""
        return self.matching.matches.records

    @cached_property
    def samples(self) -> BandwidthSamples:
        """Bandwidth sample of each instance."""
        return samples(self.matching, self.waits)

    @cached_property
    def figures(self) -> Figures:
        """Sizes and shares of the operations."""
        records = self.records
        # Records of gloo name neither the group nor the other end of a message.
        named = records.rank[records.p2p & ((records.team != NONE) | (records.peer != NONE))]
        unstaged = set(named.tolist()) - stages_of_records(self.collectives).keys()
        return figures_of_collectives(records, self.source, self.coordinates, unstaged)


def match_ranks(
    collectives: Mapping[int, Sequence[CollectiveRecord]],
    *,
    ranks: Collection[int],
    clock_names: Mapping[int, str],
    machines: Mapping[int, str],
    world_size: int | None,
    source: Literal["windows", "traces", DurationSource],
    coordinates: Coordinates | None = None,
    records: CollectiveColumns | None = None,
) -> MatchedCollectives:
    """Match the collectives, correct the clocks and assign blame to ``ranks``.

    ``collectives`` may lack ranks whose records are incomplete. Ranks with the same name in ``clock_names`` share a clock.
    ``machines`` has only names that no other machine has. ``records``: columns of all records, if ``collectives`` has only some.
    """
    matching = match_collectives(collectives if records is None else records, world_size=world_size)
    clocks = fit_clocks(matching.matches, clock_names)
    matching = consistent(matching, clocks)
    waits = waits_of(matching, clocks, machines)
    blame = assign_blame(matching.matches, clocks, list(ranks), waits)
    return MatchedCollectives(matching, clocks, waits, blame, collectives, source, coordinates or {})


def match_windows(
    windows: Mapping[int, Reduction],
    infos: Mapping[int, RankInfo],
    world_size: int | None,
    records: CollectiveColumns | None = None,
) -> MatchedCollectives:
    """Match the collectives of profiled steps. ``windows`` must have an entry for each rank. ``records``: see ``match_ranks``."""
    return match_ranks(
        {rank: reduction.collectives for rank, reduction in windows.items()},
        ranks=windows,
        clock_names={rank: info.clock_name for rank, info in infos.items()},
        machines={**run_fabric(infos, ()).hosts, **{rank: info.boot_id for rank, info in infos.items() if info.boot_id}},
        world_size=world_size,
        source="windows",
        coordinates={rank: info.coordinates for rank, info in infos.items()},
        records=records,
    )
