"""Rows of the board of a run: stragglers, and the hardware under each rank."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels import columns
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.kinds import BoardColumn, Query
from rankscope.dashboards.grafana.boards.panels.marks import DEGREES_LEFT
from rankscope.dashboards.grafana.boards.run_queries import EVIDENCE, LEGEND, MOST, RANK, RUN, SILENT, most

_EXCESS: Final = ((None, "green"), (0.1, "orange"))
GPU_OF_RANK: Final = f"uuid:gpu_job_info:rank{RANK}"
"""Series that map a GPU to its rank."""


def stragglers(canvas: Canvas) -> None:
    """Add own and blocked time by rank."""
    own = f"run_id_rank:rank_own_seconds_per_step:rate5m{RANK}"
    blocked = f"run_id_rank:rank_blocked:ratio_rate5m{RANK}"
    excess = f"run_id_rank:rank_own_excess:ratio_rate5m{RANK}"
    info = f"run_id_rank:rank_info:latest{RANK}"
    last = f"1000 * run_id_rank:rank_last_step_timestamp_seconds:max{RANK}"
    identity = "run_id, rank, host, gpu_uuid"

    def of_phase(blocked: str, total: str) -> Query:
        return Query(f"run_id_phase:{blocked}:rate5m{RUN}\n/\n(run_id_phase:{total}:rate5m{RUN} > 0)", "{{phase}}")

    def of_rank(expr: str) -> str:
        return f"max by ({identity}) ({expr}\n* on (run_id, rank) group_left (host, gpu_uuid) {info})"

    canvas.row("Stragglers")
    canvas.graphs(
        SILENT,
        ("Own time of a step", "s", [
            Query(most(own), LEGEND),
            Query(f"run_id:rank_own_seconds_per_step:median_rate5m{RUN}", "{{run_id}} ordinary rank", dashed=True),
         ], {"links": EVIDENCE},
         f"What a rank itself needs for a step, without waiting, over 5 minutes: the {MOST} slowest, and the median."),
        ("Time the others wait for it", "percentunit", [Query(most(excess), LEGEND)],
         {"links": EVIDENCE, "minimum": None, "thresholds": _EXCESS},
         f"Share of the run's step that others wait because of a rank's excess over the median: the {MOST} worst."),
        ("Blocked by rank", "percentunit", [
            Query(most(blocked, least=True), LEGEND),
            Query(f"run_id:rank_blocked:ratio_rate5m{RUN}", "{{run_id}} whole run", dashed=True),
         ], {"links": EVIDENCE, "maximum": 1, "ascending": True},
         f"Share of its steps that a rank waits for others: the run, and the {MOST} that wait least; a straggler is one."),
        ("Where ranks are blocked", "percentunit", [of_phase("rank_blocked_seconds", "rank_phase_seconds")], {"maximum": 1},
         "Share of the time of each phase that ranks wait for others, over all ranks."),
        ("Where the device is blocked", "percentunit", [of_phase("rank_device_blocked_seconds", "rank_device_seconds")],
         {"maximum": 1}, "Share of the time of each phase that the device's main stream waits for other ranks."),
        ("Waiting for a CPU", "percentunit", [Query(most(f"run_id_rank:rank_run_queue_seconds:rate5m{RANK}"), LEGEND)],
         {"links": EVIDENCE}, f"Share of time that the training thread could have run and had no CPU: the {MOST} worst."),
    )  # fmt: skip
    canvas.sheet(
        "Every rank",
        "Where each rank is, what it needs for a step itself, how long it waits, and what the others wait for it.",
        [
            columns.RANK,
            *columns.labels(host="Host", gpu_uuid="GPU", run_id="Run"),
            BoardColumn(of_rank(own), "Own time of a step", "s"),
            BoardColumn(of_rank(blocked), "Blocked", "percentunit"),
            BoardColumn(of_rank(excess), "Others wait for it", "percentunit", thresholds=_EXCESS),
            BoardColumn(of_rank(last), "Last step", "dateTimeAsIso"),
        ],
        f"max by ({identity}) ({info})",
        sort="Others wait for it",
    )


_HARDWARE: Final = (
    ("GPU power", "watt", "gpu_power_watts:max", "Power of each rank's GPU. A rank that waits in a collective draws little."),
    ("SMs active", "percentunit", "sm", "Share of time in which an SM of the rank's GPU had a warp (Hopper and newer)."),
    ("Tensor cores active", "percentunit", "tensor",
     "Share of the peak of the tensor cores of the rank's GPU (Hopper and newer)."),
    ("SM clock", "hertz", "gpu_clock_hertz:max", "A clock below the others' makes a straggler."),
    ("Throttled", "percentunit", "gpu_throttle_seconds:rate5m",
     "Share of time in which the clocks were held down, for any reason."),
    ("NVLink sent", "Bps", "gpu_nvlink_transmit_bytes:rate5m", "What the rank's GPU sends over NVLink."),
)  # fmt: skip
"""Title, unit, recorded series by rank or activity, description."""


def hardware(canvas: Canvas) -> None:
    """Add the GPUs of the ranks, joined by the exporter's mapping of GPUs to ranks."""
    canvas.row("Hardware under the ranks")
    for title, unit, name, text in _HARDWARE:
        active = f'run_id_rank_activity:gpu_active_seconds:rate5m{RANK[:-1]}, activity="{name}"}}'
        expr = f"run_id_rank:{name}{RANK}" if ":" in name else active
        canvas.graph(title, unit, f"{text} The {MOST} greatest.", Query(most(expr), LEGEND), SILENT, links=EVIDENCE)
    margin = most(f"run_id_rank:gpu_temperature_margin_celsius:max{RANK}", least=True)
    canvas.graphs(
        SILENT,
        ("Margin to slowdown", "celsius", [Query(margin, LEGEND)],
         {"links": EVIDENCE, "minimum": None, "thresholds": DEGREES_LEFT, "ascending": True},
         f"Degrees that the rank's GPU has left until it slows down by its own limit. The {MOST} least."),
    )  # fmt: skip
    identity = "run_id, rank, host, instance, index, model, simulated, uuid"
    labels = "uuid, host, instance, index, model, simulated"

    def of_rank(recorded: str, by: str) -> str:
        return f"(max by ({by}) ({recorded})\n* on (uuid) group_left (rank, run_id)\n{GPU_OF_RANK})"

    canvas.sheet(
        "GPUs of the run",
        "Which GPU each rank is on, and what state it is in.",
        [
            columns.RANK,
            columns.HOST,
            *columns.labels(index="GPU", model="Model", state="State"),
            columns.SIMULATED,
            *columns.labels(uuid="UUID"),
            columns.INSTANCE_OF_LINKS,
            *columns.labels(run_id="Run"),
        ],
        f"max by ({identity}, state) {of_rank('uuid_state:gpu_state:active', f'{labels}, state')}\nor on (uuid)\n"
        f"max by ({identity}) {of_rank('uuid:gpu_info:latest', labels)}",
        width=16,
    )
