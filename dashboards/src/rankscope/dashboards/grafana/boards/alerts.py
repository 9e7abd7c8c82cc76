"""The board of alerts and Xids: firing alerts, and the history."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.panels import columns
from rankscope.dashboards.grafana.boards.panels.availability import NO_ANSWER, NO_ANSWER_OR_RULES, RULES_LOADED
from rankscope.dashboards.grafana.boards.panels.board import gpu_variable, new_board, target_variables
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.kinds import VALUE, BoardColumn, Query
from rankscope.dashboards.grafana.boards.panels.marks import BAD, PLAIN, WARNING, YES_NO, none_is_zero
from rankscope.dashboards.grafana.boards.panels.promql import GPU_LEGEND, SCOPE, gpu_series
from rankscope.dashboards.grafana.boards.panels.xids import REMEMBERED_GPU, XIDS_SO_FAR, xid_sheet, xids_in_time

UID: Final = "rankscope-alerts"
FIRING: Final = 'alertstate="firing", instance=~"$instance|"'
"""Alerts about the chosen hosts, and those about runs, which name no instance."""
ABOUT: Final = (
    *("xid", "sxid", "collector", "sensor", "memory", "part", "state", "action", "problem", "reason", "what", "unit"),
    *("pci_bus_id", "device", "port"),
)
"""Labels that distinguish alerts of one name on one host, besides those with a column of their own."""


def alerts() -> Canvas:
    """Build the board of alerts and Xids."""
    about = "Alerts that fire, with what they are about; what fired before; Xids and NVSwitch errors."
    canvas = new_board(UID, "Alerts & Xid", about, *target_variables("gpu_info"), gpu_variable(), since="now-24h")
    _now(canvas)
    _history(canvas)
    _xids(canvas)
    return canvas


def _now(canvas: Canvas) -> None:
    def counted(matchers: str) -> str:
        return none_is_zero(f"count(ALERTS{{{matchers}}})", f"up{{{SCOPE}}}")

    canvas.row("Now")
    canvas.figures(RULES_LOADED)
    for severity, color in (("critical", BAD), ("warning", WARNING), ("info", PLAIN)):
        expr = counted(f'{FIRING}, severity="{severity}"')
        settings = {"thresholds": ((None, "green"), (1, color)), "width": 5}
        canvas.figures((f"Firing: {severity}", "none", expr, settings, f"Alerts of severity {severity} that fire."))
    pending = counted('alertstate="pending", instance=~"$instance|"')
    canvas.figures(("Pending", "none", pending, {"width": 6}, "Conditions that hold, but not long enough yet to fire."))
    labels = ", ".join(f'"{label}"' for label in ABOUT)
    canvas.sheet(
        "Firing alerts",
        "What fires, since when, and what it is about. `rankscope alerts explain NAME` prints the runbook.",
        [
            *columns.labels(alertname="Alert", severity="Severity"),
            BoardColumn(VALUE, "Since", "dateTimeAsIso"),
            *columns.labels(host="Host"),
            columns.INSTANCE,
            *columns.labels(index="GPU", gpu_uuid="UUID", about="About"),
            columns.RUN,
            columns.RANK,
            columns.SIMULATED,
        ],
        f"1000 * max by (alertname, severity, host, instance, index, gpu_uuid, about, run_id, rank, simulated) (label_join(\n"
        f"  ALERTS_FOR_STATE and ignoring (alertstate) ALERTS{{{FIRING}}},\n"
        f'  "about", " ", {labels}\n))',
        sort="Since",
    )


def _history(canvas: Canvas) -> None:
    canvas.row("History")
    by_name = Query(f"count by (alertname) (ALERTS{{{FIRING}}})", "{{alertname}}")
    canvas.graph("Alerts firing", "none", "How many of each alert fired.", by_name, NO_ANSWER_OR_RULES, width=16, stacked=True)
    canvas.sheet(
        "Alerts of this time",
        "For what share of the time shown an alert of this name fired: the one that fired longest.",
        [*columns.labels(alertname="Alert", severity="Severity"), BoardColumn(VALUE, "Share of the time", "percentunit")],
        f"max by (alertname, severity) (count_over_time(ALERTS{{{FIRING}}}[$__range:$__interval]))"
        " * $__interval_ms / 1000 / $__range_s",
        width=8,
        sort="Share of the time",
    )


def _xids(canvas: Canvas) -> None:
    recent = f"{gpu_series('gpu_xid_last_timestamp_seconds')} > time() - $__interval_ms / 1000"
    by_gpu = f"{xids_in_time(XIDS_SO_FAR)}\n* on (uuid) group_left (host, index) {REMEMBERED_GPU} > 0"
    canvas.row("Xids")
    xid_sheet(canvas)
    canvas.graphs(
        None,
        ("GPUs with an Xid", "none", [Query(f"count by (xid) (group by (uuid, xid) ({recent}))", "Xid {{xid}}"), NO_ANSWER],
         {"width": 12, "bars": True, "stacked": True, "interval": "1m"},
         "How many GPUs had an Xid within each interval, by code: a burst counts once."),
        ("Xids by GPU", "none", [Query(by_gpu, GPU_LEGEND + " Xid {{xid}}"), NO_ANSWER_OR_RULES], {"width": 12},
         "Xids that were counted in the time up to each moment, by GPU and code."),
    )  # fmt: skip
    canvas.sheet(
        "NVSwitch errors",
        "SXids of NVSwitches, counted in the time shown. Fatal ones take every GPU of the host along.",
        [
            columns.INSTANCE,
            *columns.labels(pci_bus_id="Switch", sxid="SXid", severity="Severity"),
            BoardColumn(VALUE, "In this time"),
        ],
        f"round(max by (instance, pci_bus_id, sxid, severity) (increase(nvswitch_sxid_errors_total{{{SCOPE}}}[$__range])))",
        width=12,
    )
    canvas.sheet(
        "Can Xids be seen at all",
        "No: the kernel log cannot be read, so only what the driver reports to an exporter is known; or nothing is on disk.",
        [
            *columns.labels(instance="Instance"),
            *(
                BoardColumn(f"max by (instance) (rankscope_exporter_{name}{{{SCOPE}}})", title, words=YES_NO)
                for name, title in (("kernel_log_readable", "Kernel log readable"), ("xid_journal_durable", "Journal on disk"))
            ),
        ],
        width=12,
    )
