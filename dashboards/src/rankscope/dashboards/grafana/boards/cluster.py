"""The board of the cluster: hosts, their health, power, jobs, and allocated but idle GPUs."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels import columns
from rankscope.dashboards.grafana.boards.panels.availability import HOSTS, NO_ANSWER_OR_RULES, NO_RULES
from rankscope.dashboards.grafana.boards.panels.board import TO_ALERTS, gpu_variable, new_board, target_variables
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas, FigureRow
from rankscope.dashboards.grafana.boards.panels.infiniband import links_lost
from rankscope.dashboards.grafana.boards.panels.kinds import VALUE, BoardColumn, Query, placeholder
from rankscope.dashboards.grafana.boards.panels.marks import (
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    DEGREES_LEFT,
    STATES,
    none_is_zero,
    or_not_available,
)
from rankscope.dashboards.grafana.boards.panels.promql import (
    GPU_ALIVE,
    RATE,
    SCOPE,
    gpu_series,
    gpu_states,
    no_rules,
    of_instances,
    targets_down,
)
from rankscope.dashboards.grafana.boards.panels.xids import REMEMBERED_GPU, XIDS_SO_FAR, xids_in_time

UID: Final = "rankscope-cluster"
JOB: Final = "job_id, user, account, partition, run_id, namespace_k8s, pod_k8s"
HELD_BY: Final = f"max by (uuid, {JOB}) (gpu_job_info{{{SCOPE}}})"
_UP: Final = f'gpu_up{{{SCOPE}, uuid=~"$gpu"}}'
_GPU_INFO: Final = f'gpu_info{{{SCOPE}, uuid=~"$gpu"}}'
_COLLECTORS: Final = f"rankscope_exporter_collector_success{{{SCOPE}}}"
_JOULES: Final = f"max by (uuid) (increase({gpu_series('gpu_energy_joules_total')}[$__range]))"
_MISSING: Final = (
    f'sum(clamp_min(max by (instance) (gpu_devices{{{SCOPE}, source=~"expected|pci"}})'
    f' - max by (instance) (gpu_devices{{{SCOPE}, source="driver"}}), 0))'
)


def _available(expr: str) -> str:
    return or_not_available(expr, GPU_ALIVE)


def _idle_count() -> str:
    return none_is_zero(f"(count{gpu_states('allocated_idle')}", gpu_states()) + ")"


def _firing(severity: str) -> str:
    alerts = f'ALERTS{{alertstate="firing", severity="{severity}", instance=~"$instance|"}}'
    return none_is_zero(f"count({alerts})", f"up{{{SCOPE}}}")


_NOW: Final[tuple[FigureRow, ...]] = (
    *HOSTS,
    ("GPUs", "none", f"count(group by (uuid) ({_UP}))", {"width": 2}, "GPUs that the exporters know, answering or not."),
    ("GPUs not answering", "none", none_is_zero(f"count(group by (uuid) ({_UP} == 0))", _UP), {"thresholds": ANY_IS_BAD},
     "GPUs that the driver cannot read: lost, hung, or given back. The board of their host has the reason."),
    ("GPUs missing", "none", _available(_MISSING), {"thresholds": ANY_IS_BAD},
     "GPUs expected (--expected-gpus), or on the PCI bus, that the driver does not count."),
    ("Jobs on GPUs", "none", _available(f"count(group by ({JOB}) ({HELD_BY}))"), {"width": 2},
     "Jobs, pods and runs that hold or use GPUs."),
    ("Critical alerts firing", "none", _firing("critical"), {"thresholds": ANY_IS_BAD, "links": TO_ALERTS},
     "Alerts of severity critical about these hosts, or about runs. The board Alerts & Xid lists them."),
    ("Warnings firing", "none", _firing("warning"), {"thresholds": ANY_IS_A_WARNING, "links": TO_ALERTS},
     "Alerts of severity warning about these hosts, or about runs."),
    ("Collectors failing", "none", none_is_zero(f"count({_COLLECTORS} == 0)", _COLLECTORS), {"thresholds": ANY_IS_A_WARNING},
     "Parts of the measurements that exporters miss; the row Collection names them."),
    ("Power", "watt", _available(f"sum(max by (uuid) ({gpu_series('gpu_power_watts')}))"), {},
     "Power of all GPUs together now."),
    ("Energy in this time", "kwatth", _available(f"sum({_JOULES}) / 3.6e6"), {"decimals": 2},
     "What all GPUs took over the time shown, from their own counters."),
    ("Least margin to slowdown", "celsius", _available(f"min({gpu_series('gpu_temperature_margin_celsius')})"),
     {"thresholds": DEGREES_LEFT}, "Degrees that the hottest GPU has left until it slows down by its own limit."),
    ("GPUs throttled", "none", _available(none_is_zero(f"count{gpu_states('throttled')}", gpu_states())),
     {"thresholds": ANY_IS_A_WARNING},
     "GPUs whose clocks heat or the power supply holds down. A GPU that meets its own power limit is not counted."),
    ("Allocated, idle", "none", _available(none_is_zero(f"count{gpu_states('allocated_idle')}", gpu_states())),
     {"thresholds": ANY_IS_A_WARNING}, "GPUs that a job, a pod or a process holds and that compute nothing."),
    ("Cost of idle GPUs", "none", _available(f"{_idle_count()}\n* on () group_left (currency) cluster:gpu_hour_price:configured"),
     {"thresholds": ((None, "green"), (0.01, "orange")), "decimals": 2, "legend": "{{currency}} per hour"},
     "Money per hour, in the currency beside it; not available where the rules' thresholds name no price of a GPU-hour."),
    ("Simulated GPUs", "none",
     none_is_zero(f'count(group by (uuid) (gpu_info{{{SCOPE}, uuid=~"$gpu", simulated="true"}}))', _GPU_INFO),
     {"thresholds": ANY_IS_A_WARNING},
     "Simulated GPUs (--simulate), which the other panels count, too. The row Collection lists their hosts."),
)  # fmt: skip


def cluster() -> Canvas:
    """Build the board from the exporter's own metrics."""
    about = "Hosts and GPUs of a cluster: availability, state, temperature, power, jobs, and the cost of idle GPUs."
    canvas = new_board(UID, "Cluster", about, *target_variables("gpu_info"), gpu_variable())
    canvas.figure_width = 3
    canvas.row("Now")
    canvas.figures(*_NOW)
    for part in (_states, _hosts, _jobs, _over_time, _collection):
        part(canvas)
    return canvas


