"""A length of time on the command line. Needs no extra."""

from __future__ import annotations

import re
from typing import Final

import click

_UNIT_S: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """``5``, ``5s``, ``500ms``, ``2m``, ``1h``, ``1d`` in seconds; more than nothing. Raises ``click.BadParameter``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)?", text)
    if match is None or float(match[1]) == 0:
        raise click.BadParameter(f"{text!r} is not a duration such as 5s, 500ms or 2m")
    return float(match[1]) * _UNIT_S[match[2] or "s"]
