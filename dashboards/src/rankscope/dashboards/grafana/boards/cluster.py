"""The board of the cluster: hosts, their health, power, jobs, and allocated but idle GPUs."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards import columns
from rankscope.dashboards.grafana.boards.answers import NO_ANSWER_OR_RULES, NO_RULES, hosts_answering, rules_loaded
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import NATIVE, RATE, SCOPE, gone, no_rules, of_instances, state
from rankscope.dashboards.grafana.boards.frame import TO_ALERTS, frame, gpu_variable, places
from rankscope.dashboards.grafana.boards.infiniband import links_lost
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Query, told
from rankscope.dashboards.grafana.boards.marks import (
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    DEGREES_LEFT,
    STATES,
    none_is_zero,
    or_not_available,
)
from rankscope.dashboards.grafana.boards.xids import REMEMBERED_GPU, XIDS_SO_FAR, xids_in_time

UID: Final = "rankscope-cluster"
JOB: Final = "job_id, user, account, partition, run_id, namespace_k8s, pod_k8s"
HELD_BY: Final = f"max by (uuid, {JOB}) (gpu_job_info{{{SCOPE}}})"


def cluster() -> Canvas:
    """Build the board from the exporter's own metrics."""
    about = "Hosts and GPUs of a cluster: what answers, what state it is in, heat and power, who holds what, and what that costs."
    canvas = Canvas(frame(UID, "Cluster", about, dialect=NATIVE, alerts=', instance=~"$instance|"'), figure_width=3)
    for variable in [*places("gpu_info"), gpu_variable(NATIVE)]:
        canvas.board.with_variable(variable)
    _overview(canvas)
    _states(canvas)
    _hosts(canvas)
    _jobs(canvas)
    _power(canvas)
    _activity(canvas)
    _collection(canvas)
    return canvas


