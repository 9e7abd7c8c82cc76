"""Table of the costliest kernels (CUDA) or operators (CPU) of a rank in a window, beside those of a healthy rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rankscope.analysis.result.analysis import Analysis
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.columns import Column, number_column, text_column
from rankscope.dashboards.model.page import Block, Section, Table
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.timeline.windows import Window
from rankscope.runs.records import KernelRecord

COLUMNS: Final[list[Column]] = [
    text_column("name", "Kernel or operator", width=360, hover=True, pinned=True),
    text_column("kind", "Kind", width=130),
    text_column("class", "Class", width=120),
    number_column("calls", "Calls", "Per step that has it", digits=1, width=92),
    number_column("ms", "ms", "Per step that has it, summed over its calls, which may overlap", digits=3, width=110),
    number_column("share_percent", "Share %", "Of the time of all rows of this rank", digits=1, width=100),
    number_column("healthy_ms", "Healthy ms", "The same kernel on the healthy rank, per step that has it", digits=3, width=124),
    number_column("ratio", "Ratio", "Time on this rank ÷ time on the healthy rank", digits=2, width=92),
]


def kernel_section(run: RunData, state: PageState, window: Window) -> Block:
    """Return the table of the picked rank, else of the blamed one, in the picked step if the window has it."""
    rank, healthy = compared_ranks(run.analysis, state.rank)
    step = state.step if state.step is not None and window.first <= state.step < window.past else None
    where = window.steps if step is None else f"step {step:,}"
    other = "" if healthy is None else f" Healthy: rank {healthy}, the median by own time of the ranks that are not blamed."
    return Section(
        name="kernels",
        title=f"What rank {rank} ran in {where}" if rank is not None else "What ran",
        help=f"The costliest kernels (CUDA) or operators (CPU), per step in which they were recorded.{other}",
        use="Pick a rank above, and a step in Ranks × steps.",
        blocks=[
            Table(
                name="kernels",
                columns=COLUMNS,
                rows=lambda: (
                    [] if rank is None else kernel_rows(*(_of(run, window, rank_number, step) for rank_number in (rank, healthy)))
                ),
                file_name=f"rankscope-{run.summary.run_id}-kernels",
                nothing=f"No kernel or operator of rank {rank} is recorded in {where}",
            )
        ],
    )


def compared_ranks(analysis: Analysis, picked: int | None) -> tuple[int | None, int | None]:
    """Return the rank to show, and the healthy rank: the median by own time of those not blamed."""
    verdict, ranks = analysis.verdict, [row.rank for row in analysis.ranks]
    rank = next((candidate for candidate in (picked, verdict.rank, *ranks[:1]) if candidate is not None), None)
    by_time = sorted(
        (row.own_us, row.rank)
        for row in analysis.ranks
        if row.own_us is not None and row.rank != rank and row.rank not in verdict.ranks
    )
    return rank, by_time[len(by_time) // 2][1] if by_time else None


def _of(run: RunData, window: Window, rank: int | None, step: int | None) -> list[KernelRecord]:
    records = [] if rank is None else run.source.window_kernels(run.summary, window, rank)
    return [record for record in records if step is None or record.step == step]


def kernel_rows(of_rank: Sequence[KernelRecord], of_healthy: Sequence[KernelRecord]) -> list[dict[str, Any]]:
    """Return a row per kernel of the rank, the costliest first. Times are means over the steps in which it was recorded."""
    healthy = _totals(of_healthy)
    total_us = sum(record.total_us for record in of_rank)
    kinds = {record.name: record for record in of_rank}
    rows = []
    for name, (us, calls, steps) in sorted(_totals(of_rank).items(), key=lambda item: -item[1][0]):
        healthy_us = healthy[name][0] / len(healthy[name][2]) if name in healthy else None
        rows.append(
            {
                "id": name,
                "name": name,
                "kind": kinds[name].kind,
                "class": kinds[name].kernel_class,
                "calls": calls / len(steps),
                "ms": us / len(steps) / 1e3,
                "share_percent": 100 * us / total_us if total_us else None,
                "healthy_ms": None if healthy_us is None else healthy_us / 1e3,
                "ratio": us / len(steps) / healthy_us if healthy_us else None,
            }
        )
    return rows


def _totals(records: Sequence[KernelRecord]) -> dict[str, tuple[float, int, set[int]]]:
    """Return time, calls and steps of each kernel. Only the costliest of a step are recorded, so its steps may be few."""
    totals: dict[str, tuple[float, int, set[int]]] = {}
    for record in records:
        us, calls, steps = totals.get(record.name, (0.0, 0, set()))
        totals[record.name] = us + record.total_us, calls + record.calls, steps | {record.step}
    return totals
