"""Names of the metrics a rank publishes through its text file in the spool folder.

One table: the recorder renders from it, the exporter relays it, rules and boards may use only what is in it.
The labels of every metric are ``run_id`` and ``rank``, and those of its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class RankMetric:
    """One metric: Prometheus name, type, help text, and labels besides ``run_id`` and ``rank``."""

    name: str
    type: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


RANK_METRICS: Final[tuple[RankMetric, ...]] = (
    RankMetric(
        "rank_info",
        "gauge",
        "Always 1; identity of the rank.",
        ("name", "host", "local_rank", "world_size", "gpu_uuid", "attempt"),
    ),
    RankMetric("rank_steps_total", "counter", "Training steps completed."),
    RankMetric("rank_last_step_timestamp_seconds", "gauge", "Unix time at which the last step ended."),
    RankMetric("rank_step_seconds_total", "counter", "Wall time of the steps."),
    RankMetric("rank_phase_seconds_total", "counter", "Wall time of the steps by phase.", ("phase",)),
    RankMetric(
        "rank_blocked_seconds_total",
        "counter",
        "Time of the steps spent waiting for other ranks; absent when there is no signal.",
    ),
    RankMetric("rank_cpu_seconds_total", "counter", "CPU time of the training thread."),
    RankMetric("rank_samples_total", "counter", "Samples trained on, where the batch size is visible."),
    RankMetric("rank_input_elements_total", "counter", "Tensor elements of the batches trained on."),
    RankMetric("rank_profiled_steps_total", "counter", "Steps recorded with the profiler on."),
    RankMetric(
        "rank_window_seconds_total",
        "counter",
        "Profiled time by state: compute, overlap, exposed_communication, exposed_memcpy, idle.",
        ("state",),
    ),
    RankMetric("rank_recorder_seconds_total", "counter", "Time the recorder itself cost the training thread."),
    RankMetric("rank_recorder_dropped_total", "counter", "Records dropped because the ring was full."),
    RankMetric("rank_recorder_disabled", "gauge", "1 when the recorder switched itself off."),
)

RANK_METRIC_PREFIX: Final = "rank_"
