"""The board of one host: all metrics of its GPUs, and the quality of their collection."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.node_lines import lines
from rankscope.dashboards.grafana.boards.node_trouble import collection, errors, off_by_default, video
from rankscope.dashboards.grafana.boards.panels import columns
from rankscope.dashboards.grafana.boards.panels.availability import NO_ANSWER_OR_RULES, RULES_LOADED
from rankscope.dashboards.grafana.boards.panels.board import TO_ALERTS, gpu_variable, new_board, target_variables
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas, FigureRow
from rankscope.dashboards.grafana.boards.panels.infiniband import infiniband
from rankscope.dashboards.grafana.boards.panels.kinds import VALUE, BoardColumn, Query
from rankscope.dashboards.grafana.boards.panels.marks import (
    ALL_IS_GOOD,
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    DEGREES_LEFT,
    STATE_WORDS,
    STATES,
    none_is_zero,
    or_not_available,
)
from rankscope.dashboards.grafana.boards.panels.promql import GPU_ALIVE, GPU_LEGEND, SCOPE, gpu_series, gpu_states, gpu_values

UID: Final = "rankscope-node"
JOB_COLUMNS: Final = {"job_id": "Job", "user": "User", "account": "Account", "namespace_k8s": "Namespace", "pod_k8s": "Pod"}
_UP: Final = f'gpu_up{{{SCOPE}, uuid=~"$gpu"}}'
_GPU_INFO: Final = f'gpu_info{{{SCOPE}, uuid=~"$gpu"}}'
_RECOVERY: Final = gpu_series("gpu_recovery_action")
_ASKED_FOR: Final = f"count({gpu_series('gpu_recovery_action', action='!none')} == 1)"
_NOW: Final[tuple[FigureRow, ...]] = (
    RULES_LOADED,
    ("GPUs answering", "none", none_is_zero(f"count(group by (uuid) ({_UP} == 1))", _UP),
     {"thresholds": ALL_IS_GOOD, "width": 2}, "GPUs that the driver can read."),
    ("GPUs not answering", "none", none_is_zero(f"count(group by (uuid) ({_UP} == 0))", _UP), {"thresholds": ANY_IS_BAD},
     "Lost, hung, missing or given back; the table below says which and why."),
    ("Least margin to slowdown", "celsius",
     or_not_available(f"min({gpu_series('gpu_temperature_margin_celsius')})", GPU_ALIVE), {"thresholds": DEGREES_LEFT},
     "Degrees that the hottest GPU has left until it slows down by its own limit."),
    ("Power of all", "watt", or_not_available(f"sum(max by (uuid) ({gpu_series('gpu_power_watts')}))", GPU_ALIVE), {},
     "What the GPUs draw together now."),
    ("Oldest sample", "s", or_not_available(f"max({gpu_series('gpu_sample_age_seconds')})", GPU_ALIVE),
     {"thresholds": ((None, "green"), (10, "orange"), (60, "red"))},
     "Age of the oldest values of a GPU on the page; a GPU without fresh ones does not answer."),
    ("Recovery asked for", "none", or_not_available(none_is_zero(_ASKED_FOR, _RECOVERY), GPU_ALIVE),
     {"thresholds": ANY_IS_BAD}, "GPUs for which the driver asks for a reset, a reboot or a drain."),
    ("Alerts firing", "none", none_is_zero('count(ALERTS{alertstate="firing", instance=~"$instance"})', f"up{{{SCOPE}}}"),
     {"thresholds": ANY_IS_A_WARNING, "links": TO_ALERTS, "width": 2}, "Alerts about this host, of any severity."),
    ("Simulated GPUs", "none",
     none_is_zero(f'count(group by (uuid) (gpu_info{{{SCOPE}, uuid=~"$gpu", simulated="true"}}))', _GPU_INFO),
     {"thresholds": ANY_IS_A_WARNING, "width": 2}, "Simulated GPUs (--simulate): none of their values is a measurement."),
)  # fmt: skip


def node() -> Canvas:
    """Build the board from the exporter's own metrics."""
    about = (
        "Everything about the GPUs of a host: state, activity, memory, heat, power, links, errors, and how well that is known."
    )
    variables = [*target_variables("gpu_info", all_instances=False), gpu_variable()]
    canvas = new_board(UID, "Node and GPU", about, *variables, alerts=', instance=~"$instance"', since="now-3h")
    canvas.figure_width = 3
    _now(canvas)
    lines(canvas)
    infiniband(canvas)
    errors(canvas)
    off_by_default(canvas)
    video(canvas)
    collection(canvas)
    return canvas


def _now(canvas: Canvas) -> None:
    canvas.row("Now")
    canvas.figures(*_NOW)
    codes = "\nor\n".join(f"{number} * {gpu_states(name)}" for name, (number, _, _) in STATES.items())
    canvas.timeline(
        "State of each GPU",
        "State of each GPU, derived by recording rules. Unknown: too little is measured.",
        STATE_WORDS,
        Query(f"max by (host, index, uuid) (\n{codes}\n)", GPU_LEGEND),
        NO_ANSWER_OR_RULES,
        width=16,
    )
    canvas.sheet(
        "GPUs that do not answer",
        "Why the driver cannot read a GPU, and since when.",
        [*columns.labels(index="GPU", reason="Why"), BoardColumn(VALUE, "Since", "dateTimeAsIso"), *columns.labels(uuid="UUID")],
        f"max by (host, index, uuid, reason) (1000 * {gpu_values('gpu_down_since_timestamp_seconds')}"
        f"\n* on (job, instance, uuid) group_left (reason) gpu_down_info{{{SCOPE}}})",
        width=8,
    )
    canvas.sheet(
        "Jobs on the GPUs",
        "Jobs that hold or use each GPU, from Slurm, the kubelet, the process table and the ranks.",
        [*columns.labels(host="Host", index="GPU", **JOB_COLUMNS), columns.RUN, columns.RANK],
        f"max by (host, index, uuid, {', '.join(JOB_COLUMNS)}, run_id, rank) ({gpu_values('gpu_job_info')})",
        width=12,
    )
    canvas.sheet(
        "Ranks of this host",
        "Ranks whose recorder writes into the spool folder of this host.",
        [
            *columns.labels(run="Name"),
            columns.RUN,
            columns.RANK,
            *columns.labels(local_rank="Local rank", gpu_uuid="GPU"),
            columns.SIMULATED,
        ],
        f"max by (run, run_id, rank, local_rank, host, gpu_uuid, simulated) (rank_info{{{SCOPE}}})",
        width=12,
    )
