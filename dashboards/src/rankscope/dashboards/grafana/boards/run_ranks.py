"""Rows of the board of a run: stragglers, and the hardware under each rank."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards import columns
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Query
from rankscope.dashboards.grafana.boards.marks import DEGREES_LEFT
from rankscope.dashboards.grafana.boards.run_queries import (
    EVIDENCE,
    LEGEND,
    MOST,
    RANK,
    RUN,
    SILENT,
    most,
)


def stragglers(canvas: Canvas) -> None:
    """Add own and blocked time by rank."""
    own = f"run_id_rank:rank_own_seconds_per_step:rate5m{RANK}"
    blocked = f"run_id_rank:rank_blocked:ratio_rate5m{RANK}"
    excess = f"run_id_rank:rank_own_excess:ratio_rate5m{RANK}"
    info = f"run_id_rank:rank_info:latest{RANK}"
    identity = "run_id, rank, host, gpu_uuid"
    canvas.row("Stragglers")
    canvas.graph(
        "Own time of a step",
        f"What a rank itself needs for a step, without waiting, over 5 minutes: the {MOST} slowest, and the median.",
        "s",
        Query(most(own), LEGEND),
        Query(f"run_id:rank_own_seconds_per_step:median_rate5m{RUN}", "{{run_id}} ordinary rank", dashed=True),
        SILENT,
        look=Graph(links=EVIDENCE),
    )
    canvas.graph(
        "Time the others wait for it",
        f"Share of the run's step that others wait because of a rank's excess over the median: the {MOST} worst.",
        "percentunit",
        Query(most(excess), LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, minimum=None, thresholds=((None, "green"), (0.1, "orange"))),
    )
    canvas.graph(
        "Blocked by rank",
        f"Share of its steps that a rank waits for others: the {MOST} that wait least, of whom a straggler is one, and the run.",
        "percentunit",
        Query(most(blocked, least=True), LEGEND),
        Query(f"run_id:rank_blocked:ratio_rate5m{RUN}", "{{run_id}} whole run", dashed=True),
        SILENT,
        look=Graph(links=EVIDENCE, maximum=1, ascending=True),
    )
    canvas.graph(
        "Where ranks are blocked",
        "Share of the time of each phase that ranks wait for others, over all ranks.",
        "percentunit",
        Query(
            f"run_id_phase:rank_blocked_seconds:rate5m{RUN}\n/\n(run_id_phase:rank_phase_seconds:rate5m{RUN} > 0)", "{{phase}}"
        ),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Where the device is blocked",
        "Share of the time of each phase that the device's main stream waits for other ranks.",
        "percentunit",
        Query(
            f"run_id_phase:rank_device_blocked_seconds:rate5m{RUN}\n/\n(run_id_phase:rank_device_seconds:rate5m{RUN} > 0)",
            "{{phase}}",
        ),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Waiting for a CPU",
        f"Share of time that the training thread could have run and had no CPU: the {MOST} worst.",
        "percentunit",
        Query(most(f"run_id_rank:rank_run_queue_seconds:rate5m{RANK}"), LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE),
    )
    canvas.sheet(
        "Every rank",
        "Where each rank is, what it needs for a step itself, how long it waits, and what the others wait for it.",
        [
            columns.RANK,
            Column(source="host", title="Host"),
            Column(source="gpu_uuid", title="GPU"),
            Column(source="run_id", title="Run"),
            Column(source="Value #B", title="Own time of a step", unit="s"),
            Column(source="Value #C", title="Blocked", unit="percentunit"),
            Column(
                source="Value #D", title="Others wait for it", unit="percentunit", thresholds=((None, "green"), (0.1, "orange"))
            ),
            Column(source="Value #E", title="Last step", unit="dateTimeAsIso"),
        ],
        f"max by ({identity}) ({info})",
        *(
            f"max by ({identity}) ({expr}\n* on (run_id, rank) group_left (host, gpu_uuid) {info})"
            for expr in (own, blocked, excess, f"1000 * run_id_rank:rank_last_step_timestamp_seconds:max{RANK}")
        ),
        sort="Others wait for it",
    )


GPU_OF_RANK: Final = f"uuid:gpu_job_info:rank{RANK}"
"""Series that map a GPU to its rank."""


def of_rank(expr: str) -> str:
    """Return series of GPUs with the rank and the run on each."""
    return f"{expr}\n* on (uuid) group_left (rank, run_id)\n{GPU_OF_RANK}"


def hardware(canvas: Canvas) -> None:
    """Add the GPUs of the ranks, joined by the exporter's mapping of GPUs to ranks."""

    def active(activity: str) -> str:
        return f'run_id_rank_activity:gpu_active_seconds:rate5m{{run_id=~"$run_id", rank=~"$rank", activity="{activity}"}}'

    canvas.row("Hardware under the ranks")
    for title, unit, expr, text in (
        (
            "GPU power",
            "watt",
            f"run_id_rank:gpu_power_watts:max{RANK}",
            "What the GPU of each rank draws: who waits in a collective draws little.",
        ),
        (
            "SMs active",
            "percentunit",
            active("sm"),
            "Share of time in which an SM of the rank's GPU had a warp (Hopper and newer).",
        ),
        (
            "Tensor cores active",
            "percentunit",
            active("tensor"),
            "Share of the peak of the tensor cores of the rank's GPU (Hopper and newer).",
        ),
        (
            "SM clock",
            "hertz",
            f"run_id_rank:gpu_clock_hertz:max{RANK}",
            "A clock below the others' makes a straggler.",
        ),
        (
            "Throttled",
            "percentunit",
            f"run_id_rank:gpu_throttle_seconds:rate5m{RANK}",
            "Share of time in which the clocks were held down, for any reason.",
        ),
        (
            "NVLink sent",
            "Bps",
            f"run_id_rank:gpu_nvlink_transmit_bytes:rate5m{RANK}",
            "What the rank's GPU sends over NVLink.",
        ),
    ):
        canvas.graph(
            title,
            f"{text} The {MOST} greatest.",
            unit,
            Query(most(expr), LEGEND),
            SILENT,
            look=Graph(links=EVIDENCE),
        )
    margin = f"run_id_rank:gpu_temperature_margin_celsius:max{RANK}"
    canvas.graph(
        "Margin to slowdown",
        f"Degrees that the rank's GPU has left until it slows down by its own limit. The {MOST} least.",
        "celsius",
        Query(most(margin, least=True), LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, minimum=None, thresholds=DEGREES_LEFT, ascending=True),
    )
    identity = "run_id, rank, host, instance, index, model, simulated, uuid"
    labels = "uuid, host, instance, index, model, simulated"
    known = f"max by ({labels}) (uuid:gpu_info:latest)"
    state = f"max by ({labels}, state) (uuid_state:gpu_state:active)"
    canvas.sheet(
        "GPUs of the run",
        "Which GPU each rank is on, and what state it is in.",
        [
            columns.RANK,
            columns.HOST,
            Column(source="index", title="GPU"),
            Column(source="model", title="Model"),
            Column(source="state", title="State"),
            columns.SIMULATED,
            Column(source="uuid", title="UUID"),
            columns.INSTANCE_OF_LINKS,
            Column(source="run_id", title="Run"),
        ],
        f"max by ({identity}, state) ({of_rank(state)})\nor on (uuid)\nmax by ({identity}) ({of_rank(known)})",
        width=16,
    )
