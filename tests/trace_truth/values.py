"""Values of traces by an independent program: plain, slow and without any code of rankscope.

``python -m tests.trace_truth.values PATH`` prints those of a trace, or of a folder with the traces of a job.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.trace_truth.checking import read_checked
from tests.trace_truth.collectives import collectives_of
from tests.trace_truth.figures import Figures
from tests.trace_truth.reading import RefusedError, unpacked
from tests.trace_truth.waiting import JobWaiting

__all__ = ["RefusedError", "unpacked", "values_of_file", "values_of_job"]


def values_of_file(path: Path) -> dict[str, Any]:
    """Return the values of one trace, or why it is refused."""
    try:
        figures = Figures(*read_checked(path))
    except RefusedError as error:
        return {"refused": str(error)}
    sums: dict[tuple[int, str, str], list[int]] = defaultdict(lambda: [0] * 4)
    for collective in collectives_of(figures):
        so_far = sums[collective.step, collective.group, collective.op]
        for at, value in enumerate(
            (1, collective.bytes or 0, collective.end - collective.start, collective.start - collective.enqueued)
        ):
            so_far[at] += value
    rows = [
        {"step": step, "group": group, "op": op, "count": count, "bytes": moved, "us": ns / 1000, "queued_us": queued / 1000}
        for (step, group, op), (count, moved, ns, queued) in sorted(sums.items())
    ]
    return figures.as_json() | {"collectives": rows}


def values_of_job(folder: Path) -> dict[str, Any]:
    """Return the values of a job, or why it is refused."""
    try:
        return JobWaiting(folder).as_json()
    except RefusedError as error:
        return {"refused": str(error)}


if __name__ == "__main__":
    given_path = Path(sys.argv[1])
    print(json.dumps(values_of_job(given_path) if given_path.is_dir() else values_of_file(given_path), indent=1))
