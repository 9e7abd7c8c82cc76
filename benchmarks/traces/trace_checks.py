"""Cost of checking the events of a trace, as a share of the time to read it. Prints one JSON object.

Traces are read with and without the check in turn, in one process; the figure is the median of the ratios of CPU times. Without
the check means that all events are taken as they are. The traces are a synthetic one and, where they are, the public ones.

    python -m benchmarks.traces.trace_checks [--repeats 15] [--size 50]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from benchmarks.common.result import budget, environment, finish
from benchmarks.traces.analysis import synthetic

from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.quality import CheckedEvents

LIMIT = 1.05
PUBLIC = ("hta_df_index_resolver/rank-1.json.gz", "hta_trace_diff_test/rank-1.json.gz", "ddp_2ranks_nccl_metadata/rank-0.json.gz")


def unchecked(_columns: Mapping[str, Any], _names: Sequence[str], _base_ns: int, _kind: str, *, torn: bool) -> CheckedEvents:
    """Take all events as they are."""
    none = np.empty(0, np.int64)
    return CheckedEvents(
        missing=none,
        cut=none,
        quality=DataQuality(device_events=0),
        launches_work=not torn,
    )


def cpu_s(call: Callable[[], object]) -> float:
    """Return the CPU time of a call in seconds."""
    began = time.process_time()
    call()
    return time.process_time() - began


def ratio(path: Path, repeats: int, *, detail: bool) -> dict[str, float]:
    """Measure reading with the check, times reading without it."""
    result, took = [], []
    read_trace(path, detail=detail)
    for _ in range(repeats):
        checked = cpu_s(lambda: read_trace(path, detail=detail))
        with patch("rankscope.analysis.trace.columns.check_columns", unchecked):
            plain = cpu_s(lambda: read_trace(path, detail=detail))
        result.append(checked / plain)
        took.append(plain)
    return {"median": statistics.median(result), "least": min(result), "most": max(result), "plain_s": statistics.median(took)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data" / "traces")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--size", type=float, default=50.0, help="MB of the synthetic trace")
    args = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        synthetic_trace = Path(folder) / "rank-0.json"
        synthetic(synthetic_trace, args.size * 1e6)
        paths = {"synthetic": synthetic_trace} | {name.partition("/")[0]: args.data / name for name in PUBLIC}
        for name, path in paths.items():
            if path.exists():
                for detail in (False, True):
                    figures[f"{name}{', in detail' if detail else ''}"] = ratio(path, args.repeats, detail=detail)
    budgets = [
        budget(f"{name}: reading with the check, times without", figure["median"], LIMIT) for name, figure in figures.items()
    ]
    finish(figures, budgets, environment("rankscope", "numpy"))


if __name__ == "__main__":
    main()
