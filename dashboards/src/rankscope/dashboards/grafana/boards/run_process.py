"""Rows of the board of a run: the processes, and the overhead of recording."""

from __future__ import annotations

from rankscope.dashboards.grafana.boards.answers import NO_RULES
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.frame import run_page
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Query
from rankscope.dashboards.grafana.boards.marks import ANY_IS_A_WARNING
from rankscope.dashboards.grafana.boards.run_queries import (
    EVIDENCE,
    LEGEND,
    MOST,
    RUN,
    SILENT,
    most_published,
)


def process(canvas: Canvas) -> None:
    """Add memory and CPU of the processes."""
    canvas.row("Processes", collapsed=True)
    for title, unit, metric, rated, text in (
        ("Device memory at its peak", "bytes", "rank_device_memory_peak_bytes", False, "Most memory that tensors held at once."),
        (
            "Device memory of tensors",
            "bytes",
            "rank_device_memory_allocated_bytes",
            False,
            "Memory held by tensors at the end of a recent step.",
        ),
        (
            "Device memory of the allocator",
            "bytes",
            "rank_device_memory_reserved_bytes",
            False,
            "Memory held by the allocator at the end of a recent step.",
        ),
        (
            "Allocator retries",
            "cps",
            "rank_allocator_retries_total",
            True,
            "Allocations that needed the cache given back first: close to out of memory.",
        ),
        ("Resident memory", "bytes", "rank_resident_memory_bytes", False, "Memory of the process on the host."),
        ("CPU time", "percentunit", "rank_cpu_seconds_total", True, "Share of time in which the training thread was on a CPU."),
        (
            "Garbage collection",
            "percentunit",
            "rank_gc_seconds_total",
            True,
            "Share of time spent in Python's garbage collection.",
        ),
    ):
        canvas.graph(
            title,
            f"{text} The {MOST} greatest.",
            unit,
            Query(most_published(metric, rated=rated), LEGEND),
            SILENT,
            look=Graph(links=EVIDENCE),
        )


def recorder(canvas: Canvas) -> None:
    """Add the overhead of the recorder, and its losses."""
    canvas.row("Recorder")
    canvas.graph(
        "What the recorder costs",
        "Share of the steps, by part: the steps themselves, profiled windows; dashed: what it may cost.",
        "percentunit",
        Query(f"run_id_part:rank_recorder:ratio_rate5m{RUN}", "{{run_id}} {{part}}"),
        Query(f"run_id:rank_recorder_budget:max{RUN}", "{{run_id}} budget", dashed=True),
        SILENT,
    )
    canvas.graph(
        "Records lost",
        "Records that the ring had no room for, or that could not be written, within an hour.",
        "none",
        Query(f"run_id:rank_recorder_dropped:increase1h{RUN}", "{{run_id}}"),
        SILENT,
    )
    canvas.graph(
        "Profiled windows",
        "Windows that were due within an hour, over all ranks: recorded, missed.",
        "none",
        Query(f"run_id_outcome:rank_windows:increase1h{RUN}", "{{outcome}}"),
        SILENT,
    )
    canvas.graph(
        "Ranks by state",
        "Running; disabled: the recorder switched itself off while training goes on; silent: nothing comes any more.",
        "none",
        Query('sum by (state) (run_id_state:rank_state:count{run_id=~"$run_id"})', "{{state}}"),
        NO_RULES,
        look=Graph(stacked=True),
    )
    canvas.sheet(
        "Ranks whose recorder is off",
        "They train on and are not observed; disabled_reason in the rank's rank.json says why.",
        [
            Column(source="run_id", title="Run", links=(("Evidence", run_page()),)),
            Column(source="rank", title="Rank"),
            Column(source="state", title="State", thresholds=ANY_IS_A_WARNING),
        ],
        'max by (run_id, rank, state) (run_id_rank_state:rank_state:max{run_id=~"$run_id", state=~"disabled|silent"} == 1)',
        width=8,
    )
