"""Topology: host, GPU and parallel coordinates of each rank, and the row orders that follow from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.runs.records import RankInfo


class RankPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Place of a rank; ``None``, and dimensions missing from ``coordinates``, are not known."""

    rank: int
    host: str | None = None
    local_rank: int | None = None
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    coordinates: dict[str, int] = {}


class Topology(msgspec.Struct, frozen=True):
    """Places of the ranks that left a folder in the shown attempt."""

    places: list[RankPlace] = []
    """Ascending by rank, as the rows of the step matrices."""
    layout: dict[str, int] = {}
    """Known dimensions of the parallel layout to their sizes, outermost first."""

    @property
    def sorts(self) -> list[str]:
        """Available sort keys of ``row_order``."""
        return ["rank", *(["host"] if any(place.host is not None for place in self.places) else []), *self.dimensions, "imposed"]

    @property
    def dimensions(self) -> list[str]:
        """Parallel dimensions in which any rank's coordinate is known, outermost first."""
        known_dimensions = {name for place in self.places for name in place.coordinates} - _WORDS
        return [*(name for name in self.layout if name in known_dimensions), *sorted(known_dimensions - set(self.layout))]


_WORDS: Final = {"rank", "host", "imposed"}
"""Reserved sort keys; a dimension with such a name is not offered."""


def topology_of(ranks: Iterable[int], infos: Mapping[int, RankInfo], layout: Mapping[str, int]) -> Topology:
    """Return the topology of ``ranks``, which must ascend."""
    return Topology([_place(rank, infos.get(rank)) for rank in ranks], dict(layout))


def _place(rank: int, info: RankInfo | None) -> RankPlace:
    if info is None:
        return RankPlace(rank)
    return RankPlace(rank, info.host, info.local_rank, info.gpu_uuid, info.gpu_name, info.coordinates)


def row_order(topology: Topology, imposed: Iterable[ImposedWait], sort: str) -> list[int]:
    """Return rows of ``topology.places`` in the order ``sort``: unknown values come last, equal ones by rank.

    ``rank``; ``host``, then local rank; a parallel dimension, by coordinate; ``imposed``: most imposed wait first. A sort that
    this run does not have falls back to ``rank``.
    """
    places = topology.places
    key: Callable[[RankPlace], Any] = _by_rank
    if sort == "host":
        key = _by_host
    elif sort == "imposed":
        waits = {wait.rank: wait.imposed_us for wait in imposed}

        def key(place: RankPlace) -> Any:
            return (place.rank not in waits, -waits.get(place.rank, 0.0), place.rank)

    elif sort in topology.dimensions:

        def key(place: RankPlace) -> Any:
            at = place.coordinates.get(sort)
            return (at is None, at or 0, place.rank)

    return sorted(range(len(places)), key=lambda row: key(places[row]))


def _by_rank(place: RankPlace) -> Any:
    return place.rank


def _by_host(place: RankPlace) -> Any:
    return (place.host is None, natural_key(place.host or ""), place.local_rank is None, place.local_rank or 0, place.rank)


def natural_key(text: str) -> list[tuple[str, int, str]]:
    """Return a sort key, by which ``node-10`` comes after ``node-9``."""
    parts = re.split(r"([0-9]+)", text)
    numbers = [number.lstrip("0") for number in parts[1::2]]
    return [(word, len(number), number) for word, number in zip(parts[::2], [*numbers, ""], strict=True)]