def _states(canvas: Canvas) -> None:
    def of_state(name: str, by: str) -> str:
        counted = f'instance_state:gpu_state:count{{instance=~"$instance", state="{name}"}}'
        return f"sum by ({by}) {of_instances(counted)}"

    colors = {words: color for _, words, color in STATES.values()}
    canvas.row("States")
    canvas.graphs(
        None,
        ("GPUs by state", "none",
         [*(Query(of_state(name, "state"), words) for name, (_, words, _) in STATES.items()), NO_RULES],
         {"width": 12, "stacked": True, "colors": colors},
         "Every GPU is in exactly one state, which recording rules derive. Unknown: too little is measured."),
        ("Allocated, idle GPUs by host", "none",
         [Query(of_state("allocated_idle", "host, instance"), "{{host}}"), NO_ANSWER_OR_RULES],
         {"width": 12, "stacked": True, "links": columns.line_to_node()}, "Hosts where GPUs are held and compute nothing."),
    )  # fmt: skip


def _hosts(canvas: Canvas) -> None:
    by = "instance, host, simulated"

    def of_hosts(function: str, expr: str) -> str:
        gpus = f"max by (instance, uuid, host, simulated) (gpu_info{{{SCOPE}}})"
        return (
            f"{function} by ({by}) (max by (instance, uuid) ({expr})\n* on (instance, uuid) group_left (host, simulated) {gpus})"
        )

    def counted(name: str) -> str:
        return f"count by ({by}) {gpu_states(name)}\nor\n0 * count by ({by}) {gpu_states()}"

    xids = (
        f"sum by ({by}) (sum by (uuid) ({xids_in_time(XIDS_SO_FAR)})\n"
        f"* on (uuid) group_left ({by}) {REMEMBERED_GPU})\nor\n0 * count by ({by}) (gpu_info{{{SCOPE}}})"
    )
    lost = f"0 * group by ({by}) (gpu_info{{{SCOPE}}})\n+ on (host) group_left () {links_lost()}"
    margin = of_hosts("min", f"{gpu_series('gpu_temperature_margin_celsius')}")
    canvas.row("Hosts")
    canvas.sheet(
        "Every host",
        "One row for each host that is collected. An empty cell is a measurement that this host does not give. "
        "InfiniBand links lost: those that went down in the time shown, as reported by node_exporter.",
        [
            columns.HOST,
            columns.INSTANCE,
            BoardColumn(of_hosts("count", _UP), "GPUs"),
            BoardColumn(of_hosts("sum", f"{_UP} == bool 0"), "Not answering", thresholds=ANY_IS_BAD),
            BoardColumn(of_hosts("sum", f"{gpu_series('gpu_power_watts')}"), "Power", "watt"),
            BoardColumn(margin, "Margin to slowdown", "celsius", thresholds=DEGREES_LEFT),
            BoardColumn(counted("throttled"), "Throttled", thresholds=ANY_IS_A_WARNING),
            BoardColumn(counted("allocated_idle"), "Allocated, idle", thresholds=ANY_IS_A_WARNING),
            BoardColumn(xids, "Xids in this time", thresholds=ANY_IS_A_WARNING),
            BoardColumn(lost, "InfiniBand links lost", thresholds=ANY_IS_A_WARNING),
            columns.SIMULATED,
        ],
        sort="Not answering",
    )


