"""State of the pages about many runs, kept in their address, as on the pages of a run (``url_state``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args
from urllib.parse import quote, unquote_plus

By = Literal["host", "rank"]

MOST_COMPARED: Final = 12
"""Most runs in one comparison."""

_LONGEST: Final = 256
_FIELD: Final = re.compile(r"(-?)([a-z][a-z_]{0,31})", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_DAYS: Final = re.compile(r"([0-9]{1,4})d", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListState:
    """State of a table, such as the list of runs: ``?q=bert&sort=-lost&picked=ID,ID``."""

    q: str = ""
    sort: str | None = None
    """Column to sort by; ``None``: the given order of the rows."""
    descending: bool = False
    picked: tuple[str, ...] = ()
    """Selected rows."""

    @property
    def search(self) -> str:
        """Query part of the address; ``""`` at the defaults."""
        sort = None if self.sort is None else f"{'-' if self.descending else ''}{self.sort}"
        return _search(q=self.q or None, sort=sort, picked=self.picked or None)

    @classmethod
    def parse(cls, search: object) -> Self:
        """Parse the query part of an address. Invalid fields get their defaults, so that links never break."""
        given = _given(search)
        sort = _FIELD.fullmatch(given.get("sort", ""))
        return cls(
            q=unquote_plus(given.get("q", ""))[:_LONGEST],
            sort=sort[2] if sort else None,
            descending=bool(sort and sort[1]),
            picked=_ids(given.get("picked", "")),
        )


@dataclass(frozen=True, slots=True)
class CompareState:
    """State of a comparison: ``?runs=ID,ID&by=rank``, or ``?runs=ID&at=5000`` for one run before and after a step."""

    runs: tuple[str, ...] = ()
    at: int | None = None
    by: By = "host"
    """Unit of the shown changes: hosts or ranks."""

    @property
    def search(self) -> str:
        """Query part of the address."""
        at = None if self.at is None else str(self.at)
        return _search(runs=self.runs or None, at=at, by=None if self.by == "host" else self.by)

    @classmethod
    def parse(cls, search: object) -> Self:
        """Parse the query part of an address. Invalid fields get their defaults."""
        given = _given(search)
        by = given.get("by")
        return cls(
            runs=_ids(given.get("runs", "")),
            at=int(given["at"]) if _NUMBER.fullmatch(given.get("at", "")) else None,
            by=next((one for one in get_args(By) if one == by), "host"),
        )


@dataclass(frozen=True, slots=True)
class LedgerState:
    """State of the Lost GPU-hours page: ``?since=30d``."""

    days: int | None = None
    """Only runs that started in the last ``days`` days; ``None``: all."""

    @property
    def search(self) -> str:
        """Query part of the address."""
        return _search(since=None if self.days is None else f"{self.days}d")

    @classmethod
    def parse(cls, search: object) -> Self:
        """Parse the query part of an address. Invalid fields get their defaults."""
        found = _DAYS.fullmatch(_given(search).get("since", ""))
        return cls(int(found[1]) if found and int(found[1]) else None)


def compare_path(run_ids: Sequence[str], at: int | None = None) -> str:
    """Return the address of a comparison."""
    return f"/compare{CompareState(tuple(run_ids), at).search}"


def _given(search: object) -> dict[str, str]:
    """Return values by name, still quoted, since a run's id may contain a comma. A client may send any object as ``search``."""
    if not isinstance(search, str) or len(search) > _LONGEST * 64:
        return {}
    pairs = (part.partition("=") for part in search.removeprefix("?").split("&"))
    return {name: value for name, _, value in pairs}


def _ids(text: str) -> tuple[str, ...]:
    ids = map(unquote_plus, text.split(","))
    return tuple(dict.fromkeys(one for one in ids if 0 < len(one) <= _LONGEST))


def _search(**values: str | Sequence[str] | None) -> str:
    parts = [
        f"{name}={quote(value, safe='') if isinstance(value, str) else ','.join(quote(item, safe='') for item in value)}"
        for name, value in values.items()
        if value is not None
    ]
    return f"?{'&'.join(parts)}" if parts else ""
