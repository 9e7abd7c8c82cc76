"""Rows of the board of a run: steps, cost of communication, and input."""

from __future__ import annotations

from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.kinds import Query
from rankscope.dashboards.grafana.boards.run_queries import EVIDENCE, LEGEND, MOST, RANK, RUN, SILENT, most


def steps(canvas: Canvas) -> None:
    """Add step time, its phases, and throughput."""
    device_steps = f"(run_id:rank_device_steps:rate5m{RUN} > 0)"
    run_steps = f"(sum by (run_id) (run_id_rank:rank_steps:rate5m{RUN}) > 0)"
    of_steps = "\n/ on (run_id) group_left ()\n"
    canvas.row("Steps")
    canvas.graphs(
        SILENT,
        ("Step time", "s", [
            Query(f"run_id:rank_step_seconds_per_step:median_rate5m{RUN}", "{{run_id}} median rank"),
            Query(f"run_id:rank_step_seconds_per_step:max_rate5m{RUN}", "{{run_id}} slowest rank"),
            Query(f"run_id:rank_step_seconds_per_step:usual{RUN}", "{{run_id}} usual", dashed=True),
         ], {}, "Wall time of a step over 5 minutes: the median rank, the slowest, and what the run is used to."),
    )  # fmt: skip
    canvas.buckets(
        "Steps by duration",
        "s",
        "How many steps a minute took how long, over all ranks.",
        Query(f"60 * sum by (le) (run_id_le:rank_step_duration_seconds_bucket:rate5m{RUN})", "{{le}}"),
    )
    canvas.graphs(
        SILENT,
        ("Phases of a step", "s", [Query(f"run_id_phase:rank_phase_seconds:rate5m{RUN}{of_steps}{run_steps}", "{{phase}}")],
         {"stacked": True}, "Seconds of each phase in a step, over all ranks: a ratio of sums."),
        ("Steps per minute", "opm", [Query(f"60 * run_id:rank_steps:rate5m{RUN}", "{{run_id}}")], {"width": 6},
         "Steps that the run completes."),
        ("Samples over time", "cps", [Query(f"run_id:rank_samples:rate5m{RUN}", "{{run_id}}")], {"width": 6},
         "Samples of all ranks per second, where they are known."),
        ("Tokens over time", "cps", [Query(f"run_id:rank_tokens:rate5m{RUN}", "{{run_id}}")], {"width": 6},
         "Tokens of all ranks per second, where they are known."),
        ("Arithmetic", "flops", [Query(f"run_id:rank_flops:rate5m{RUN}", "{{run_id}}")], {"width": 6},
         "Floating-point operations of all ranks per second, where the script says."),
        ("Device's view of the phases", "s",
         [Query(f"run_id_phase:rank_device_seconds:rate5m{RUN}{of_steps}{device_steps}", "{{phase}}")], {"stacked": True},
         "Seconds of each phase in a step on the device's main stream, of the steps that have such times."),
        ("Sections of the script", "s",
         [Query(f"run_id_section:rank_section_seconds:rate5m{RUN}{of_steps}{run_steps}", "{{section}}")], {},
         "Seconds in a step of the sections that the script itself names."),
        ("Steps with something special", "opm", [Query(f"60 * run_id_tag:rank_steps_tagged:rate5m{RUN}", "{{tag}}")], {},
         "Steps a minute in which a rank had a checkpoint, an evaluation, a garbage collection, a skipped optimizer."),
    )  # fmt: skip


def communication(canvas: Canvas) -> None:
    """Add hidden and exposed communication."""
    canvas.row("Communication")
    canvas.graphs(
        SILENT,
        ("Overlap of communication", "percentunit", [Query(f"run_id:rank_overlap:ratio_increase1h{RUN}", "{{run_id}}")],
         {"maximum": 1}, "Share of the communication that compute hid, in the profiled steps of the last hour: a ratio of sums."),
        ("Exposed communication over time", "percentunit",
         [Query(f"run_id:rank_exposed_communication:ratio_increase1h{RUN}", "{{run_id}}")], {"maximum": 1},
         "Share of profiled steps in which nothing but communication went on."),
        ("Profiled time by state", "s", [Query(f"run_id_state:rank_window_seconds:increase1h{RUN}", "{{state}}")], {},
         "What the devices of all ranks together did in the profiled steps of the last hour. Overlap is part of compute, too."),
        ("Exposed communication of a step", "s",
         [Query(most(f"run_id_rank:rank_exposed_communication_seconds:max{RANK}"), LEGEND)], {"links": EVIDENCE},
         f"Communication per step that nothing hid, in each rank's last profiled step: the {MOST} worst."),
        ("Overlap by rank", "percentunit", [Query(most(f"run_id_rank:rank_overlap_ratio:max{RANK}", least=True), LEGEND)],
         {"links": EVIDENCE, "maximum": 1, "ascending": True},
         f"Share of its communication that compute hid, in each rank's last profiled step: the {MOST} lowest."),
    )  # fmt: skip


def input_wait(canvas: Canvas) -> None:
    """Add the waits for data."""
    canvas.row("Input")
    canvas.graphs(
        SILENT,
        ("Input wait over time", "percentunit", [Query(f"run_id:rank_input_wait:ratio_rate5m{RUN}", "{{run_id}}")],
         {"maximum": 1}, "Share of the steps spent waiting for data, over all ranks."),
        ("Input wait by rank", "percentunit", [Query(most(f"run_id_rank:rank_input_wait:ratio_rate5m{RANK}"), LEGEND)],
         {"links": EVIDENCE, "maximum": 1}, f"Share of its steps that a rank waits for data: the {MOST} worst."),
        ("Elements of the batches", "cps", [
            Query(f"run_id:rank_input_elements:greatest_rate5m{RUN}", "{{run_id}} most"),
            Query(f"run_id:rank_input_elements:least_rate5m{RUN}", "{{run_id}} least"),
         ], {}, "Tensor elements of the batches that a rank trains on, per second: the greatest and the least."),
    )  # fmt: skip
