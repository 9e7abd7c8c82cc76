"""Entry point of the analysis of a run directory, traces, Flight Recorder dumps or logs of NCCL Inspector."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankscope.analysis.collectives.traffic.links import StatedLink
from rankscope.analysis.durations.log_files import local_files
from rankscope.analysis.parallel.workers import ALONE, Engine
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.trace.locations import Location, location
from rankscope.analysis.trace_analysis import analyze_traces
from rankscope.base.errors import InputError
from rankscope.runs.durations import DurationSource
from rankscope.runs.named import NamedRun, named_run

_REDUCED: Final = "reduced to records while it was recorded"


def analyze(
    paths: Sequence[Path | str],
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "USD",
    links: Sequence[StatedLink] = (),
    communication_pattern: re.Pattern[str] | None = None,
    cycle: int | None = None,
    detail: bool = False,
    engine: Engine = ALONE,
    steps: tuple[int | None, int | None] | None = None,
) -> Analysis:
    """Analyse one run directory, or the traces that ``paths`` (files, folders, patterns; URLs such as ``s3://…``) name.

    Local Flight Recorder dumps of a job that trains, with durations, and logs of NCCL Inspector are analysed in place of traces.

    A run is judged by the always-on records of its last attempt, or of the attempt whose folder is named (``RUN/attempts/NNN``).
    Its price per GPU-hour is the recorded one unless ``price_per_gpu_hour`` is given. Raises ``InputError`` for input that cannot
    be read, for several runs, and for a run mixed with traces. An unreadable trace in a folder or pattern is left out with a
    warning; one that was named by itself is an error. A trace that was cut off is used up to there, with a warning and lower
    coverage.

    ``engine`` reads traces of several ranks in parallel: ``LocalEngine(8)`` in 8 processes, ``RayEngine()`` on a cluster.

    ``links``: links between the ranks, where the names of their GPUs do not determine them.

    ``cycle``: number, from 1, of the cycle of the profiler's schedule to analyse, where ranks have traces of several. The default
    is the last one.

    ``steps``: first step to analyse of a run, and the step after the last; ``None``: no bound. It is an error for other input.

    Kernels of traces whose name matches ``communication_pattern`` count as communication. It is an error for a run, which was
    reduced to records while it was recorded. ``detail`` adds ``ranks[].detail`` of traces.

    Confidence of a straggler is the product of two figures, at most 0.99. One is the share of bootstrap samples of the run
    (blocks of steps, or collectives of a short trace) that give the same answer. The other is one minus the p-value of the
    permutation test.
    """
    if not paths:
        raise InputError(os.curdir, "nothing to analyse: name a run directory or traces")
    try:
        places = [location(path) for path in paths]
        run = _run(places)
        if run is None and steps is not None:
            raise InputError(paths[0], "no run: steps can be chosen of a recorded run only")
        kind = _durations_in(places) if run is None else None
        if kind is not None:
            if communication_pattern is not None or cycle is not None:
                raise InputError(paths[0], "durations of collectives: patterns and cycles are for traces")
            from rankscope.analysis.durations.job_durations import analyze_durations

            return analyze_durations(
                [Path(path) for path in places], kind, price_per_gpu_hour=price_per_gpu_hour, currency=currency, engine=engine
            )
        if run is None:
            return analyze_traces(
                places,
                price_per_gpu_hour=price_per_gpu_hour,
                currency=currency,
                links=links,
                communication_pattern=communication_pattern,
                cycle=cycle,
                detail=detail,
                engine=engine,
            )
        if communication_pattern is not None:
            raise InputError(run.path, f"a run, {_REDUCED}: a communication pattern is for traces")
        if cycle is not None:
            raise InputError(run.path, "a run has attempts and no cycles: a cycle is for traces")
        # Imported for runs only: imports are a large part of the time that the analysis of a trace takes.
        from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
        from rankscope.analysis.run_analysis import analyze_run

        return analyze_run(
            run.path,
            run.attempt,
            price_per_gpu_hour=price_per_gpu_hour,
            currency=currency,
            links=links,
            steps=StepRange(*(steps or ())),
        )
    except OSError as error:
        # Readers translate the errors that they expect. The rest are, for example, folders without permission and disk failures.
        raise InputError(error.filename or paths[0], error.strerror or str(error)) from error


def _durations_in(paths: Sequence[Location]) -> DurationSource | None:
    """Return which source of durations ``paths`` name; ``None`` for traces. Traces beside them count first."""
    local = [path for path in paths if isinstance(path, Path)]
    files = local_files(local)
    if len(local) < len(paths) or not files or any(map(_is_trace, files)):
        return None
    from rankscope.analysis.durations.sources import source_of

    return source_of(files)


def _is_trace(file: Path) -> bool:
    if file.suffix != ".json":
        return file.name.endswith((".json.gz", ".json.zst"))
    with file.open("rb") as opened:
        return b'"traceEvents"' in opened.read(_HEAD)


_HEAD: Final = 1 << 16


def _run(paths: Sequence[Location]) -> NamedRun | None:
    """Return the one run that ``paths`` name, or ``None`` when they name traces. Raises ``InputError`` otherwise."""
    named = [(path, named_run(path) if isinstance(path, Path) else None) for path in paths]
    runs = [(path, run) for path, run in named if run is not None]
    if not runs:
        return None
    first, run = runs[0]
    if len(runs) > 1:
        raise InputError(runs[1][0], f"a second run beside {first}; analyse one run at a time")
    if len(paths) > 1:
        other = next(path for path, run in named if run is None)
        raise InputError(other, f"cannot be analysed together with the run {first}; give a run or traces, not both")
    return run
