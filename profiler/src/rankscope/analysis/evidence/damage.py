"""Warnings about the parts of a run that were not or could not be used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.text import counted, first_of
from rankscope.base.text import ranks_text
from rankscope.runs.reader import RunReader

_SHOWN: Final = 8


def table_warnings(reader: RunReader, table: StepTable) -> list[str]:
    """Return one sentence each for steps, lines, files and records that were left out. The run has been read into ``table``."""
    damage = damage_warnings(reader, table.damaged)
    if not table.earlier.steps:
        return damage
    steps = len(table.steps)
    return [f"only the last {steps:,} of {steps + table.earlier.steps:,} steps are read", *damage]


def damage_warnings(reader: RunReader, damaged: Mapping[int, int]) -> list[str]:
    """Return one sentence each for lines, files and records that were left out. ``damaged``: impossible records by rank."""
    warnings = []
    if reader.skipped_lines:
        warnings.append(f"{counted(reader.skipped_lines, 'damaged line')} skipped: {reader.damage()}")
    if reader.unusable:
        warnings.append(f"damaged, so left out: {first_of(unreadable_files(reader), _SHOWN)}")
    if damaged:
        count = counted(sum(damaged.values()), "record")
        warnings.append(f"{count} of {ranks_text(sorted(damaged))} left out, whose times make no sense")
    return warnings


def unreadable_files(reader: RunReader) -> list[str]:
    """Return the files and folders that could not be read, relative to the run."""
    return sorted(os.fspath(path.relative_to(reader.path)) for path in reader.unusable)
