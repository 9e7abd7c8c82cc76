"""Process groups, as all dumps together tell them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.analysis.hang.records import Dump

WORLD: Final = "default_pg"
"""What torch calls the group of all ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One process group."""

    backend: str
    name: str
    description: str | None
    ranks: tuple[int, ...]
    """Global ranks, in the group's order."""
    members: frozenset[int]
    """The same ranks."""
    known: bool
    """Whether a dump said which they are; else they are those that used it (or all, of the group of all ranks)."""


class Groups:
    """All process groups, by what the ranks call them."""

    def __init__(self, dumps: Mapping[int, Sequence[Dump]], world_size: int | None) -> None:
        self._found: dict[tuple[int, str, str], Group] = {}
        told: dict[tuple[str, str, tuple[int, ...]], Group] = {}
        untold: dict[tuple[str, str], dict[int, str | None]] = {}
        for rank, parts in dumps.items():
            for backend, name, description, ranks in _mentioned(parts):
                if ranks is None:
                    untold.setdefault((backend, name), {})[rank] = description
                    continue
                group = told.setdefault(
                    (backend, name, ranks), Group(backend, name, description, ranks, frozenset(ranks), known=True)
                )
                self._found[rank, backend, name] = group
        by_name: dict[tuple[str, str], list[Group]] = {}
        for group in told.values():
            by_name.setdefault((group.backend, group.name), []).append(group)
        for (backend, name), users in untold.items():
            candidates = by_name.get((backend, name), [])
            strangers = [rank for rank in users if not any(rank in group.members for group in candidates)]
            for rank in users.keys() - set(strangers):
                self._found[rank, backend, name] = next(group for group in candidates if rank in group.members)
            if not strangers:
                continue
            description = next((said for said in users.values() if said), None)
            members = tuple(sorted(strangers))
            if description == WORLD:
                members = tuple(sorted({*members, *dumps, *range(world_size or 0)}))
            group = Group(
                backend, name, description, members, frozenset(members), known=description == WORLD and world_size is not None
            )
            self._found.update(dict.fromkeys(((rank, backend, name) for rank in members), group))

    def of(self, rank: int, backend: str, name: str) -> Group:
        """The group that a rank's record names."""
        return self._found[rank, backend, name]


def _mentioned(parts: Sequence[Dump]) -> set[tuple[str, str, str | None, tuple[int, ...] | None]]:
    """Backend, name, description and ranks of all groups that a rank's dumps speak of."""
    found: dict[tuple[str, str], tuple[str | None, tuple[int, ...] | None]] = {}
    for dump in parts:
        for record in dump.records:
            config = dump.configs.get(record.group)
            found[record.backend, record.group] = (record.description, None if config is None else config.ranks)
        # Only NCCL names the ranks of its groups.
        for name, config in dump.configs.items():
            found.setdefault((dump.backend or "nccl", name), (config.description, config.ranks))
    return {(*key, *value) for key, value in found.items()}
