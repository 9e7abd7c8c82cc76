"""Warnings about the parts of a run that were not or could not be used."""

from __future__ import annotations

from rankscope.analysis.evidence.steps import StepTable
from rankscope.analysis.result.text import counted
from rankscope.runs.reader import RunReader


def damage_warnings(reader: RunReader, table: StepTable) -> list[str]:
    """Return one sentence each for lines, files and records that were left out. The run has been read into ``table``."""
    warnings = []
    if table.earlier.steps:
        steps = len(table.steps)
        warnings.append(f"only the last {steps:,} of {steps + table.earlier.steps:,} steps are read")
    if reader.skipped_lines:
        warnings.append(f"{counted(reader.skipped_lines, 'damaged line')} skipped: {reader.damage()}")
    if reader.unusable:
        warnings.append(f"{counted(len(reader.unusable), 'damaged path')} left out")
    if table.damaged:
        warnings.append(f"{counted(table.damaged, 'record')} left out, whose times make no sense")
    return warnings
