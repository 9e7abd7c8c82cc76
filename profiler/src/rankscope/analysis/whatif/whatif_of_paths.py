"""Entry point of the what-if analysis for a run, traces or a file of traced operations."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rankscope.analysis.parallel.workers import ALONE, Engine
from rankscope.analysis.trace.locations import OPERATIONS_SUFFIX, Location, location
from rankscope.analysis.whatif.outcome import CostTerms
from rankscope.analysis.whatif.whatif_result import WhatIf
from rankscope.base.errors import InputError
from rankscope.runs.named import named_run


def whatif(
    paths: Sequence[Path | str],
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "USD",
    per_step: bool = False,
    cycle: int | None = None,
    communication_pattern: re.Pattern[str] | None = None,
    engine: Engine = ALONE,
) -> WhatIf:
    """Return how fast the job would be without stragglers, and with each rank, stage, operation and cause ideal.

    ``paths``: one run directory, one file of traced operations (Parquet) or a folder with one, or Kineto traces (files,
    folders, patterns). The default price per GPU-hour is the one recorded in the run. ``cycle`` and
    ``communication_pattern`` are for traces, as is ``engine``, which reads them (see ``engine.analyze``). Raises ``InputError``.
    """
    terms = CostTerms(
        accelerated=True,
        world_size=1,
        price_per_gpu_hour=price_per_gpu_hour,
        currency=currency,
        per_step=per_step,
        cycle=cycle,
        communication_pattern=communication_pattern,
    )
    if not paths:
        raise InputError(os.curdir, "nothing to look at: name a run directory, a file of operations, or traces")
    try:
        return _whatif([location(path) for path in paths], terms, engine)
    except OSError as error:
        raise InputError(error.filename or paths[0], error.strerror or str(error)) from error


def _whatif(paths: Sequence[Location], terms: CostTerms, engine: Engine) -> WhatIf:
    local = [path for path in paths if isinstance(path, Path)]
    runs = [run for path in local if (run := named_run(path)) is not None]
    files = [] if runs else [file for path in local for file in _operation_files(path)]
    if (runs or files) and len(paths) > 1:
        raise InputError(
            paths[1], f"cannot be looked at together with {paths[0]}; give one run, or one file of operations, or traces"
        )
    if (runs or files) and (terms.cycle is not None or terms.communication_pattern is not None):
        raise InputError(paths[0], "cycles and communication patterns are for traces")
    if runs:
        from rankscope.analysis.whatif.run_answer import whatif_with_graph

        return whatif_with_graph(runs[0], terms)[0]
    if len(files) > 1:
        raise InputError(files[1], f"a second file of operations beside {files[0]}; look at one at a time")
    if files:
        # Imported here as loading Arrow takes as long as answering.
        from rankscope.analysis.whatif.operations_answer import whatif_of_operations

        return whatif_of_operations(files[0], terms)
    from rankscope.analysis.whatif.windows_answer import whatif_of_traces

    return whatif_of_traces(paths, terms, engine)


def _operation_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.name.endswith(OPERATIONS_SUFFIX))
    return [path] if path.name.endswith(OPERATIONS_SUFFIX) else []
