"""Implementation of ``rankscope report``: from a run directory to a file."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from rankscope.analysis.result.text import size
from rankscope.base.atomic_files import replacing
from rankscope.base.errors import InputError
from rankscope.base.process import collector_paused
from rankscope.base.progress import progress_line
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.report.document import Report, metrics_offered, report
from rankscope.dashboards.store.builders import InlineBuilder
from rankscope.dashboards.store.cache import MAX_BYTES, Store, cache_folder
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.runs.named import named_run, refuse_folder_of_runs
from rankscope.runs.reader import RunReader

STANDARD_OUTPUT: Final = "-"
SOURCE_DATE_EPOCH: Final = "SOURCE_DATE_EPOCH"
"""Environment variable with the report's time, in seconds: https://reproducible-builds.org/specs/source-date-epoch/"""


@dataclass(frozen=True, slots=True)
class ReportSelection:
    """Requested selection. ``None``: the page's default."""

    rank: int | None = None
    steps: tuple[int, int] | None = None
    metric: str | None = None
    rows: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a report: a sentence for the user, and the errors in drawing."""

    sentence: str
    faults: list[str]


def write_report(
    path: Path, target: str, selection: ReportSelection, *, cache: Path | None = None, cache_bytes: int = MAX_BYTES
) -> Result:
    """Write the report of the run at ``path`` to the file ``target``, which is replaced as a whole.

    ``cache``: folder of results, at most ``cache_bytes``; by default the dashboard's.

    Raises ``InputError`` if ``path`` is not a run, or on a read or write error; ``click.UsageError`` if it lacks the selection.
    """
    folder = _run_at(path)
    _check_target(target, folder)
    made_unix_ns = _made_unix_ns()
    with progress_line() as write_line, tempfile.TemporaryDirectory(prefix="rankscope-report-") as scratch, collector_paused():
        builder = InlineBuilder(
            _store(cache or cache_folder(), cache_bytes, Path(scratch)), lambda progress: write_line(progress.sentence)
        )
        source = DiskRuns(folder, builder, look_again_s=math.inf)  # a live run is read once
        write_line(Progress("looking at the run").sentence)
        run = RunData(source, source.runs()[0])
        document = report(
            run, _state(run, selection), made_unix_ns=made_unix_ns, on_progress=lambda text: write_line(Progress(text).sentence)
        )
        _write(document, target)
    where = "standard output" if target == STANDARD_OUTPUT else target
    return Result(f"Report of {run.summary.name} written to {where} ({size(len(document.file))}).", document.faults)


def _store(root: Path, max_bytes: int, scratch: Path) -> Store:
    """Return the cache in ``root``, which the dashboard uses, too; ``scratch`` where it cannot be written."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return Store(scratch)
    return Store(root, max_bytes) if os.access(root, os.W_OK | os.X_OK) else Store(scratch)


def _run_at(path: Path) -> Path:
    named = named_run(path)
    if named is None:
        if not path.exists():
            raise InputError(path, "no such file or folder")
        refuse_folder_of_runs(path)
        raise InputError(
            path,
            "not a run that `rankscope run` recorded; of traces, `rankscope analyze` gives the verdict "
            "and `rankscope export --perfetto` a timeline",
        )
    attempts = RunReader(named.path).attempts()
    if named.attempt is not None and named.attempt != attempts[-1]:
        raise InputError(path, f"a report is of the last attempt, {attempts[-1]}; name the run, {named.path}")
    return named.path


def _check_target(target: str, run: Path) -> None:
    """Check the target before the run is read, so that an analysis of minutes does not fail at its end."""
    if target == STANDARD_OUTPUT:
        if sys.stdout.isatty():
            raise click.BadParameter("standard output is a terminal; give a file", param_hint="--output")
        return
    file = Path(target)
    if file.is_dir():
        raise click.BadParameter(f"{target!r} is a folder; give a file such as report.html", param_hint="--output")
    if file.exists() and not file.is_file():
        raise click.BadParameter(f"{target!r} is no regular file; give - for standard output", param_hint="--output")
    if not file.parent.is_dir():
        raise InputError(file.parent, "no such folder")
    # A link is followed: its target is replaced. The report is written beside it first.
    folder = Path(os.path.realpath(file)).parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(folder, "this folder cannot be written to")
    # A file inside the run's directory would count as a change of the run.
    if Path(os.path.realpath(run)) in Path(os.path.realpath(file)).parents:
        raise click.BadParameter(f"{target!r} lies in the run itself; give a place outside of it", param_hint="--output")


def _made_unix_ns() -> int:
    text = os.environ.get(SOURCE_DATE_EPOCH)
    if text is None:
        return time.time_ns()
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise click.UsageError(f"{SOURCE_DATE_EPOCH} is {text!r}, which is no number of seconds since 1970")
    return int(text) * 1_000_000_000


def _state(run: RunData, selection: ReportSelection) -> PageState:
    """Return the selection. A missing rank, step or metric is an error: a report would silently show something else."""
    state = PageState()
    if selection.rank is not None:
        ranks = [rank.rank for rank in run.analysis.ranks]
        if selection.rank not in ranks:
            raise click.BadParameter(f"rank {selection.rank} is not in this run, which has {_range(ranks)}", param_hint="--rank")
        state = replace(state, rank=selection.rank)
    if selection.steps is not None:
        steps = [int(step) for step in run.steps.steps]
        if not any(selection.steps[0] <= step <= selection.steps[1] for step in steps):
            raise click.BadParameter(f"this run has no such step; it has {_range(steps)}", param_hint="--steps")
        state = replace(state, steps=selection.steps)
    if selection.metric is not None:
        offered = metrics_offered(run)
        if selection.metric not in offered:
            raise click.BadParameter(f"{selection.metric!r} is none of {', '.join(offered)}", param_hint="--metric")
        state = replace(state, metric=selection.metric)
    return replace(state, rows=selection.rows)


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers else "none"


def _write(document: Report, target: str) -> None:
    if target == STANDARD_OUTPUT:
        sys.stdout.buffer.write(document.file)
        return
    try:
        # Follow a symbolic link, to replace its target and not the link.
        with replacing(os.path.realpath(target), shared=True) as file:
            file.write(document.file)
    except OSError as error:
        raise InputError(target, error.strerror or str(error)) from error
