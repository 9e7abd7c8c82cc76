"""Process groups, matched across the dumps of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.analysis.hang.flight_records import RecorderDump

WORLD: Final = "default_pg"
"""Torch's description of the group of all ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class HangGroup:
    """One process group."""

    backend: str
    name: str
    description: str | None
    ranks: tuple[int, ...]
    """Global ranks, in the group's order."""
    members: frozenset[int]
    """The same ranks, as a set."""
    ranks_known: bool
    """True if a dump lists the ranks, or if it is the group of all ranks and the world size is known.

    Otherwise the ranks are those that used the group; for the group of all ranks, also all ranks with a dump.
    """


class Groups:
    """All process groups, by rank, backend and the name that the rank uses."""

    def __init__(self, dumps: Mapping[int, Sequence[RecorderDump]], world_size: int | None) -> None:
        self._by_rank: dict[tuple[int, str, str], HangGroup] = {}
        listed: dict[tuple[str, str, tuple[int, ...]], HangGroup] = {}
        unlisted: dict[tuple[str, str], dict[int, str | None]] = {}
        for rank, parts in dumps.items():
            for backend, name, description, ranks in _mentioned(parts):
                if ranks is None:
                    unlisted.setdefault((backend, name), {})[rank] = description
                    continue
                group = listed.setdefault(
                    (backend, name, ranks), HangGroup(backend, name, description, ranks, frozenset(ranks), ranks_known=True)
                )
                self._by_rank[rank, backend, name] = group
        by_name: dict[tuple[str, str], list[HangGroup]] = {}
        for group in listed.values():
            by_name.setdefault((group.backend, group.name), []).append(group)
        for (backend, name), users in unlisted.items():
            candidates = by_name.get((backend, name), [])
            strangers = [rank for rank in users if not any(rank in group.members for group in candidates)]
            for rank in users.keys() - set(strangers):
                self._by_rank[rank, backend, name] = next(group for group in candidates if rank in group.members)
            if not strangers:
                continue
            description = next((text for text in users.values() if text), None)
            members = tuple(sorted(strangers))
            if description == WORLD:
                members = tuple(sorted({*members, *dumps, *range(world_size or 0)}))
            ranks_known = description == WORLD and world_size is not None
            group = HangGroup(backend, name, description, members, frozenset(members), ranks_known)
            self._by_rank.update(dict.fromkeys(((rank, backend, name) for rank in members), group))

    def of(self, rank: int, backend: str, name: str) -> HangGroup:
        """Return the group that a rank's record names."""
        return self._by_rank[rank, backend, name]


def _mentioned(parts: Sequence[RecorderDump]) -> set[tuple[str, str, str | None, tuple[int, ...] | None]]:
    """Return backend, name, description and ranks of all groups in a rank's dumps."""
    mentions: dict[tuple[str, str], tuple[str | None, tuple[int, ...] | None]] = {}
    for dump in parts:
        for record in dump.records:
            config = dump.configs.get(record.group)
            mentions[record.backend, record.group] = (record.description, None if config is None else config.ranks)
        # Only NCCL lists the ranks of its groups.
        for name, config in dump.configs.items():
            mentions.setdefault((dump.backend or "nccl", name), (config.description, config.ranks))
    return {(*key, *value) for key, value in mentions.items()}