def _jobs(canvas: Canvas) -> None:
    def of_jobs(expr: str) -> str:
        return f"sum by ({JOB}) (max by (uuid) ({expr})\n* on (uuid) group_left ({JOB}) {HELD_BY})"

    tensor = f"rate({gpu_series('gpu_tensor_active_seconds_total')}[{RATE}])"
    idle_of_jobs = f"{of_jobs(gpu_states('allocated_idle'))}\nor\n{of_jobs(f'0 * {gpu_states()}')}"
    canvas.row("Jobs")
    canvas.sheet(
        "Every job on GPUs",
        "Jobs that hold or use GPUs, from Slurm, the kubelet, the process table and the ranks. Multiple: several share a GPU.",
        [
            *columns.labels(job_id="Job", user="User", account="Account", partition="Partition"),
            *columns.labels(namespace_k8s="Namespace", pod_k8s="Pod"),
            columns.RUN,
            BoardColumn(f"count by ({JOB}) ({HELD_BY})", "GPUs"),
            BoardColumn(idle_of_jobs, "Allocated, idle", thresholds=ANY_IS_A_WARNING),
            BoardColumn(of_jobs(f"{gpu_series('gpu_power_watts')}"), "Power", "watt"),
            BoardColumn(f"{of_jobs(tensor)}\n/\n{of_jobs(f'0 * {tensor} + 1')}", "Tensor cores active", "percentunit"),
        ],
        sort="GPUs",
    )
    idle = "host, instance, index, uuid, model, simulated"
    canvas.sheet(
        "Allocated, idle GPUs",
        "GPUs that are held and compute nothing, with the jobs that hold them.",
        [
            columns.HOST,
            *columns.labels(index="GPU", model="Model", job_id="Job", user="User", pod_k8s="Pod"),
            columns.RUN,
            *columns.labels(uuid="UUID"),
            columns.INSTANCE_OF_LINKS,
            columns.SIMULATED,
        ],
        f"max by ({idle}, {JOB}) ({gpu_states('allocated_idle')}\n* on (uuid) group_left ({JOB}) {HELD_BY})\n"
        f"or on (uuid)\nmax by ({idle}) ({gpu_states('allocated_idle')})",
    )


def _some_missing(metric: str) -> Query:
    """Return ``gpus_without`` over all GPUs together: one series per reason."""

    def why(series: str, words: str) -> str:
        with_why = f'label_replace({series}, "why", "{words}", "reason", "(.*)")'
        return f'label_replace(group by (why) ({with_why}), "of", "GPUs", "", "")'

    absent = why(gpu_series("gpu_metric_absent_info", metric=metric), "not available ($1)")
    down = why(gpu_series("gpu_down_info"), "collection dead ($1)")
    return placeholder(f"NaN * (\n  {absent}\nor\n  {down}\nor\n  {targets_down()}\nor\n  {no_rules()}\n)")


def _over_time(canvas: Canvas) -> None:
    activities = {"kernel": "a kernel runs", "sm": "SMs active", "tensor": "tensor cores active", "memory": "memory active"}

    def all_of(statistic: str, activity: str) -> str:
        name = f"instance_activity:gpu_active_seconds:{statistic}_rate5m"
        return of_instances(f'{name}{{instance=~"$instance", activity="{activity}"}}')

    watts = of_instances('instance:gpu_power_watts:sum{instance=~"$instance"}')
    canvas.row("Power")
    canvas.graphs(
        _some_missing("gpu_power_watts"),
        ("Power by host", "watt", [Query(f"sum by (instance, host) {watts}", "{{host}}")],
         {"width": 24, "stacked": True, "links": columns.line_to_node()}, "What all GPUs of each host draw."),
    )  # fmt: skip
    canvas.row("Activity")
    canvas.graphs(
        _some_missing("gpu_busy_seconds_total"),
        ("Share of GPU time", "percentunit",
         [Query(f"sum{all_of('sum', name)} / sum{all_of('count', name)}", words) for name, words in activities.items()],
         {"width": 12, "maximum": 1},
         "Seconds of activity per second of GPU, over all GPUs that report it. Before Hopper: only that a kernel runs."),
        ("GPUs at work by host", "none", [Query(f"sum by (host) {all_of('sum', 'kernel')}", "{{host}}")], {"width": 12},
         "Seconds of running kernels per second: how many GPUs of each host are busy."),
    )  # fmt: skip


def _collection(canvas: Canvas) -> None:
    canvas.row("Collection")
    canvas.sheet(
        "Exporters that do not answer",
        "Targets that Prometheus cannot scrape: nothing is known about their GPUs.",
        [columns.INSTANCE, *columns.labels(job="Scrape job")],
        f"max by (instance, job) (up{{{SCOPE}}} == 0)",
        width=8,
    )
    canvas.sheet(
        "Collectors that fail",
        "Parts of the measurements that an exporter misses; the reason is in its log and on its page /-/ready.",
        [columns.INSTANCE, *columns.labels(collector="Collector")],
        f"max by (instance, collector) ({_COLLECTORS} == 0)",
        width=8,
    )
    canvas.sheet(
        "Hosts with simulated GPUs",
        "Hosts whose GPUs are simulated (--simulate): none of their values is a measurement.",
        [*columns.labels(instance="Instance", host="Host"), BoardColumn(VALUE, "GPUs")],
        f'count by (instance, host) (gpu_info{{{SCOPE}, simulated="true"}})',
        width=8,
    )