def _overview(canvas: Canvas) -> None:
    alive = NATIVE.alive
    up = f'gpu_up{{{SCOPE}, uuid=~"$gpu"}}'
    collectors = f"rankscope_exporter_collector_success{{{SCOPE}}}"
    canvas.row("Now")
    rules_loaded(canvas)
    hosts_answering(canvas)
    canvas.figure("GPUs", "GPUs that the exporters know, answering or not.", "none", f"count(group by (uuid) ({up}))", width=2)
    canvas.figure(
        "GPUs not answering",
        "GPUs that the driver cannot read: lost, hung, or given back. The board of their host says why.",
        "none",
        none_is_zero(f"count(group by (uuid) ({up} == 0))", up),
        thresholds=ANY_IS_BAD,
    )
    canvas.figure(
        "GPUs missing",
        "GPUs expected (--expected-gpus), or on the PCI bus, that the driver does not count.",
        "none",
        or_not_available(
            f'sum(clamp_min(max by (instance) (gpu_devices{{{SCOPE}, source=~"expected|pci"}})'
            f' - max by (instance) (gpu_devices{{{SCOPE}, source="driver"}}), 0))',
            alive,
        ),
        thresholds=ANY_IS_BAD,
    )
    canvas.figure(
        "Jobs on GPUs",
        "Jobs, pods and runs that hold or use GPUs.",
        "none",
        or_not_available(f"count(group by ({JOB}) ({HELD_BY}))", alive),
        width=2,
    )
    canvas.figure(
        "Critical alerts firing",
        "Alerts of severity critical about these hosts, or about runs. The board Alerts & Xid lists them.",
        "none",
        none_is_zero('count(ALERTS{alertstate="firing", severity="critical", instance=~"$instance|"})', f"up{{{SCOPE}}}"),
        thresholds=ANY_IS_BAD,
        links=TO_ALERTS,
    )
    canvas.figure(
        "Warnings firing",
        "Alerts of severity warning about these hosts, or about runs.",
        "none",
        none_is_zero('count(ALERTS{alertstate="firing", severity="warning", instance=~"$instance|"})', f"up{{{SCOPE}}}"),
        thresholds=ANY_IS_A_WARNING,
        links=TO_ALERTS,
    )
    canvas.figure(
        "Collectors failing",
        "Parts of the measurements that exporters miss; the row Collection names them.",
        "none",
        none_is_zero(f"count({collectors} == 0)", collectors),
        thresholds=ANY_IS_A_WARNING,
    )
    canvas.figure(
        "Power",
        "What all GPUs draw together now.",
        "watt",
        or_not_available(f"sum(max by (uuid) ({NATIVE.selector('gpu_power_watts')}))", alive),
    )
    joules = f"max by (uuid) (increase({NATIVE.selector('gpu_energy_joules_total')}[$__range]))"
    canvas.figure(
        "Energy in this time",
        "What all GPUs took over the time shown, from their own counters.",
        "kwatth",
        or_not_available(f"sum({joules}) / 3.6e6", alive),
        decimals=2,
    )
    canvas.figure(
        "Least margin to slowdown",
        "Degrees that the hottest GPU has left until it slows down by its own limit.",
        "celsius",
        or_not_available(f"min({NATIVE.selector('gpu_temperature_margin_celsius')})", alive),
        thresholds=DEGREES_LEFT,
    )
    canvas.figure(
        "GPUs throttled",
        "GPUs whose clocks heat or the power supply holds down. A GPU that meets its own power limit is not counted.",
        "none",
        or_not_available(none_is_zero(f"count{state('throttled')}", state()), alive),
        thresholds=ANY_IS_A_WARNING,
    )
    canvas.figure(
        "Allocated, idle",
        "GPUs that a job, a pod or a process holds and that compute nothing.",
        "none",
        or_not_available(none_is_zero(f"count{state('allocated_idle')}", state()), alive),
        thresholds=ANY_IS_A_WARNING,
    )
    canvas.figure(
        "Cost of idle GPUs",
        "Money per hour, in the currency beside it; not available where the rules' thresholds name no price of a GPU-hour.",
        "none",
        or_not_available(f"{_idle_count()}\n* on () group_left (currency) cluster:gpu_hour_price:configured", alive),
        thresholds=((None, "green"), (0.01, "orange")),
        decimals=2,
        legend="{{currency}} per hour",
    )
    known = f'gpu_info{{{SCOPE}, uuid=~"$gpu"}}'
    canvas.figure(
        "Simulated GPUs",
        "GPUs that are invented (--simulate) and counted in all of this; the row Collection says where they are.",
        "none",
        none_is_zero(f'count(group by (uuid) (gpu_info{{{SCOPE}, uuid=~"$gpu", simulated="true"}}))', known),
        thresholds=ANY_IS_A_WARNING,
    )


def _idle_count() -> str:
    return none_is_zero(f"(count{state('allocated_idle')}", state()) + ")"


def _states(canvas: Canvas) -> None:
    colors = {words: color for _, words, color in STATES.values()}
    canvas.row("States")
    canvas.graph(
        "GPUs by state",
        "Every GPU is in exactly one state, which recording rules decide on. Unknown: it cannot be told.",
        "none",
        *(Query(_in_state(name, "state"), words) for name, (_, words, _) in STATES.items()),
        NO_RULES,
        width=12,
        look=Graph(stacked=True, colors=colors),
    )
    canvas.graph(
        "Allocated, idle GPUs by host",
        "Hosts where GPUs are held and compute nothing.",
        "none",
        Query(_in_state("allocated_idle", "host, instance"), "{{host}}"),
        NO_ANSWER_OR_RULES,
        width=12,
        look=Graph(stacked=True, links=columns.line_to_node()),
    )


def _in_state(name: str, by: str) -> str:
    """Return the number of GPUs of the chosen hosts in a state over time."""
    counted = f'instance_state:gpu_state:count{{instance=~"$instance", state="{name}"}}'
    return f"sum by ({by}) {of_instances(counted)}"


