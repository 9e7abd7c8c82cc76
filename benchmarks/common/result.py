"""Result of a benchmark: its figures, its budgets, and the machine that it ran on. Measures nothing by itself."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

CORES = len(os.sched_getaffinity(0))
LOAD_BEFORE = os.getloadavg()[0]
"""Load of the machine when this process began."""


def budget(name: str, value: float, limit: float, *, at_least: bool = False) -> dict[str, object]:
    """Return a row of the result. ``at_least``: the limit is a minimum, not a maximum."""
    return {"name": name, "value": round(value, 6), "limit": limit, "ok": value >= limit if at_least else value <= limit}


def environment(*packages: str, **more: object) -> dict[str, object]:
    """Return what the figures depend on: the machine and its load, the versions of Python and ``packages``, and ``more``."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": CORES,
        "load_before": round(LOAD_BEFORE, 2),
        "load_after": round(os.getloadavg()[0], 2),
        **{name: version(name) for name in packages},
        **more,
    }


def finish(
    figures: Mapping[str, Any], budgets: Sequence[Mapping[str, object]], environment: Mapping[str, object], **more: object
) -> NoReturn:
    """Print the result as a JSON object, with ``more`` parts, and end this process: with status 1 if a budget is not met."""
    print(json.dumps({"figures": figures, **more, "budgets": budgets, "environment": environment}, indent=1))
    sys.exit(not all(row["ok"] for row in budgets))


def report_activity(activity: str) -> None:
    """Report what the benchmark does now on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {activity}", file=sys.stderr, flush=True)
