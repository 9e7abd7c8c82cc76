"""Xids: how often in the time shown, and the table on the board of one host and on that of alerts."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import ValueMap

from rankscope.dashboards.grafana.boards import columns
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import NATIVE, RANGE
from rankscope.dashboards.grafana.boards.kinds import Column
from rankscope.dashboards.grafana.boards.marks import code_words
from rankscope.exporter.xids import XIDS

_BY = "host, index, uuid, instance, xid"
XIDS_SO_FAR: Final = "uuid_xid:gpu_xid_errors:nonzero"
"""Counters of Xids above zero, as the rules record them."""
REMEMBERED_GPU: Final = 'uuid:gpu_info:latest{instance=~"$instance", uuid=~"$gpu"}'
"""Exactly one identity for each GPU, also of one that is not there any more, as after some Xids."""


def xids_in_time(total: str) -> str:
    """By how much a counter of Xids is greater than at the beginning of the time shown; all of it where it was not there then.

    ``increase`` would leave out the first of a code, before which there is nothing.
    """
    return f"clamp_min({total} - ({total} offset {RANGE} or 0 * {total}), 0)"


def xid_sheet(canvas: Canvas, *, width: int) -> None:
    """Every Xid that a GPU ever had, as far as its exporter remembers: last time, how often, and the job it happened in."""
    last = f"max by ({_BY}) ({NATIVE.value('gpu_xid_last_timestamp_seconds')})"
    job = f"max by ({_BY}, job_id) ({NATIVE.value('gpu_xid_last_job_info')})"
    rows = f"(\n{last}\n* on ({_BY}) group_left (job_id) {job}\nor on ({_BY})\n{last}\n)"
    canvas.sheet(
        "Xids",
        "Xid errors by GPU and code: the last time, the job it happened in, and how many were counted in the time shown; "
        "of a GPU that was not watched before, all that its exporter remembers.",
        [
            columns.HOST,
            Column(source="index", title="GPU"),
            Column(source="xid", title="Xid", words=xid_words()),
            Column(source="Value #A", title="Last time", unit="dateTimeAsIso"),
            Column(source="Value #B", title="In this time"),
            Column(source="job_id", title="Job then"),
            Column(source="uuid", title="UUID"),
            columns.INSTANCE_OF_LINKS,
        ],
        f"1000 * {rows}",
        f"0 * {rows}\n+ on (uuid, xid) group_left () {xids_in_time(XIDS_SO_FAR)}",
        width=width,
        sort="Last time",
    )


def xid_words() -> ValueMap:
    """Codes with their names, from the exporter's table."""
    return code_words([(str(xid.code), f"{xid.code} {xid.name.replace('_', ' ')}") for xid in XIDS.values()])
