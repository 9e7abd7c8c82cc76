"""Rendering of bandwidths of collectives, and of waits in sends and operations with a root, for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Final

from rankscope.analysis.bandwidth_result import CollectiveBandwidth, DirectedWait
from rankscope.analysis.result import CollectiveMatching
from rankscope.analysis.table import aligned, fitting
from rankscope.analysis.wording import UNKNOWN, size
from rankscope.base.text import duration

SHOWN_ROWS: Final = 8
SHOWN_WAITS: Final = 4
_DISPENSABLE: Final = ("count", "wait", "ranks")
"""Columns dropped on a narrow terminal, in this order."""


def bandwidth_table(collectives: CollectiveMatching, width: int) -> str:
    """Return the costliest rows, reasons for missing figures, the longest waits, and counts of excluded and unmatched instances.

    The text is empty if there is none of these.
    """
    lines = [*_rows(collectives.by_op, width), *_waits(collectives.waits, width)]
    for title, reasons in (("left out", collectives.excluded), ("not matched", collectives.unmatched_by)):
        if reasons:
            lines += textwrap.wrap(f"{title}: {_counted(reasons)}", width)
    return "\n".join(lines)


def _rows(rows: list[CollectiveBandwidth], width: int) -> list[str]:
    shown = [row for row in rows if row.transfer_us is not None or row.bus_at_least_gb_s is not None][:SHOWN_ROWS]
    if not shown:
        return []
    header = ["collective", "ranks", "size", "count", "transfer", "wait", "bus GB/s", "expected", "share"]
    cells = [[_name(row), *_figures(row)] for row in shown]
    lines = textwrap.wrap("collectives: the transfer alone, without waiting; medians", width)
    lines += aligned(fitting([header, *cells], width, _DISPENSABLE), left=(0,))
    if (more := len(rows) - len(shown)) > 0:
        lines += textwrap.wrap(f"{more} more row{'s' * (more > 1)} not shown; --format json has all", width)
    if any(row.bus_gb_s is None and row.bus_at_least_gb_s is not None for row in shown):
        lines += textwrap.wrap("≥: waiting counted as transfer, for other ranks' side is not at hand", width)
    if any(row.bound_by == "latency" for row in shown):
        lines += textwrap.wrap("short: over before the rate of its link matters", width)
    reasons = dict.fromkeys(row.expected_unknown for row in shown if row.bytes is not None and row.expected_unknown is not None)
    for reason in reasons:
        lines += textwrap.wrap(f"nothing to expect: {reason}", width, subsequent_indent="  ")
    return lines


def _name(row: CollectiveBandwidth, limit: int = 22) -> str:
    group = "" if row.group in ("cpu", "0") else f" {row.group}"
    text = f"{row.op}{group}"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _figures(row: CollectiveBandwidth) -> list[str]:
    if row.bus_gb_s is not None:
        bus = f"{row.bus_gb_s:.3g}"
    else:
        bus = UNKNOWN if row.bus_at_least_gb_s is None else f"≥ {row.bus_at_least_gb_s:.3g}"
    return [
        UNKNOWN if row.group_size is None else str(row.group_size),
        UNKNOWN if row.bytes is None else size(row.bytes),
        str(row.count),
        UNKNOWN if row.transfer_us is None else duration(row.transfer_us),
        UNKNOWN if row.wait_us is None else duration(row.wait_us),
        bus,
        UNKNOWN if row.expected_gb_s is None else f"{row.expected_gb_s:.4g}",
        "short" if row.bound_by == "latency" else UNKNOWN if row.share is None else f"{row.share:.0%}",
    ]


def _waits(waits: list[DirectedWait], width: int) -> list[str]:
    lines: list[str] = []
    for row in waits[:SHOWN_WAITS]:
        times = "once" if row.count == 1 else f"{row.count} times"
        lines += textwrap.wrap(
            f"{row.op}: rank {row.waiter} waited {duration(row.wait_us)} for rank {row.origin}, {times}", width
        )
    if len(waits) > SHOWN_WAITS:
        lines += textwrap.wrap(f"and {len(waits) - SHOWN_WAITS} more pairs of ranks", width)
    return lines


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in reasons.items())
