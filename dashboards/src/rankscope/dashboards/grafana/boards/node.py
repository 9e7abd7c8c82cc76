"""The board of one host: all metrics of its GPUs, and the quality of their collection."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards import columns
from rankscope.dashboards.grafana.boards.answers import NO_ANSWER_OR_RULES, rules_loaded
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import NATIVE, SCOPE, Dialect, state
from rankscope.dashboards.grafana.boards.frame import TO_ALERTS, frame, gpu_variable, places
from rankscope.dashboards.grafana.boards.infiniband import infiniband
from rankscope.dashboards.grafana.boards.kinds import Column, Query
from rankscope.dashboards.grafana.boards.marks import (
    ALL_IS_GOOD,
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    DEGREES_LEFT,
    STATE_WORDS,
    STATES,
    none_is_zero,
    or_not_available,
)
from rankscope.dashboards.grafana.boards.node_lines import heat, links, memory, power, work
from rankscope.dashboards.grafana.boards.node_trouble import collection, errors, off_by_default

UID: Final = "rankscope-node"


def node(dialect: Dialect) -> Canvas:
    """Build the board in one of the two dialects; panels without a metric in the dialect are left out."""
    native = dialect.name == "native"
    about = (
        "Everything about the GPUs of a host: state, activity, memory, heat, power, links, errors, and how well that is known."
        if native
        else "The GPUs of a host, over dcgm-exporter or `rankscope exporter --compat dcgm`: activity, memory, heat, power, links."
    )
    alerts = ', instance=~"$instance"'
    canvas = Canvas(
        frame(UID, "Node and GPU" if native else "Node and GPU (DCGM)", about, dialect=dialect, alerts=alerts, since="now-3h")
    )
    canvas.figure_width = 3
    series = "gpu_info" if native else "DCGM_FI_DEV_GPU_TEMP"
    for variable in [*places(series, all_instances=False), gpu_variable(dialect)]:
        canvas.board.with_variable(variable)
    if native:
        _now(canvas)
    else:
        canvas.left_out += ["Now", "State of each GPU", "Who holds the GPUs", "Ranks of this host"]
    work(canvas, dialect)
    memory(canvas, dialect)
    heat(canvas, dialect)
    power(canvas, dialect)
    links(canvas, dialect)
    if native:
        infiniband(canvas)
    else:
        canvas.left_out.append("InfiniBand")
    errors(canvas, dialect)
    off_by_default(canvas, dialect)
    collection(canvas, dialect)
    return canvas


def _now(canvas: Canvas) -> None:
    up = f'gpu_up{{{SCOPE}, uuid=~"$gpu"}}'
    canvas.row("Now")
    rules_loaded(canvas)
    canvas.figure(
        "GPUs answering",
        "GPUs that the driver can read.",
        "none",
        none_is_zero(f"count(group by (uuid) ({up} == 1))", up),
        thresholds=ALL_IS_GOOD,
        width=2,
    )
    canvas.figure(
        "GPUs not answering",
        "Lost, hung, missing or given back; the table below says which and why.",
        "none",
        none_is_zero(f"count(group by (uuid) ({up} == 0))", up),
        thresholds=ANY_IS_BAD,
    )
    canvas.figure(
        "Least margin to slowdown",
        "Degrees that the hottest GPU has left until it slows down by its own limit.",
        "celsius",
        or_not_available(f"min({NATIVE.selector('gpu_temperature_margin_celsius')})", NATIVE.alive),
        thresholds=DEGREES_LEFT,
    )
    canvas.figure(
        "Power of all",
        "What the GPUs draw together now.",
        "watt",
        or_not_available(f"sum(max by (uuid) ({NATIVE.selector('gpu_power_watts')}))", NATIVE.alive),
    )
    canvas.figure(
        "Oldest sample",
        "Age of the oldest values of a GPU on the page; a GPU without fresh ones does not answer.",
        "s",
        or_not_available(f"max({NATIVE.selector('gpu_sample_age_seconds')})", NATIVE.alive),
        thresholds=((None, "green"), (10, "orange"), (60, "red")),
    )
    canvas.figure(
        "Recovery asked for",
        "GPUs for which the driver asks for a reset, a reboot or a drain.",
        "none",
        or_not_available(
            none_is_zero(
                f"count({NATIVE.selector('gpu_recovery_action', action='!none')} == 1)",
                f"{NATIVE.selector('gpu_recovery_action')}",
            ),
            NATIVE.alive,
        ),
        thresholds=ANY_IS_BAD,
    )
    canvas.figure(
        "Alerts firing",
        "Alerts about this host, of any severity.",
        "none",
        none_is_zero('count(ALERTS{alertstate="firing", instance=~"$instance"})', f"up{{{SCOPE}}}"),
        thresholds=ANY_IS_A_WARNING,
        links=TO_ALERTS,
        width=2,
    )
    known = f'gpu_info{{{SCOPE}, uuid=~"$gpu"}}'
    canvas.figure(
        "Simulated GPUs",
        "GPUs that are invented (--simulate): nothing here is a measurement of them.",
        "none",
        none_is_zero(f'count(group by (uuid) (gpu_info{{{SCOPE}, uuid=~"$gpu", simulated="true"}}))', known),
        thresholds=ANY_IS_A_WARNING,
        width=2,
    )
    codes = "\nor\n".join(f"{number} * {state(name)}" for name, (number, _, _) in STATES.items())
    canvas.timeline(
        "State of each GPU",
        "What recording rules say each GPU is doing; unknown where it cannot be told.",
        STATE_WORDS,
        Query(f"max by (host, index, uuid) (\n{codes}\n)", NATIVE.legend),
        NO_ANSWER_OR_RULES,
        width=16,
    )
    canvas.sheet(
        "GPUs that do not answer",
        "Why the driver cannot read a GPU, and since when.",
        [
            Column(source="index", title="GPU"),
            Column(source="reason", title="Why"),
            Column(source="Value", title="Since", unit="dateTimeAsIso"),
            Column(source="uuid", title="UUID"),
        ],
        f"max by (host, index, uuid, reason) (1000 * {NATIVE.value('gpu_down_since_timestamp_seconds')}"
        f"\n* on (job, instance, uuid) group_left (reason) gpu_down_info{{{SCOPE}}})",
        width=8,
    )
    canvas.sheet(
        "Who holds the GPUs",
        "As Slurm, the kubelet, the process table and the ranks tell.",
        [
            Column(source="host", title="Host"),
            Column(source="index", title="GPU"),
            *(Column(source=name, title=title) for name, title in JOB_COLUMNS.items()),
            columns.RUN,
            columns.RANK,
        ],
        f"max by (host, index, uuid, {', '.join(JOB_COLUMNS)}, run_id, rank) ({NATIVE.value('gpu_job_info')})",
        width=12,
    )
    ranks = f"max by (run, run_id, rank, local_rank, host, gpu_uuid, simulated) (rank_info{{{SCOPE}}})"
    canvas.sheet(
        "Ranks of this host",
        "Ranks whose recorder writes into the spool folder of this host.",
        [
            Column(source="run", title="Name"),
            columns.RUN,
            columns.RANK,
            Column(source="local_rank", title="Local rank"),
            Column(source="gpu_uuid", title="GPU"),
            columns.SIMULATED,
        ],
        ranks,
        width=12,
    )


JOB_COLUMNS: Final = {"job_id": "Job", "user": "User", "account": "Account", "namespace_k8s": "Namespace", "pod_k8s": "Pod"}
