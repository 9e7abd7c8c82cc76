"""State of a table that fills a page, such as the list of runs, kept in the address as that of other pages (``state``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote, unquote_plus

MOST_COMPARED: Final = 12
"""Most runs in one comparison."""

_LONGEST: Final = 256
_FIELD: Final = re.compile(r"(-?)([a-z][a-z_]{0,31})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListState:
    """State of a table: ``?q=bert&sort=-lost&picked=ID,ID``."""

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
        picked = ",".join(quote(item, safe="") for item in self.picked)
        values = {"q": quote(self.q, safe=""), "sort": sort, "picked": picked}
        parts = [f"{name}={value}" for name, value in values.items() if value]
        return f"?{'&'.join(parts)}" if parts else ""

    @classmethod
    def parse(cls, search: object) -> Self:
        """Parse the query part of an address. Invalid fields get their defaults, so that links never break."""
        if not isinstance(search, str) or len(search) > _LONGEST * 64:  # a client may send anything
            return cls()
        # The values are still quoted, since an id may contain a comma.
        given = {name: value for name, _, value in (part.partition("=") for part in search.removeprefix("?").split("&"))}
        sort = _FIELD.fullmatch(given.get("sort", ""))
        picked = map(unquote_plus, given.get("picked", "").split(","))
        return cls(
            q=unquote_plus(given.get("q", ""))[:_LONGEST],
            sort=sort[2] if sort else None,
            descending=bool(sort and sort[1]),
            picked=tuple(dict.fromkeys(one for one in picked if 0 < len(one) <= _LONGEST)),
        )
