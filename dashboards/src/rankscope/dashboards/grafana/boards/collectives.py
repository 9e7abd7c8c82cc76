"""The board of collectives, from NCCL Inspector: bus bandwidth of each communicator, and the GPU that the others wait for.

node_exporter reads the plugin's files, so the series are joined to the chosen GPUs by host name.

The kernel of a collective lasts from a GPU's own arrival to the end that all share. So the GPU with the shortest execution
time arrived last, and the others waited for it. Its bus bandwidth is the greatest. That does not hold for collectives with a
root, whose ranks may end at different times.
"""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels import columns
from rankscope.dashboards.grafana.boards.panels.availability import RULES_LOADED
from rankscope.dashboards.grafana.boards.panels.board import choice_variable, new_board, target_variables
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.infiniband import HOSTS, of_hosts
from rankscope.dashboards.grafana.boards.panels.kinds import BoardColumn, Query, placeholder
from rankscope.dashboards.grafana.boards.panels.marks import or_not_available
from rankscope.dashboards.grafana.boards.panels.promql import RANGE, SCOPE, hosts_without, no_rules, targets_down

UID: Final = "rankscope-collectives"
MOST: Final = 8
"""Most lines in a graph; the table has all collectives."""
COMMUNICATOR: Final = "slurm_job_id, comm_name, nranks, n_nodes"
CALL: Final = f"{COMMUNICATOR}, collective, message_size, algo_proto"
LEGEND: Final = "{{comm_name}} {{collective}} {{message_size}} {{algo_proto}} {{slurm_job_id}}"
_PICKED: Final = 'slurm_job_id=~"$slurm_job_id", comm_name=~"$comm_name"'
_OF_ALL_RANKS: Final = ', collective!~"Broadcast|Reduce", slurm_job_id!="unknown"'
"""Outside Slurm, communicators of one name may belong to several jobs, so their GPUs are not compared."""
_OF_INSPECTOR: Final = "From NCCL Inspector, a mean of each dump (30 seconds or more)."


def collectives() -> Canvas:
    """Build the board of collectives."""
    about = "Bus bandwidth and execution time of collectives by communicator, and which GPU the others wait for (NCCL Inspector)."
    labels = {"slurm_job_id": "Slurm job", "comm_name": "Communicator", "collective": "Collective"}
    own = [choice_variable(name, label, f"label_values(nccl_bus_bandwidth_gbs, {name})") for name, label in labels.items()]
    canvas = new_board(UID, "Collectives", about, *target_variables("gpu_info"), *own, since="now-3h")
    bandwidth, exec_time, of_all = _bandwidth(), _exec_time(), _exec_time(_OF_ALL_RANKS)
    absent = placeholder(_absent())
    _now(canvas, of_all)
    canvas.row("Communicators")
    canvas.graphs(
        absent,
        ("Bus bandwidth", "Bps", [Query(_longest("bus_bandwidth_bytes:median"), LEGEND)], {"width": 12},
         f"Median over the GPUs of a communicator, for the {MOST} collectives that take longest. {_OF_INSPECTOR}"),
        ("Execution time", "s", [Query(_longest("collective_exec_seconds:median"), LEGEND)], {"width": 12},
         f"Median over the GPUs of a communicator, waiting for the last GPU included: the {MOST} longest. {_OF_INSPECTOR}"),
    )  # fmt: skip
    _sheet_of_communicators(canvas, bandwidth, exec_time, of_all)
    canvas.row("Last to arrive")
    text = "Longest less shortest execution time of a collective among the GPUs of a communicator, "
    text += f"for the {MOST} collectives that take longest. {_OF_INSPECTOR}"
    canvas.graph("Wait for the last GPU", "s", text, Query(_longest("collective_exec_seconds:spread"), LEGEND), absent)
    _sheet_of_last(canvas, bandwidth, of_all)
    canvas.row("Sends and receives", collapsed=True)
    for title, unit, scale, metric in (
        ("Bus bandwidth", "Bps", "1e9", "bus_bandwidth_gbs"),
        ("Execution time", "s", "1e-6", "exec_time_microseconds"),
    ):
        by = "slurm_job_id, comm_name, p2p_operation, message_size"
        series = of_hosts(f"nccl_p2p_{metric}{{{_PICKED}}}", f"node, gpu, {by}")
        expr = f"{scale} * quantile by ({by}) (0.5, {series})"
        query = Query(expr, "{{comm_name}} {{p2p_operation}} {{message_size}} {{slurm_job_id}}")
        text = f"Median over the GPUs of a communicator. {_OF_INSPECTOR}"
        canvas.graph(f"{title} of sends and receives", unit, text, query, absent, width=12)
    return canvas


