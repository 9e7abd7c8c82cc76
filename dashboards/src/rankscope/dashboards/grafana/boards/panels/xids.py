"""Xids: their number in the shown time, and the table on the boards of one host and of alerts."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import ValueMap

from rankscope.dashboards.grafana.boards.panels import columns
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.kinds import BoardColumn
from rankscope.dashboards.grafana.boards.panels.marks import code_words
from rankscope.dashboards.grafana.boards.panels.promql import RANGE, gpu_values
from rankscope.exporter.xids import XIDS

_BY = "host, index, uuid, instance, xid"
XIDS_SO_FAR: Final = "uuid_xid:gpu_xid_errors:nonzero"
"""Recording rule of the Xid counters above zero."""
REMEMBERED_GPU: Final = 'uuid:gpu_info:latest{instance=~"$instance", uuid=~"$gpu"}'
"""One identity per GPU, also for a GPU that has disappeared, as after some Xids."""


def xids_in_time(total: str) -> str:
    """Return the increase of a counter of Xids since the begin of the shown time, or all of it if it did not exist then.

    ``increase`` would miss the first Xid of a code, since its series does not exist before.
    """
    return f"clamp_min({total} - ({total} offset {RANGE} or 0 * {total}), 0)"


def xid_sheet(canvas: Canvas) -> None:
    """Add the table of all Xids that the exporters remember: last time, count, and the job at the time."""
    last = f"max by ({_BY}) ({gpu_values('gpu_xid_last_timestamp_seconds')})"
    job = f"max by ({_BY}, job_id) ({gpu_values('gpu_xid_last_job_info')})"
    rows = f"(\n{last}\n* on ({_BY}) group_left (job_id) {job}\nor on ({_BY})\n{last}\n)"
    in_time = f"0 * {rows}\n+ on (uuid, xid) group_left () {xids_in_time(XIDS_SO_FAR)}"
    canvas.sheet(
        "Xids",
        "Xid errors by GPU and code: the last time, the job it happened in, and how many were counted in the time shown; "
        "of a GPU that was not watched before, all that its exporter remembers.",
        [
            columns.HOST,
            *columns.labels(index="GPU"),
            BoardColumn("xid", "Xid", words=xid_words()),
            BoardColumn(f"1000 * {rows}", "Last time", "dateTimeAsIso"),
            BoardColumn(in_time, "In this time"),
            *columns.labels(job_id="Job then", uuid="UUID"),
            columns.INSTANCE_OF_LINKS,
        ],
        sort="Last time",
    )


def xid_words() -> ValueMap:
    """Return the texts of Xid codes with their names, from the exporter's table."""
    return code_words([(str(xid.code), f"{xid.code} {xid.name.replace('_', ' ')}") for xid in XIDS.values()])
