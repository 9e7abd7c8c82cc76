"""Profiled steps in which the rank's own helper process found something wrong and kept the raw traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope.base.text import ranks_text
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import StepBreakdown


def odd_windows(run: Path, attempt: int, windows: Mapping[int, Sequence[StepBreakdown]]) -> list[str]:
    """Return at most one sentence: the number of such steps, the last of them, and the folder of the remaining raw traces."""
    odd = {rank: rows for rank, all_rows in windows.items() if (rows := [row for row in all_rows if row.looked_wrong])}
    if not odd:
        return []
    rank, last = max(((rank, row) for rank, rows in odd.items() for row in rows), key=lambda one: (one[1].step, -one[0]))
    count = len({row.step for rows in odd.values() for row in rows})
    steps = "one profiled step" if count == 1 else f"{count:,} profiled steps"
    where = f"{steps} of {ranks_text(sorted(odd))}, last in step {last.step} of rank {rank}"
    text = f"something looked wrong in {where}: {last.looked_wrong}"
    with_traces = [one for one in sorted(odd) if any((rank_dir(run, attempt, one) / "traces").glob("window-*"))]
    if with_traces:
        shown = rank if rank in with_traces else with_traces[0]
        text += f"; raw traces are in {rank_dir(Path(), attempt, shown) / 'traces'}"
    return [text]
