"""The board of alerts and Xids: firing alerts, and the history."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards import columns
from rankscope.dashboards.grafana.boards.answers import NO_ANSWER, NO_ANSWER_OR_RULES, rules_loaded
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import NATIVE, SCOPE
from rankscope.dashboards.grafana.boards.frame import frame, gpu_variable, places
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Query
from rankscope.dashboards.grafana.boards.marks import BAD, PLAIN, WARNING, YES_NO, none_is_zero
from rankscope.dashboards.grafana.boards.xids import REMEMBERED_GPU, XIDS_SO_FAR, xid_sheet, xids_in_time

UID: Final = "rankscope-alerts"
FIRING: Final = 'alertstate="firing", instance=~"$instance|"'
"""Alerts about the chosen hosts, and those about runs, which name no instance."""
ABOUT: Final = (
    *("xid", "sxid", "collector", "sensor", "memory", "part", "state", "action", "problem", "reason", "what", "unit"),
    *("pci_bus_id", "device", "port"),
)
"""Labels that distinguish alerts of one name on one host, besides those with a column of their own."""
RULED: Final = f"up{{{SCOPE}}}"


def alerts() -> Canvas:
    """Build the board of alerts and Xids."""
    about = "Alerts that fire, with what they are about; what fired before; Xids and NVSwitch errors."
    canvas = Canvas(frame(UID, "Alerts & Xid", about, dialect=NATIVE, alerts=', instance=~"$instance|"', since="now-24h"))
    for variable in [*places("gpu_info"), gpu_variable(NATIVE)]:
        canvas.board.with_variable(variable)
    _now(canvas)
    _history(canvas)
    _xids(canvas)
    return canvas


def _now(canvas: Canvas) -> None:
    canvas.row("Now")
    rules_loaded(canvas)
    for severity, color in (("critical", BAD), ("warning", WARNING), ("info", PLAIN)):
        canvas.figure(
            f"Firing: {severity}",
            f"Alerts of severity {severity} that fire.",
            "none",
            none_is_zero(f'count(ALERTS{{{FIRING}, severity="{severity}"}})', RULED),
            thresholds=((None, "green"), (1, color)),
            width=5,
        )
    canvas.figure(
        "Pending",
        "Conditions that hold, but not long enough yet to fire.",
        "none",
        none_is_zero('count(ALERTS{alertstate="pending", instance=~"$instance|"})', RULED),
        width=6,
    )
    labels = ", ".join(f'"{label}"' for label in ABOUT)
    canvas.sheet(
        "Firing alerts",
        "What fires, since when, and what it is about. `rankscope alerts explain NAME` prints the runbook.",
        [
            Column(source="alertname", title="Alert"),
            Column(source="severity", title="Severity"),
            Column(source="Value", title="Since", unit="dateTimeAsIso"),
            Column(source="host", title="Host"),
            columns.INSTANCE,
            Column(source="index", title="GPU"),
            Column(source="gpu_uuid", title="UUID"),
            Column(source="about", title="About"),
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
    canvas.graph(
        "Alerts firing",
        "How many of each alert fired.",
        "none",
        Query(f"count by (alertname) (ALERTS{{{FIRING}}})", "{{alertname}}"),
        NO_ANSWER_OR_RULES,
        width=16,
        look=Graph(stacked=True),
    )
    canvas.sheet(
        "Alerts of this time",
        "For what share of the time shown an alert of this name fired: the one that fired longest.",
        [
            Column(source="alertname", title="Alert"),
            Column(source="severity", title="Severity"),
            Column(source="Value", title="Share of the time", unit="percentunit"),
        ],
        f"max by (alertname, severity) (count_over_time(ALERTS{{{FIRING}}}[$__range:$__interval]))"
        " * $__interval_ms / 1000 / $__range_s",
        width=8,
        sort="Share of the time",
    )


def _xids(canvas: Canvas) -> None:
    canvas.row("Xids")
    xid_sheet(canvas, width=24)
    recent = f"{NATIVE.selector('gpu_xid_last_timestamp_seconds')} > time() - $__interval_ms / 1000"
    canvas.graph(
        "GPUs with an Xid",
        "How many GPUs had an Xid within each interval, by code: a burst counts once.",
        "none",
        Query(f"count by (xid) (group by (uuid, xid) ({recent}))", "Xid {{xid}}"),
        NO_ANSWER,
        width=12,
        look=Graph(bars=True, stacked=True, interval="1m"),
    )
    by_gpu = NATIVE.legend + " Xid {{xid}}"
    canvas.graph(
        "Xids by GPU",
        "Xids that were counted in the time up to each moment, by GPU and code.",
        "none",
        Query(f"{xids_in_time(XIDS_SO_FAR)}\n* on (uuid) group_left (host, index) {REMEMBERED_GPU} > 0", by_gpu),
        NO_ANSWER_OR_RULES,
        width=12,
    )
    canvas.sheet(
        "NVSwitch errors",
        "SXids of NVSwitches, counted in the time shown. Fatal ones take every GPU of the host along.",
        [
            columns.INSTANCE,
            Column(source="pci_bus_id", title="Switch"),
            Column(source="sxid", title="SXid"),
            Column(source="severity", title="Severity"),
            Column(source="Value", title="In this time"),
        ],
        f"round(max by (instance, pci_bus_id, sxid, severity) (increase(nvswitch_sxid_errors_total{{{SCOPE}}}[$__range])))",
        width=12,
    )
    canvas.sheet(
        "Can Xids be seen at all",
        "No: the kernel log cannot be read, so only what the driver tells a running exporter is known; or nothing is on disk.",
        [
            Column(source="instance", title="Instance"),
            Column(source="Value #A", title="Kernel log readable", words=YES_NO),
            Column(source="Value #B", title="Journal on disk", words=YES_NO),
        ],
        f"max by (instance) (rankscope_exporter_kernel_log_readable{{{SCOPE}}})",
        f"max by (instance) (rankscope_exporter_xid_journal_durable{{{SCOPE}}})",
        width=12,
    )
