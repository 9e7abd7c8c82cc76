"""Rows of the board of a run: steps, cost of communication, and input."""

from __future__ import annotations

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.kinds import Graph, Query
from rankscope.dashboards.grafana.boards.run_queries import (
    EVIDENCE,
    LEGEND,
    MOST,
    RANK,
    RUN,
    SILENT,
    most,
)


def steps(canvas: Canvas) -> None:
    """Add step time, its phases, and throughput."""
    device_steps = f"(run_id:rank_device_steps:rate5m{RUN} > 0)"
    run_steps = f"(sum by (run_id) (run_id_rank:rank_steps:rate5m{RUN}) > 0)"
    canvas.row("Steps")
    canvas.graph(
        "Step time",
        "Wall time of a step over 5 minutes: the median rank, the slowest, and what the run is used to.",
        "s",
        Query(f"run_id:rank_step_seconds_per_step:median_rate5m{RUN}", "{{run_id}} median rank"),
        Query(f"run_id:rank_step_seconds_per_step:max_rate5m{RUN}", "{{run_id}} slowest rank"),
        Query(f"run_id:rank_step_seconds_per_step:usual{RUN}", "{{run_id}} usual", dashed=True),
        SILENT,
    )
    canvas.buckets(
        "Steps by duration",
        "How many steps a minute took how long, over all ranks.",
        "s",
        Query(f"60 * sum by (le) (run_id_le:rank_step_duration_seconds_bucket:rate5m{RUN})", "{{le}}"),
        width=8,
    )
    canvas.graph(
        "Phases of a step",
        "Seconds of each phase in a step, over all ranks: a ratio of sums.",
        "s",
        Query(f"run_id_phase:rank_phase_seconds:rate5m{RUN}\n/ on (run_id) group_left ()\n{run_steps}", "{{phase}}"),
        SILENT,
        look=Graph(stacked=True),
    )
    canvas.graph(
        "Steps per minute",
        "Steps that the run completes.",
        "opm",
        Query(f"60 * run_id:rank_steps:rate5m{RUN}", "{{run_id}}"),
        SILENT,
        width=6,
    )
    for what in ("samples", "tokens"):
        canvas.graph(
            f"{what.capitalize()} over time",
            f"{what.capitalize()} of all ranks per second, where they are known.",
            "cps",
            Query(f"run_id:rank_{what}:rate5m{RUN}", "{{run_id}}"),
            SILENT,
            width=6,
        )
    canvas.graph(
        "Arithmetic",
        "Floating-point operations of all ranks per second, where the script says.",
        "flops",
        Query(f"run_id:rank_flops:rate5m{RUN}", "{{run_id}}"),
        SILENT,
        width=6,
    )
    canvas.graph(
        "Device's view of the phases",
        "Seconds of each phase in a step on the device's main stream, of the steps that have such times.",
        "s",
        Query(f"run_id_phase:rank_device_seconds:rate5m{RUN}\n/ on (run_id) group_left ()\n{device_steps}", "{{phase}}"),
        SILENT,
        look=Graph(stacked=True),
    )
    canvas.graph(
        "Sections of the script",
        "Seconds in a step of the sections that the script itself names.",
        "s",
        Query(f"run_id_section:rank_section_seconds:rate5m{RUN}\n/ on (run_id) group_left ()\n{run_steps}", "{{section}}"),
        SILENT,
    )
    canvas.graph(
        "Steps with something special",
        "Steps a minute in which a rank had a checkpoint, an evaluation, a garbage collection, a skipped optimizer.",
        "opm",
        Query(f"60 * run_id_tag:rank_steps_tagged:rate5m{RUN}", "{{tag}}"),
        SILENT,
    )


def communication(canvas: Canvas) -> None:
    """Add hidden and exposed communication."""
    canvas.row("Communication")
    canvas.graph(
        "Overlap of communication",
        "Share of the communication that compute hid, in the profiled steps of the last hour: a ratio of sums.",
        "percentunit",
        Query(f"run_id:rank_overlap:ratio_increase1h{RUN}", "{{run_id}}"),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Exposed communication over time",
        "Share of profiled steps in which nothing but communication went on.",
        "percentunit",
        Query(f"run_id:rank_exposed_communication:ratio_increase1h{RUN}", "{{run_id}}"),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Profiled time by state",
        "What the devices of all ranks together did in the profiled steps of the last hour. Overlap is part of compute, too.",
        "s",
        Query(f"run_id_state:rank_window_seconds:increase1h{RUN}", "{{state}}"),
        SILENT,
    )
    canvas.graph(
        "Exposed communication of a step",
        f"Communication per step that nothing hid, in each rank's last profiled step: the {MOST} worst.",
        "s",
        Query(most(f"run_id_rank:rank_exposed_communication_seconds:max{RANK}"), LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE),
    )
    canvas.graph(
        "Overlap by rank",
        f"Share of its communication that compute hid, in each rank's last profiled step: the {MOST} lowest.",
        "percentunit",
        Query(most(f"run_id_rank:rank_overlap_ratio:max{RANK}", least=True), LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, maximum=1, ascending=True),
    )


def input_wait(canvas: Canvas) -> None:
    """Add the waits for data."""
    canvas.row("Input")
    canvas.graph(
        "Input wait over time",
        "Share of the steps spent waiting for data, over all ranks.",
        "percentunit",
        Query(f"run_id:rank_input_wait:ratio_rate5m{RUN}", "{{run_id}}"),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Input wait by rank",
        f"Share of its steps that a rank waits for data: the {MOST} worst.",
        "percentunit",
        Query(most(f"run_id_rank:rank_input_wait:ratio_rate5m{RANK}"), LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, maximum=1),
    )
    canvas.graph(
        "Elements of the batches",
        "Tensor elements of the batches that a rank trains on, per second: the greatest and the least.",
        "cps",
        Query(f"run_id:rank_input_elements:greatest_rate5m{RUN}", "{{run_id}} most"),
        Query(f"run_id:rank_input_elements:least_rate5m{RUN}", "{{run_id}} least"),
        SILENT,
    )
