"""Where ranks are: host, GPU and place in the parallel layout; and the orders in which that puts them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from rankscope.analysis.result import ImposedWait
from rankscope.runs.records import RankInfo


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a rank is; ``None`` and what is missing from ``coordinates`` are not known."""

    rank: int
    host: str | None = None
    local_rank: int | None = None
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    coordinates: dict[str, int] = {}


class Topology(msgspec.Struct, frozen=True):
    """Of the ranks that left a folder in the attempt that is shown."""

    places: list[Place] = []
    """By rank, ascending: the rows of the step matrices."""
    layout: dict[str, int] = {}
    """Dimension of the parallel layout to its size, outermost first, as far as known."""

    @property
    def sorts(self) -> list[str]:
        """What ``row_order`` can sort by here."""
        return [
            "rank",
            *(["host"] if any(place.host is not None for place in self.places) else []),
            *self.dimensions,
            "imposed",
        ]

    @property
    def dimensions(self) -> list[str]:
        """Parallel dimensions of which any rank's coordinate is known, outermost first."""
        known = {name for place in self.places for name in place.coordinates} - _WORDS
        return [*(name for name in self.layout if name in known), *sorted(known - set(self.layout))]


_WORDS: Final = {"rank", "host", "imposed"}
"""Sorts of their own: a dimension that goes by such a name is not among them."""


def topology_of(ranks: Iterable[int], infos: Mapping[int, RankInfo], layout: Mapping[str, int]) -> Topology:
    """Topology of ``ranks``, which ascend."""
    return Topology([_place(rank, infos.get(rank)) for rank in ranks], dict(layout))


def _place(rank: int, info: RankInfo | None) -> Place:
    if info is None:
        return Place(rank)
    return Place(rank, info.host, info.local_rank, info.gpu_uuid, info.gpu_name, info.coordinates)


def row_order(topology: Topology, imposed: Iterable[ImposedWait], sort: str) -> list[int]:
    """Rows of ``topology.places`` in the order ``sort``: what is not known comes last, equals by rank.

    ``rank``; ``host``, then its local ranks; a parallel dimension: ranks with the same coordinate in it together; ``imposed``:
    who made others wait the longest comes first. A sort that this run does not have is ``rank``.
    """
    places = topology.places
    key: Callable[[Place], Any] = _by_rank
    if sort == "host":
        key = _by_host
    elif sort == "imposed":
        waits = {one.rank: one.imposed_us for one in imposed}

        def key(place: Place) -> Any:
            return (place.rank not in waits, -waits.get(place.rank, 0.0), place.rank)

    elif sort in topology.dimensions:

        def key(place: Place) -> Any:
            at = place.coordinates.get(sort)
            return (at is None, at or 0, place.rank)

    return sorted(range(len(places)), key=lambda row: key(places[row]))


def _by_rank(place: Place) -> Any:
    return place.rank


def _by_host(place: Place) -> Any:
    return (place.host is None, natural(place.host or ""), place.local_rank is None, place.local_rank or 0, place.rank)


def natural(text: str) -> list[tuple[str, int, str]]:
    """So that ``node-10`` comes after ``node-9``."""
    parts = re.split(r"([0-9]+)", text)
    numbers = [number.lstrip("0") for number in parts[1::2]]
    return [(word, len(number), number) for word, number in zip(parts[::2], [*numbers, ""], strict=True)]
