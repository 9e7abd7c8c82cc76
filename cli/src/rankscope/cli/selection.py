"""Ranks, steps and shares on the command line: ``0,3-5``, ``100:120`` and ``1%``."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from rankscope.profiler.settings import as_share

MAX_RANKS: Final = 65_536


class _RankList(click.ParamType[Any]):
    """List of ranks and ranges of ranks, ``0,3-5``."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Return the ranks, ascending."""
        if isinstance(value, list):
            return value
        ranks: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
            if match is None:
                self.fail(f"{value!r} is not a list of ranks such as 0,3-5", param, ctx)
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or last - first >= MAX_RANKS:
                self.fail(f"{part.strip()!r} is no range of ranks", param, ctx)
            ranks.update(range(first, last + 1))
        return sorted(ranks)


class _StepSelection(click.ParamType[Any]):
    """Range of steps: ``100:120`` and ``100-119`` are step 100 to step 119; ``100:``, ``:120`` and ``100`` are valid, too."""

    name = "A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int | None, int | None]:
        """Return the first step and the step after the last; ``None``: no bound."""
        if both := re.fullmatch(r"([0-9]{1,15})-([0-9]{1,15})", str(value), re.ASCII):
            value = f"{both[1]}:{int(both[2]) + 1}"
        match = re.fullmatch(r"([0-9]{1,15})?(:)?([0-9]{1,15})?", str(value), re.ASCII)
        if match is None or (match[1] is None and match[3] is None):
            self.fail(f"{value!r} is no range of steps such as 100-119 or 100:120, which are the same", param, ctx)
        first = None if match[1] is None else int(match[1])
        if match[2] is None:
            return int(value), int(value) + 1
        past = None if match[3] is None else int(match[3])
        if first is not None and past is not None and past <= first:
            self.fail(f"{value!r} has no step in it", param, ctx)
        return first, past


def share(text: Any) -> float:
    """Parse a share above 0 and at most 1: ``1%`` or ``0.01``. Raises ``click.BadParameter``."""
    try:
        return as_share(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


RANKS: Final = _RankList()
STEPS: Final = _StepSelection()