def _bandwidth() -> str:
    return f"1e9 * ({_of_gpus('nccl_bus_bandwidth_gbs')})"


def _exec_time(more: str = "") -> str:
    return f"1e-6 * ({_of_gpus('nccl_collective_exec_time_microseconds', more)})"


def _of_gpus(metric: str, more: str = "") -> str:
    """Return a metric of each GPU of the chosen hosts."""
    return of_hosts(f'{metric}{{{_PICKED}, collective=~"$collective"{more}}}', f"node, gpu, {CALL}")


def _median(expr: str) -> str:
    return f"quantile by ({CALL}) (0.5, {expr})"


def _spread(expr: str) -> str:
    return f"(max by ({CALL}) ({expr}) - min by ({CALL}) ({expr}))"


def _longest(recorded: str) -> str:
    """Return a recorded series of the ``MOST`` collectives with the longest execution time within the shown time."""
    picked = '{slurm_job_id=~"$slurm_job_id", comm_name=~"$comm_name", collective=~"$collective"}'
    longest = f"topk ({MOST}, max_over_time(call:nccl_collective_exec_seconds:median{picked}[{RANGE}] @ end()))"
    return f"call:nccl_{recorded}{picked}\nand on ({CALL})\n{longest}"


def _now(canvas: Canvas, of_all: str) -> None:
    picked = _bandwidth()
    alive = f"up{{{SCOPE}}} == 1"
    canvas.row("Now")
    canvas.figures(
        RULES_LOADED,
        ("Communicators", "none",
         or_not_available(f"count(group by (slurm_job_id, comm_name, nranks, n_nodes) ({picked}))", alive), {},
         "Communicators that had collectives in the last dump. Those of one name in one job count once."),
        ("GPUs with NCCL Inspector", "none", or_not_available(f"count(group by (host, node, gpu) ({picked}))", alive), {},
         "GPUs about which node_exporter has a file of NCCL Inspector."),
        ("Longest wait for one GPU", "s", or_not_available(f"max({_spread(of_all)})", alive), {},
         "Longest less shortest execution time of one kind of collective among the GPUs of its communicator."),
    )  # fmt: skip


_CALL_COLUMNS: Final = (
    *columns.labels(comm_name="Communicator", nranks="Ranks", n_nodes="Nodes", collective="Collective", message_size="Message"),
    *columns.labels(algo_proto="Algorithm, protocol", slurm_job_id="Slurm job"),
)


def _sheet_of_communicators(canvas: Canvas, bandwidth: str, exec_time: str, of_all: str) -> None:
    canvas.sheet(
        "Every communicator",
        "Collectives by communicator and message size. More GPUs than ranks: several communicators have one name.",
        [
            *_CALL_COLUMNS,
            BoardColumn(f"count by ({CALL}) ({exec_time})", "GPUs", "none"),
            BoardColumn(_median(bandwidth), "Bus bandwidth, median", "Bps"),
            BoardColumn(f"min by ({CALL}) ({bandwidth})", "Bus bandwidth, least", "Bps"),
            BoardColumn(_median(exec_time), "Execution time, median", "s"),
            BoardColumn(_spread(of_all), "Wait for the last GPU", "s"),
        ],
        sort="Execution time, median",
    )


def _sheet_of_last(canvas: Canvas, bandwidth: str, exec_time: str) -> None:
    last = f"bottomk by ({CALL}) (1, {exec_time})"
    ahead = f"({_median(exec_time)} - on ({CALL}) group_right () {last}) > 0"
    text = (
        "Of each collective the GPU with the shortest execution time: it arrived last. Collectives with a root, and those outside"
    )
    canvas.sheet(
        "The GPU that the others wait for",
        f"{text} Slurm, are left out.",
        [
            *columns.labels(host="Host", node="Node of the process", gpu="GPU of the process"),
            *_CALL_COLUMNS,
            BoardColumn(ahead, "Arrived later by", "s"),
            BoardColumn(f"({bandwidth})\nand on (host, node, gpu, {CALL})\n({ahead})", "Its bus bandwidth", "Bps"),
        ],
        width=16,
        sort="Arrived later by",
    )


def _absent() -> str:
    """Return series of the hosts without a file of NCCL Inspector, and of exporters that do not answer."""
    unknown = f"{HOSTS} unless on (host) ({of_hosts('nccl_bus_bandwidth_gbs', 'node')})"
    named = hosts_without(unknown, "not available (no NCCL Inspector)")
    return f"NaN * (\n  {named}\nor\n  {targets_down()}\nor\n  {no_rules()}\n)"
