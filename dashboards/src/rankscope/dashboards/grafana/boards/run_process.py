"""Rows of the board of a run: the processes, and the overhead of recording."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels.availability import NO_RULES
from rankscope.dashboards.grafana.boards.panels.board import run_page
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.columns import labels
from rankscope.dashboards.grafana.boards.panels.kinds import BoardColumn, Query
from rankscope.dashboards.grafana.boards.panels.marks import ANY_IS_A_WARNING
from rankscope.dashboards.grafana.boards.run_queries import EVIDENCE, LEGEND, MOST, RUN, SILENT, most_published

_PROCESSES: Final = (
    ("Device memory at its peak", "bytes", "device_memory_peak_bytes", "Most memory that tensors held at once."),
    ("Device memory of tensors", "bytes", "device_memory_allocated_bytes", "Memory held by tensors at the end of a recent step."),
    ("Device memory of the allocator", "bytes", "device_memory_reserved_bytes",
     "Memory held by the allocator at the end of a recent step."),
    ("Allocator retries", "cps", "allocator_retries_total",
     "Allocations that needed the cache given back first: close to out of memory."),
    ("Resident memory", "bytes", "resident_memory_bytes", "Memory of the process on the host."),
    ("CPU time", "percentunit", "cpu_seconds_total", "Share of time in which the training thread was on a CPU."),
    ("Garbage collection", "percentunit", "gc_seconds_total", "Share of time spent in Python's garbage collection."),
)  # fmt: skip


def process(canvas: Canvas) -> None:
    """Add memory and CPU of the processes."""
    canvas.row("Processes", collapsed=True)
    for title, unit, metric, text in _PROCESSES:
        query = Query(most_published(f"rank_{metric}", rated=metric.endswith("_total")), LEGEND)
        canvas.graph(title, unit, f"{text} The {MOST} greatest.", query, SILENT, links=EVIDENCE)


def recorder(canvas: Canvas) -> None:
    """Add the overhead of the recorder, and its losses."""
    canvas.row("Recorder")
    canvas.graphs(
        SILENT,
        ("What the recorder costs", "percentunit", [
            Query(f"run_id_part:rank_recorder:ratio_rate5m{RUN}", "{{run_id}} {{part}}"),
            Query(f"run_id:rank_recorder_budget:max{RUN}", "{{run_id}} budget", dashed=True),
         ], {}, "Share of the steps, by part: the steps themselves, profiled windows; dashed: what it may cost."),
        ("Records lost", "none", [Query(f"run_id:rank_recorder_dropped:increase1h{RUN}", "{{run_id}}")], {},
         "Records that the ring had no room for, or that could not be written, within an hour."),
        ("Profiled windows", "none", [Query(f"run_id_outcome:rank_windows:increase1h{RUN}", "{{outcome}}")], {},
         "Windows that were due within an hour, over all ranks: recorded, missed."),
    )  # fmt: skip
    by_state = Query(f"sum by (state) (run_id_state:rank_state:count{RUN})", "{{state}}")
    text = "Running; disabled: the recorder switched itself off while training goes on; silent: nothing comes any more."
    canvas.graph("Ranks by state", "none", text, by_state, NO_RULES, stacked=True)
    canvas.sheet(
        "Ranks whose recorder is off",
        "They train on and are not observed; disabled_reason in the rank's rank.json says why.",
        [
            BoardColumn("run_id", "Run", links=(("Evidence", run_page()),)),
            *labels(rank="Rank"),
            BoardColumn("state", "State", thresholds=ANY_IS_A_WARNING),
        ],
        'max by (run_id, rank, state) (run_id_rank_state:rank_state:max{run_id=~"$run_id", state=~"disabled|silent"} == 1)',
        width=8,
    )
