"""Which dumps are of one job, and of which ranks: dumps of earlier jobs are left out, and ranks in file names are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rankscope.analysis.hang.flight_records import RecorderDump
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text

_OLDER_NS: Final = 3600 * 10**9
"""Time, besides the timeout, by which the dump of an earlier job is older than those of the last one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a dump shows of its rank and its job."""

    path: Path
    rank: int
    """Rank in the file's name."""
    newest_ns: int | None
    timeout_ns: int
    groups: tuple[frozenset[int], ...]
    """Ranks of its process groups, where the dump lists them."""
    own: int | None
    """Rank as its sends and receives name it; ``None`` without any, or where they differ."""


def origin_of(path: Path, rank: int, dump: RecorderDump) -> Origin:
    """Return what a dump shows of its rank and its job."""
    lists = {config.ranks for config in dump.configs.values() if config.ranks}
    own = _own_ranks(dump)
    return Origin(
        path,
        rank,
        dump.newest_ns,
        max((record.timeout_ms or 0 for record in dump.records), default=0) * 10**6,
        tuple(map(frozenset, lists)),
        own.pop() if len(own) == 1 else None,
    )


def _own_ranks(dump: RecorderDump) -> set[int]:
    ranks: set[int] = set()
    for record in dump.records:
        config = dump.configs.get(record.group)
        if record.peers is not None and config is not None and config.ranks is not None:
            place = record.peers[record.op == "recv"]
            ranks.update(config.ranks[place : place + 1])
    return ranks


def dumps_of_one_job(origins: Sequence[Origin], warnings: list[str]) -> list[Origin]:
    """Return the dumps of the last job, with their ranks. Raises ``InputError`` where numbers in file names are no ranks."""
    newest = max((origin.newest_ns for origin in origins if origin.newest_ns is not None), default=0)
    last: list[Origin] = []
    for origin in origins:
        if origin.newest_ns is not None and newest - origin.newest_ns > origin.timeout_ns + _OLDER_NS:
            hours = (newest - origin.newest_ns) / 3.6e12
            warnings.append(f"left out: {origin.path}: {hours:.0f} h older than the newest dump, so it is of an earlier job")
        else:
            last.append(origin)
    return _with_ranks(last, warnings)


def _with_ranks(origins: Sequence[Origin], warnings: list[str]) -> list[Origin]:
    members_only: list[Origin] = []
    strangers: list[Origin] = []
    for origin in origins:
        rank = origin.rank if origin.own is None else origin.own
        if rank != origin.rank:
            warnings.append(
                f"{origin.path}: its sends and receives are those of rank {rank}, so it counts as the dump of that rank"
            )
        is_member = all(rank in group for group in origin.groups)
        (members_only if is_member else strangers).append(replace(origin, rank=rank))
    ranks = {origin.rank for origin in members_only}
    for origin in strangers:
        members = frozenset[int]().union(*origin.groups)
        if not members <= ranks:
            raise InputError(
                origin.path,
                f"{origin.rank} is not the rank of this dump, whose groups are of {ranks_text(sorted(members))}; "
                "name the files by rank, such as dump_3 for the global rank 3",
            )
        warnings.append(f"left out: {origin.path}: {origin.rank} is no rank of its process groups")
    return members_only
