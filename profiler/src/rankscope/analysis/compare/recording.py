"""Records of one attempt of a run, as a comparison needs them."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from rankscope.analysis.evidence.damage import table_warnings
from rankscope.analysis.evidence.step_table.simultaneous import find_step_numbers
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.text import counted
from rankscope.analysis.trace.possible import is_possible_breakdown
from rankscope.analysis.verdict.advice_rows import RECORD
from rankscope.base.errors import InputError
from rankscope.runs.named import NamedRun, named_run, refuse_folder_of_runs
from rankscope.runs.paths import run_file
from rankscope.runs.reader import ATTEMPTS, RunReader
from rankscope.runs.records import AttemptInfo, RankInfo, RunInfo, StepBreakdown
from rankscope.runs.world_size import recorded_world_size


@dataclass(frozen=True, slots=True)
class Recording:
    """One attempt of one run."""

    path: str
    info: RunInfo
    attempt: int
    about: AttemptInfo | None
    infos: dict[int, RankInfo]
    world_size: int
    table: StepTable
    windows: dict[int, list[StepBreakdown]]
    """Profiled steps with plausible times, per rank."""
    warnings: list[str]

    @property
    def identity(self) -> tuple[str, int]:
        """Run id and attempt; a copy of the run has the same."""
        return self.info.run_id, self.attempt

    @property
    def on_cpu(self) -> bool:
        """True if no rank has a device, as far as is known."""
        return all(info.device_kind == "cpu" for info in self.infos.values())


def read_recording(path: Path) -> Recording:
    """Read the last attempt of a run, or the one whose folder (``RUN/attempts/NNN``) is named.

    Raises ``InputError`` if the path is no run, has a newer format, lacks the attempt, or holds no recorded step.
    """
    named = named_run(path)
    if named is None:
        refuse_folder_of_runs(path)
        _refuse_other_records(path)
        named = NamedRun(path, None)
    reader = RunReader(named.path)
    attempts = reader.attempts()
    attempt = named.chosen(attempts)
    ranks = reader.ranks(attempt)
    table = StepTable.load(reader, attempt if attempts else None)
    if not table.has_record.any():
        other = f"; attempts of it are folders in {named.path / ATTEMPTS}" if len(attempts) > 1 else ""
        raise InputError(path, f"not one step is recorded in attempt {attempt}{other}")
    infos = reader.infos(attempt)
    table = table.renumbered(find_step_numbers(table, infos))
    windows = {
        rank: table.numbers.breakdowns(rank, list(filter(is_possible_breakdown, reader.windows(attempt, rank)))) for rank in ranks
    }
    about = reader.attempt(attempt)
    return Recording(
        path=os.fspath(path),
        info=reader.info,
        attempt=attempt,
        about=about,
        infos=infos,
        world_size=max(recorded_world_size(about, infos.values()) or 0, len(ranks)),
        table=table,
        windows=windows,
        warnings=[*_warnings(reader, table, attempts, infos, named=named.attempt is not None), *table.numbers.warnings()],
    )


def _refuse_other_records(path: Path) -> None:
    """Raise ``InputError`` if ``path`` is no run, but may be something else that ``rankscope analyze`` takes."""
    if path.exists() and not run_file(path).exists():
        raise InputError(
            path,
            "not a run directory: there is no run.json in it. Comparing needs recorded runs; traces and dumps have too few "
            f"steps. Record both runs ({RECORD}), or analyse each by itself: rankscope analyze {shlex.quote(os.fspath(path))}",
        )


def _warnings(reader: RunReader, table: StepTable, attempts: list[int], infos: dict[int, RankInfo], *, named: bool) -> list[str]:
    warnings: list[str] = []
    if len(attempts) > 1 and not named:
        warnings.append(f"the last of {len(attempts)} attempts (number {table.attempt}) is compared")
    if infos and any(info.end_reason is None and info.end_unix_ns is None for info in infos.values()):
        warnings.append("it has not ended, as far as its records tell")
    if dropped := sum(info.dropped_records for info in infos.values()):
        warnings.append(f"{counted(dropped, 'record')} dropped when it was recorded")
    return warnings + table_warnings(reader, table)
