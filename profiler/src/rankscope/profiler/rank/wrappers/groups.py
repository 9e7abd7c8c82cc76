"""Process groups besides DDP's: where they communicate, a device waits in its streams where no mark is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

EVERY: Final = 25
"""Number of steps between two looks, as a look costs some microseconds per group."""
_ON_HOST: Final = ("gloo", "mpi", "ucc")
"""Backends in whose operations the host waits, which the recorder notes."""


class OtherGroups:
    """Numbers of the operations of process groups, read every ``EVERY`` steps."""

    def __init__(self, groups: Callable[[], Iterable[tuple[Any, str]]] | None = None) -> None:
        self._groups = _of_torch if groups is None else groups
        self._numbers: dict[str, int] | None = None
        self._due = 0
        self._moved = True

    def communicate(self, step: int, groups: Iterable[Any]) -> bool:
        """Return whether other groups than ``groups`` communicated between the last two looks; true until there were two."""
        if step >= self._due:
            before, self._numbers = self._numbers, self._look()
            self._due = step + (1 if before is None else EVERY)
            if before is None or self._numbers is None:
                self._moved = True
            else:
                others = self._numbers.keys() - set(map(_name, groups))
                self._moved = any(self._numbers[name] != before.get(name, 0) for name in others)
        return self._moved

    def _look(self) -> dict[str, int] | None:
        """Return the numbers of all groups on devices; ``None`` where torch does not list its groups."""
        try:
            return {_name(group): _number(group) for group, backend in self._groups() if backend not in _ON_HOST}
        except (RuntimeError, AttributeError):
            return None


def _of_torch() -> Iterable[tuple[Any, str]]:
    """Return the process groups of more than one rank of this process, with the names of their backends."""
    # Not imported: a job that has not imported it has no groups.
    torch = sys.modules.get("torch.distributed.distributed_c10d")
    group_map: Mapping[Any, tuple[str, Any]] = {} if torch is None else torch._world.pg_map  # noqa: SLF001  # no public list of them
    return [(group, str(backend)) for group, (backend, _) in list(group_map.items()) if group.size() > 1]


def _name(group: Any) -> str:
    return str(getattr(group, "group_name", id(group)))


def _number(group: Any) -> int:
    """Return the number of collectives that a group has issued; 0 for a group that does not tell."""
    try:
        return int(group._get_sequence_number_for_group())  # noqa: SLF001  # not public
    except (RuntimeError, AttributeError):
        return 0
