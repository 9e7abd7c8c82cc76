"""``rankscope runs``."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from rankscope.analysis.hang.activity import read_activities
from rankscope.analysis.result.text import aligned
from rankscope.base.errors import RankscopeError
from rankscope.base.text import one_line, shortened
from rankscope.cli.terminal import INPUT_PATH, format_option, width
from rankscope.dashboards.data.brief import Brief, brief_of, stored_brief
from rankscope.dashboards.data.source import MAY_CHANGE, RunSummary
from rankscope.dashboards.store.run_folder import RunFolder
from rankscope.dashboards.words.wording import KIND_LABELS, STATUS_LABELS, run_state
from rankscope.runs.named import DEFAULT_FOLDER
from rankscope.runs.paths import flight_dir
from rankscope.runs.reader import RunReader

NOT_JUDGED = "none is kept: rankscope analyze computes it"
LEAST_WIDTH = 24


@click.command(
    epilog="""
\b
Examples:
  rankscope runs                          all runs in rankscope-runs
  rankscope runs /shared/runs
  rankscope runs --format json | jq '.[] | select(.kind == "straggler").path'
"""
)
@click.argument("path", type=INPUT_PATH, default=DEFAULT_FOLDER, metavar="[FOLDER]")
@format_option
def runs(path: Path, format_: str) -> None:
    """List the runs in a folder: state, start and verdict; live ones first, then the newest.

    The verdict is the one that was reached at the end of `rankscope run`. Only runs whose ranks stand still, or left dumps after
    it, are analysed, to see whether they hang.
    """
    folder = RunFolder(path, clock_s=time.time, look_again_s=0.0)
    runs_with_brief = [(run, _brief(run)) for run in folder.runs()]
    if format_ == "json":
        click.echo(json.dumps([_record(run, brief) for run, brief in runs_with_brief], indent=2))
        return
    if not runs_with_brief:
        click.echo(f"no runs in {one_line(str(path))}; record one: rankscope run -- torchrun … train.py", err=True)
        return
    rows = [["folder", "state", "started", "ranks", "verdict"], *(_row(run, brief) for run, brief in runs_with_brief)]
    *others, last = zip(*rows, strict=True)
    room = max(LEAST_WIDTH, width() - len(aligned(list(zip(*others, strict=True)), left_columns=(0, 1, 2))[0]) - 2)
    cut = [shortened(text, room) for text in last]
    for line in aligned(list(zip(*others, cut, strict=True)), left_columns=(0, 1, 2, 4)):
        click.echo(line)


def _brief(run: RunSummary) -> Brief | None:
    if run.problem is not None:
        return None
    stored = stored_brief(Path(run.path), run.last_write_unix_ns)
    if stored is not None and stored.is_current:
        return stored.brief
    with suppress(RankscopeError):
        if _may_hang(run):
            # Imported only here: a list without such runs starts faster.
            from rankscope.analysis.engine import analyze

            return brief_of(analyze([Path(run.path)]))
    return None


def _may_hang(run: RunSummary) -> bool:
    """Return whether ranks of the last attempt stand still now, or left dumps and did not end well."""
    reader = RunReader(Path(run.path))
    attempts = reader.attempts()
    if not attempts:
        return False
    if flight_dir(reader.path, attempts[-1]).is_dir():
        # A run that was ended by Ctrl-C because it hung is finished, too.
        return run.status in MAY_CHANGE or any(info.end_reason != "exit" for info in reader.infos(attempts[-1]).values())
    if run.status not in MAY_CHANGE:
        return False
    return read_activities(reader, attempts[-1], reader.infos(attempts[-1]), now_unix_ns=time.time_ns()) is not None


def _row(run: RunSummary, brief: Brief | None) -> list[str]:
    verdict = brief.summary if brief is not None else run.problem or NOT_JUDGED
    label = STATUS_LABELS[run.status] if brief is None else run_state(run.status, brief.kind)[0]
    kind = "" if brief is None or verdict.startswith(KIND_LABELS[brief.kind]) else f"{KIND_LABELS[brief.kind]}: "
    ranks = run.world_size or run.ranks
    return [Path(run.path).name, label, _started(run) or "-", f"{ranks:,}" if ranks else "-", one_line(kind + verdict)]


def _record(run: RunSummary, brief: Brief | None) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "name": run.name,
        "path": run.path,
        "status": run.status,
        "start_unix_ns": run.start_unix_ns,
        "ranks": run.ranks,
        "world_size": run.world_size,
        "simulated": run.simulated,
        "problem": run.problem,
        "kind": None if brief is None else brief.kind,
        "summary": None if brief is None else brief.summary,
        "slowdown": None if brief is None else brief.slowdown,
        "gpu_hours_lost": None if brief is None else brief.gpu_hours_lost,
    }


def _started(run: RunSummary) -> str | None:
    if run.start_unix_ns is None:
        return None
    return f"{datetime.fromtimestamp(run.start_unix_ns / 1e9).astimezone():%Y-%m-%d %H:%M}"
