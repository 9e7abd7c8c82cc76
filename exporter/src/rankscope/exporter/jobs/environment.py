"""Rank and run of a process from its environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rankscope.base.launchers import place_in_job
from rankscope.exporter.jobs.party import Ranks

_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@+\\-]{0,127}")

_RUN_IDS: Final = ("RANKSCOPE_RUN_ID", "TORCHELASTIC_RUN_ID")
_NO_RUN: Final = "none"  # torchrun's default


def variables(content: bytes) -> dict[str, str]:
    """Parse the variables of ``/proc/PID/environ``; a truncated last one is left out."""
    complete = content[: content.rfind(b"\0") + 1]
    pairs = (piece.decode("utf-8", "replace").partition("=") for piece in complete.split(b"\0"))
    values: dict[str, str] = {}
    for name, separator, value in pairs:
        if separator:
            values.setdefault(name, value)  # like getenv: the first one counts
    return values


def ranks_of(environ: Mapping[str, str]) -> Ranks:
    """Return rank and run from the launchers' variables; a value that is not a number, or not a plain word, is None."""
    rank, local_rank, world_size = (None if place is None else str(place) for place in place_in_job(environ))
    runs = (word(environ.get(name)) for name in _RUN_IDS)
    return Ranks(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        run_id=next((run for run in runs if run and run != _NO_RUN), None),
    )


def number(text: str | None) -> str | None:
    """Normalise an unsigned number of at most 9 digits; None for anything else."""
    return str(int(text)) if text is not None and _NUMBER.fullmatch(text) else None


def word(text: str | None) -> str | None:
    """Return ``text`` if it is a plain name of at most 128 characters; None for anything else."""
    return text if text is not None and _WORD.fullmatch(text) else None