def _hosts(canvas: Canvas) -> None:
    by = "instance, host, simulated"

    def of_hosts(function: str, expr: str) -> str:
        known = f"max by (instance, uuid, host, simulated) (gpu_info{{{SCOPE}}})"
        return (
            f"{function} by ({by}) (max by (instance, uuid) ({expr})\n* on (instance, uuid) group_left (host, simulated) {known})"
        )

    def counted(name: str) -> str:
        return f"count by ({by}) {state(name)}\nor\n0 * count by ({by}) {state()}"

    up = f'gpu_up{{{SCOPE}, uuid=~"$gpu"}}'
    canvas.row("Hosts")
    canvas.sheet(
        "Every host",
        "One row for each host that is collected. An empty cell is a measurement that this host does not give. "
        "InfiniBand links are those that went down in the time shown, as node_exporter tells.",
        [
            columns.HOST,
            columns.INSTANCE,
            Column(source="Value #A", title="GPUs"),
            Column(source="Value #B", title="Not answering", thresholds=ANY_IS_BAD),
            Column(source="Value #C", title="Power", unit="watt"),
            Column(source="Value #D", title="Margin to slowdown", unit="celsius", thresholds=DEGREES_LEFT),
            Column(source="Value #E", title="Throttled", thresholds=ANY_IS_A_WARNING),
            Column(source="Value #F", title="Allocated, idle", thresholds=ANY_IS_A_WARNING),
            Column(source="Value #G", title="Xids in this time", thresholds=ANY_IS_A_WARNING),
            Column(source="Value #H", title="InfiniBand links lost", thresholds=ANY_IS_A_WARNING),
            columns.SIMULATED,
        ],
        of_hosts("count", up),
        of_hosts("sum", f"{up} == bool 0"),
        of_hosts("sum", f"{NATIVE.selector('gpu_power_watts')}"),
        of_hosts("min", f"{NATIVE.selector('gpu_temperature_margin_celsius')}"),
        counted("throttled"),
        counted("allocated_idle"),
        f"sum by ({by}) (sum by (uuid) ({xids_in_time(XIDS_SO_FAR)})\n"
        f"* on (uuid) group_left ({by}) {REMEMBERED_GPU})\nor\n0 * count by ({by}) (gpu_info{{{SCOPE}}})",
        f"0 * group by ({by}) (gpu_info{{{SCOPE}}})\n+ on (host) group_left () {links_lost()}",
        sort="Not answering",
    )


def _jobs(canvas: Canvas) -> None:
    def of_jobs(expr: str) -> str:
        return f"sum by ({JOB}) (max by (uuid) ({expr})\n* on (uuid) group_left ({JOB}) {HELD_BY})"

    tensor = f"rate({NATIVE.selector('gpu_tensor_active_seconds_total')}[{RATE}])"
    canvas.row("Jobs")
    canvas.sheet(
        "Every job on GPUs",
        "Who holds or uses GPUs, as Slurm, the kubelet, the process table and the ranks tell. Several on one GPU: multiple.",
        [
            Column(source="job_id", title="Job"),
            Column(source="user", title="User"),
            Column(source="account", title="Account"),
            Column(source="partition", title="Partition"),
            Column(source="namespace_k8s", title="Namespace"),
            Column(source="pod_k8s", title="Pod"),
            columns.RUN,
            Column(source="Value #A", title="GPUs"),
            Column(source="Value #B", title="Allocated, idle", thresholds=ANY_IS_A_WARNING),
            Column(source="Value #C", title="Power", unit="watt"),
            Column(source="Value #D", title="Tensor cores active", unit="percentunit"),
        ],
        f"count by ({JOB}) ({HELD_BY})",
        f"{of_jobs(state('allocated_idle'))}\nor\n{of_jobs(f'0 * {state()}')}",
        of_jobs(f"{NATIVE.selector('gpu_power_watts')}"),
        f"{of_jobs(tensor)}\n/\n{of_jobs(f'0 * {tensor} + 1')}",
        sort="GPUs",
    )
    idle = "host, instance, index, uuid, model, simulated"
    canvas.sheet(
        "Allocated, idle GPUs",
        "GPUs that are held and compute nothing, and who holds them.",
        [
            columns.HOST,
            Column(source="index", title="GPU"),
            Column(source="model", title="Model"),
            Column(source="job_id", title="Job"),
            Column(source="user", title="User"),
            Column(source="pod_k8s", title="Pod"),
            columns.RUN,
            Column(source="uuid", title="UUID"),
            columns.INSTANCE_OF_LINKS,
            columns.SIMULATED,
        ],
        f"max by ({idle}, {JOB}) ({state('allocated_idle')}\n* on (uuid) group_left ({JOB}) {HELD_BY})\n"
        f"or on (uuid)\nmax by ({idle}) ({state('allocated_idle')})",
    )


