"""The way in: a run directory or traces in, the whole analysis out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankscope.analysis.result import Analysis
from rankscope.analysis.run_analysis import analyze_run
from rankscope.analysis.trace_analysis import analyze_traces
from rankscope.runs.errors import InputError
from rankscope.runs.reader import is_headless_run, is_run


def analyze(
    paths: Sequence[Path], *, price_per_gpu_hour: float | None = None, currency: str = "USD", workers: int = 1
) -> Analysis:
    """Analyse one run directory, or the traces that ``paths`` (files, folders, patterns) name.

    A run is judged by the always-on records of its last attempt; its price per GPU-hour is the recorded one unless one is
    given. Raises ``InputError`` for input that cannot be read, for several runs, and for a run mixed with traces. A trace that
    cannot be read among others of a folder or pattern is left out with a warning; one that was named by itself is an error.

    With ``workers`` above 1 the step records of a large run are read by so many processes. These import the caller's main
    module, as those of ``multiprocessing`` do: a script that asks for them needs ``if __name__ == "__main__":``.

    Confidence of a straggler is the share of bootstrap samples of the run (blocks of steps, or collectives of a short trace)
    that give the same answer, times one minus the p-value of the permutation test, at most 0.99.
    """
    if not paths:
        raise InputError(os.curdir, "nothing to analyse: name a run directory or traces")
    try:
        return _analyze(paths, price_per_gpu_hour, currency, workers)
    except OSError as error:
        # A folder that may not be looked into, a disk that fails: readers translate what they expect, this is the rest.
        raise InputError(error.filename or paths[0], error.strerror or str(error)) from error


def _analyze(paths: Sequence[Path], price_per_gpu_hour: float | None, currency: str, workers: int) -> Analysis:
    # What was a run once is not searched for traces: reading it as a run says what is wrong with it.
    runs = [path for path in paths if is_run(path) or is_headless_run(path)]
    if not runs:
        return analyze_traces(paths, price_per_gpu_hour=price_per_gpu_hour, currency=currency)
    if len(runs) > 1:
        raise InputError(runs[1], f"a second run beside {runs[0]}; analyse one run at a time")
    if len(paths) > 1:
        other = next(path for path in paths if path not in runs)
        raise InputError(other, f"cannot be analysed together with the run {runs[0]}; give a run or traces, not both")
    return analyze_run(runs[0], price_per_gpu_hour=price_per_gpu_hour, currency=currency, workers=workers)
