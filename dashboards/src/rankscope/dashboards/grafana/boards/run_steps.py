"""Rows of the board of a run: its steps, what communication costs, and its input."""

from __future__ import annotations

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import RANGE, RATE
from rankscope.dashboards.grafana.boards.kinds import Graph, Query
from rankscope.dashboards.grafana.boards.run_queries import (
    EVIDENCE,
    LEGEND,
    MOST,
    RUN,
    SILENT,
    by_rank,
    summed,
)


def steps(canvas: Canvas) -> None:
    """How long steps take, of what they are made, how many there are."""
    steps, wall = by_rank("rank_steps_total"), by_rank("rank_step_duration_seconds_sum")
    per_step = f"{wall}\n/\n({steps} > 0)"
    run_steps = f"sum by (run_id) ({steps})"
    canvas.row("Steps")
    canvas.graph(
        "Step time",
        "Wall time of a step: the median rank, the slowest, and what the run is used to.",
        "s",
        Query(f"quantile by (run_id) (0.5, {per_step})", "{{run_id}} median rank"),
        Query(f"max by (run_id) ({per_step})", "{{run_id}} slowest rank"),
        Query(f"run_id:rank_step_seconds_per_step:usual{RUN}", "{{run_id}} usual", dashed=True),
        SILENT,
    )
    canvas.buckets(
        "Steps by duration",
        "How many steps took how long.",
        "s",
        Query(
            summed("rank_step_duration_seconds_bucket", "le", function="increase", window=RATE).replace(
                "sum by (run_id, le)", "sum by (le)"
            ),
            "{{le}}",
        ),
        width=8,
    )
    canvas.graph(
        "Phases of a step",
        "Seconds of each phase in a step, over all ranks: a ratio of sums.",
        "s",
        Query(f"{summed('rank_phase_seconds_total', 'phase')}\n/ on (run_id) group_left ()\n({run_steps} > 0)", "{{phase}}"),
        SILENT,
        look=Graph(stacked=True),
    )
    canvas.graph(
        "Steps per minute", "Steps that the run completes.", "opm", Query(f"60 * max by (run_id) ({steps})", "{{run_id}}"), SILENT
    )
    canvas.graph(
        "Throughput",
        "Samples and tokens of all ranks per second, where they are known.",
        "cps",
        Query(f"sum by (run_id) ({by_rank('rank_samples_total')})", "{{run_id}} samples"),
        Query(f"sum by (run_id) ({by_rank('rank_tokens_total')})", "{{run_id}} tokens"),
        SILENT,
    )
    canvas.graph(
        "Arithmetic",
        "Floating-point operations of all ranks per second, where the script says.",
        "flops",
        Query(f"sum by (run_id) ({by_rank('rank_flops_total')})", "{{run_id}}"),
        SILENT,
    )
    canvas.graph(
        "Device's view of the phases",
        "Seconds of each phase in a step as the device's main stream saw it.",
        "s",
        Query(f"{summed('rank_device_seconds_total', 'phase')}\n/ on (run_id) group_left ()\n({run_steps} > 0)", "{{phase}}"),
        SILENT,
        look=Graph(stacked=True),
    )
    canvas.graph(
        "Sections of the script",
        "Seconds in a step of the sections that the script itself names.",
        "s",
        Query(
            f"{summed('rank_section_seconds_total', 'section')}\n/ on (run_id) group_left ()\n({run_steps} > 0)", "{{section}}"
        ),
        SILENT,
    )
    canvas.graph(
        "Steps with something special",
        "Steps in which there was a checkpoint, an evaluation, a garbage collection, a skipped optimizer, in the time shown.",
        "none",
        Query(f"round({summed('rank_steps_tagged_total', 'tag', function='increase', window=RANGE)})", "{{tag}}"),
        SILENT,
    )


def communication(canvas: Canvas) -> None:
    """What compute hid, and what it did not."""
    windows = summed("rank_window_seconds_total", "state", function="increase", window="1h")
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
        "What the device did in the profiled steps of the last hour. Overlap is part of compute, too.",
        "s",
        Query(windows, "{{state}}"),
        SILENT,
    )
    canvas.graph(
        "Exposed communication of a step",
        f"Communication per step that nothing hid, in each rank's last profiled step: the {MOST} worst.",
        "s",
        Query(f"topk by (run_id) ({MOST}, {by_rank('rank_exposed_communication_seconds', function='')})", LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE),
    )
    canvas.graph(
        "Overlap by rank",
        f"Share of its communication that compute hid, in each rank's last profiled step: the {MOST} lowest.",
        "percentunit",
        Query(f"bottomk by (run_id) ({MOST}, {by_rank('rank_overlap_ratio', function='')})", LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, maximum=1),
    )


def input_wait(canvas: Canvas) -> None:
    """Waiting for data."""
    steps = by_rank("rank_step_duration_seconds_sum")
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
        Query(f"topk by (run_id) ({MOST}, {by_rank('rank_phase_seconds_total', phase='data')}\n/\n({steps} > 0))", LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, maximum=1),
    )
    canvas.graph(
        "Elements of the batches",
        "Tensor elements of the batches that a rank trains on, per second: the greatest and the least.",
        "cps",
        Query(f"max by (run_id) ({by_rank('rank_input_elements_total')})", "{{run_id}} most"),
        Query(f"min by (run_id) ({by_rank('rank_input_elements_total')})", "{{run_id}} least"),
        SILENT,
    )