def _power(canvas: Canvas) -> None:
    canvas.row("Power")
    watts = of_instances('instance:gpu_power_watts:sum{instance=~"$instance"}')
    canvas.graph(
        "Power by host",
        "What all GPUs of each host draw.",
        "watt",
        Query(f"sum by (instance, host) {watts}", "{{host}}"),
        told(_some_missing("gpu_power_watts")),
        width=24,
        look=Graph(stacked=True, links=columns.line_to_node()),
    )


def _some_missing(metric: str) -> str:
    """Return ``Dialect.missing`` over all GPUs together: one series per reason."""

    def why(series: str, words: str) -> str:
        told_why = f'label_replace({series}, "why", "{words}", "reason", "(.*)")'
        return f'label_replace(group by (why) ({told_why}), "of", "GPUs", "", "")'

    absent = why(NATIVE.selector("gpu_metric_absent_info", metric=metric), "not available ($1)")
    down = why(NATIVE.selector("gpu_down_info"), "collection dead ($1)")
    return f"NaN * (\n  {absent}\nor\n  {down}\nor\n  {gone()}\nor\n  {no_rules()}\n)"


def _activity(canvas: Canvas) -> None:
    canvas.row("Activity")
    activities = {"kernel": "a kernel runs", "sm": "SMs active", "tensor": "tensor cores active", "memory": "memory active"}

    def all_of(what: str, activity: str) -> str:
        name = f"instance_activity:gpu_active_seconds:{what}_rate5m"
        return of_instances(f'{name}{{instance=~"$instance", activity="{activity}"}}')

    canvas.graph(
        "Share of GPU time",
        "Seconds of activity per second of GPU, over all GPUs that tell. Before Hopper only that a kernel runs is known.",
        "percentunit",
        *(Query(f"sum{all_of('sum', name)} / sum{all_of('count', name)}", words) for name, words in activities.items()),
        told(_some_missing("gpu_busy_seconds_total")),
        width=12,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "GPUs at work by host",
        "Seconds of running kernels per second: how many GPUs of each host are busy.",
        "none",
        Query(f"sum by (host) {all_of('sum', 'kernel')}", "{{host}}"),
        told(_some_missing("gpu_busy_seconds_total")),
        width=12,
    )


def _collection(canvas: Canvas) -> None:
    canvas.row("Collection")
    canvas.sheet(
        "Exporters that do not answer",
        "Targets that Prometheus cannot scrape: nothing is known about their GPUs.",
        [columns.INSTANCE, Column(source="job", title="Scrape job")],
        f"max by (instance, job) (up{{{SCOPE}}} == 0)",
        width=8,
    )
    canvas.sheet(
        "Collectors that fail",
        "Parts of the measurements that an exporter misses; the reason is in its log and on its page /-/ready.",
        [columns.INSTANCE, Column(source="collector", title="Collector")],
        f"max by (instance, collector) (rankscope_exporter_collector_success{{{SCOPE}}} == 0)",
        width=8,
    )
    canvas.sheet(
        "Hosts with simulated GPUs",
        "Hosts whose GPUs are invented (--simulate): nothing here is a measurement of them.",
        [Column(source="instance", title="Instance"), Column(source="host", title="Host"), Column(source="Value", title="GPUs")],
        f'count by (instance, host) (gpu_info{{{SCOPE}, simulated="true"}})',
        width=8,
    )
