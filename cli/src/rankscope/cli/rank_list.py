"""Ranks on the command line: ``0,3-5``."""

from __future__ import annotations

import re
from typing import Any, Final

import click

MAX_RANKS: Final = 65_536


class _Ranks(click.ParamType[Any]):
    """``0,3-5``: ranks and ranges of ranks."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """The ranks, ascending."""
        if isinstance(value, list):
            return value
        ranks: set[int] = set()
        for part in str(value).split(","):
            found = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
            if found is None:
                self.fail(f"{value!r} is not a list of ranks such as 0,3-5", param, ctx)
            first, last = int(found[1]), int(found[2] or found[1])
            if last < first or last - first >= MAX_RANKS:
                self.fail(f"{part.strip()!r} is no range of ranks", param, ctx)
            ranks.update(range(first, last + 1))
        return sorted(ranks)


RANKS: Final = _Ranks()
