"""Names of the metrics a rank publishes through its text file in the spool folder.

One table: the recorder renders from it, the exporter relays it, rules and boards may use only what is in it. Every series has the
labels of ``RANK_LABELS``, and those of its row. A metric without a signal is absent, never zero.

``run`` is the name of the run, so that series continue when it is restarted; ``slot`` is "0" unless another run of that name has
the same rank on the same node. The run's id is a label of ``rank_info`` only:
``X * on (run, rank, slot) group_left (run_id) rank_info``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

RANK_LABELS: Final = ("run", "rank", "slot")


@dataclass(frozen=True, slots=True)
class RankMetric:
    """One metric: Prometheus name, type, help text, and labels besides ``RANK_LABELS`` (and ``le`` of a histogram's buckets)."""

    name: str
    type: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


RANK_METRICS: Final[tuple[RankMetric, ...]] = (
    RankMetric(
        "rank_info",
        "gauge",
        "Always 1; identity of the rank.",
        ("run_id", "host", "local_rank", "world_size", "gpu_uuid", "attempt", "simulated"),
    ),
    RankMetric("rank_steps_total", "counter", "Training steps completed."),
    RankMetric("rank_last_step", "gauge", "Number of the last step that was completed."),
    RankMetric("rank_last_step_timestamp_seconds", "gauge", "Unix time at which the last step ended."),
    RankMetric(
        "rank_step_duration_seconds",
        "histogram",
        "Time of a step: on a GPU that of the device, where it is known, else wall time.",
    ),
    RankMetric("rank_phase_seconds_total", "counter", "Wall time of the steps by phase.", ("phase",)),
    RankMetric(
        "rank_blocked_seconds_total",
        "counter",
        "Time in each phase of the steps spent waiting for other ranks; absent when there is no signal.",
        ("phase",),
    ),
    RankMetric("rank_device_steps_total", "counter", "Steps with times on the device; of short steps, few have them."),
    RankMetric(
        "rank_device_seconds_total",
        "counter",
        "Time by phase on the device's main stream, of steps that have it.",
        ("phase",),
    ),
    RankMetric(
        "rank_device_blocked_seconds_total",
        "counter",
        "Time in each phase that the device's main stream waited for other ranks.",
        ("phase",),
    ),
    RankMetric("rank_section_seconds_total", "counter", "Time in the script's own sections of the steps.", ("section",)),
    RankMetric("rank_cpu_seconds_total", "counter", "CPU time of the training thread."),
    RankMetric("rank_run_queue_seconds_total", "counter", "Time the training thread could have run and had no CPU."),
    RankMetric("rank_gc_seconds_total", "counter", "Python garbage collection in the steps."),
    RankMetric("rank_samples_total", "counter", "Samples trained on, where the batch size is visible."),
    RankMetric("rank_tokens_total", "counter", "Tokens trained on, where the script reports them."),
    RankMetric("rank_input_elements_total", "counter", "Tensor elements of the batches trained on."),
    RankMetric("rank_flops_total", "counter", "Floating-point operations of the steps, where the script reports them."),
    RankMetric(
        "rank_steps_tagged_total",
        "counter",
        "Steps in which something happened: checkpoint, eval, gc, optimizer_skipped.",
        ("tag",),
    ),
    RankMetric("rank_device_memory_allocated_bytes", "gauge", "Device memory held by tensors at the end of a recent step."),
    RankMetric("rank_device_memory_reserved_bytes", "gauge", "Device memory held by the allocator at the end of a recent step."),
    RankMetric("rank_device_memory_peak_bytes", "gauge", "Most device memory that tensors held at once."),
    RankMetric(
        "rank_allocator_retries_total",
        "counter",
        "Device allocations that succeeded only after the allocator released its cache.",
    ),
    RankMetric("rank_resident_memory_bytes", "gauge", "Resident memory of the process at the end of a recent step."),
    RankMetric("rank_script_metric", "gauge", "Last value of a number that the script records with prof.metric.", ("name",)),
    RankMetric(
        "rank_standstill_seconds",
        "gauge",
        "Time since the last event of a rank that stands still, by its phase and whether it waits for others: yes, no, unknown.",
        ("phase", "waiting"),
    ),
    RankMetric("rank_profiled_steps_total", "counter", "Steps recorded with the profiler on."),
    RankMetric("rank_windows_total", "counter", "Profiler windows that were due: recorded, missed.", ("outcome",)),
    RankMetric(
        "rank_window_seconds_total",
        "counter",
        "Profiled time by state: compute, overlap, exposed_communication, exposed_memcpy, idle.",
        ("state",),
    ),
    RankMetric("rank_overlap_ratio", "gauge", "Share of the communication that compute hid in the last profiler window."),
    RankMetric(
        "rank_exposed_communication_seconds",
        "gauge",
        "Communication per step that nothing hid in the last profiler window.",
    ),
    RankMetric(
        "rank_recorder_seconds_total",
        "counter",
        "Time the recorder itself cost the training thread: steps (always on), windows (the profiler).",
        ("part",),
    ),
    RankMetric("rank_recorder_budget_ratio", "gauge", "Share of the step time that the recorder may cost."),
    RankMetric("rank_recorder_dropped_total", "counter", "Records lost: the ring was full, or they could not be written."),
    RankMetric("rank_recorder_disabled", "gauge", "1 when the recorder switched itself off."),
)

STEP_BUCKETS_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
"""Upper bounds of the buckets of ``rank_step_duration_seconds``, without ``+Inf``."""

STEP_TAGS: Final = ("checkpoint", "eval", "gc", "optimizer_skipped")
"""Tags of steps that ``rank_steps_tagged_total`` counts."""

MAX_SECTIONS: Final = 16
"""Maximum names of sections that a rank publishes; further ones are summed as ``other``."""

MAX_SCRIPT_METRICS: Final = 16
"""Maximum names of the script's own numbers that a rank publishes; further ones are only in the records."""
