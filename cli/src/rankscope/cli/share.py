"""A share on the command line: ``1%`` or ``0.01``."""

from __future__ import annotations

import math
from typing import Any, Final

import click

LARGEST: Final = 1.0


class _Share(click.ParamType[float]):
    """More than nothing, and not more than everything."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The share as a number."""
        text = str(value).strip()
        number, percent, rest = text.partition("%")
        try:
            share = float(number) / (100 if percent else 1)
        except ValueError:
            share = math.nan
        if rest or not 0 < share <= LARGEST:
            self.fail(f"{value!r} is no share: say 1% or 0.01", param, ctx)
        return share


SHARE: Final = _Share()
