"""Shares on the command line: ``1%`` or ``0.01``."""

from __future__ import annotations

from typing import Any, Final

import click

from rankscope.profiler.settings import as_share


class _Share(click.ParamType[float]):
    """Share above 0 and at most 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the share as a number."""
        try:
            return as_share(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SHARE: Final = _Share()
