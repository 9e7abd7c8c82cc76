"""Hang report for a terminal, with the answer first for the engineer on call."""

from __future__ import annotations

import textwrap
import time
from typing import Final

from rankscope.analysis.hang.hang_result import HangReport, Operation, StandingRank, Waiting
from rankscope.analysis.hang.hang_wording import doing_text, operation_text
from rankscope.analysis.result.text import GREEN, RED, YELLOW, counted, listing, page, warning_lines, wrapped
from rankscope.base.text import format_duration, ranks_text, span

SHOWN: Final = 8
"""Maximum number of culprits, places where ranks wait, and links of the chain; the JSON has them all."""
FRAMES: Final = 5
_COLORS: Final = {"hang": RED, "no_hang": GREEN, "insufficient_data": YELLOW}


def render_text(report: HangReport, *, width: int = 100, color: bool = False) -> str:
    """Render the answer, the warnings, the culprits with their evidence, the chain, the waiting ranks, and the next actions."""
    parts = [
        "\n".join([report.kind.replace("_", " ").upper(), *textwrap.wrap(report.summary, width)]),
        _source(report, width),
        _culprits(report, width),
        _chain(report, width),
        _waiting(report, width),
        _activity(report, width),
        listing("next", report.next, width),
    ]
    return page(parts, _COLORS[report.kind] if color else None)


def _source(report: HangReport, width: int) -> str:
    attempt = "" if report.attempt is None else f", attempt {report.attempt}"
    by_dumps = report.ranks or (report.ras is None and report.activity is None)
    dumps = [_dumps(report) + attempt] if by_dumps else []
    path = [report.path] if report.ras is None or report.path != report.ras.address else []
    return "\n".join([*path, *dumps, *_ras(report, width), *warning_lines(report.warnings, width)])


def _dumps(report: HangReport) -> str:
    ranks = (
        counted(report.ranks, "rank") if report.world_size is None else f"{report.ranks} of {counted(report.world_size, 'rank')}"
    )
    age_text = "" if report.dumped_unix_ns is None else f", taken {_ago(report.dumped_unix_ns)}"
    return f"dumps of {ranks}{age_text}"


def _ago(unix_ns: int) -> str:
    """Return time and age of a dump; the time alone if it is in the future."""
    age_s = time.time() - unix_ns / 1e9
    return time.strftime("%F %T", time.localtime(unix_ns / 1e9)) + (f", {span(age_s)} ago" if age_s >= 0 else "")


def _ras(report: HangReport, width: int) -> list[str]:
    """Return when and where NCCL RAS was asked, and its own result if the report's is another."""
    ras = report.ras
    if ras is None:
        return []
    when = "asked now" if ras.live else time.strftime("kept at %F %T", time.localtime(ras.asked_unix_ns / 1e9))
    twice = "" if ras.interval_s is None else f", twice in {span(ras.interval_s)}"
    late = f", {counted(ras.timeouts, 'time-out')} while it was collected" if ras.timeouts else ""
    version = f" of NCCL {ras.nccl_version}" if ras.nccl_version else ""
    communicators = counted(ras.communicators, "communicator")
    lines = wrapped(f"NCCL RAS{version} on {ras.address}, {when}{twice}: {communicators}{late}", width, hanging="  ")
    if not report.summary.startswith(ras.summary):
        lines += wrapped(ras.summary, width, indent="  ", hanging="  ")
    return lines


def _culprits(report: HangReport, width: int) -> str:
    lines: list[str] = []
    for culprit in report.evidence[:SHOWN]:
        host = f" on {culprit.host}" if culprit.host else ""
        sure = "" if culprit.certain else " (likely)"
        lines += textwrap.wrap(f"rank {culprit.rank}{host}{sure}: {culprit.detail}", width, subsequent_indent="  ")
        if culprit.last is not None:
            lines += textwrap.wrap(f"  its last: {_described(culprit.last)}", width, subsequent_indent="    ")
            lines += _frames(culprit.last)
    if len(report.evidence) > SHOWN:
        lines.append(f"and {len(report.evidence) - SHOWN} more; --format json has all")
    return "\n".join(lines)


def _chain(report: HangReport, width: int) -> str:
    lines = []
    shown = report.chain if len(report.chain) <= SHOWN else [*report.chain[:2], *report.chain[2 - SHOWN :]]
    for link in shown:
        lines += textwrap.wrap(
            f"rank {link.rank} waits for rank {link.waits_for}, which {_WHY[link.why]}: {operation_text(link.operation)}",
            width,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    if len(shown) < len(report.chain):
        lines.insert(2, f"  … {counted(len(report.chain) - len(shown), 'rank')} between")
    return "\n".join(["chain", *lines]) if len(report.chain) > 1 else ""


_WHY: Final = {
    "not_arrived": "did not come",
    "held_up": "waits in something older",
    "lost_device": "has lost its device",
    "no_dump": "left no dump",
    "untold": "probably did not come",
}


def _waiting(report: HangReport, width: int) -> str:
    places: dict[tuple[str, str, int], list[Waiting]] = {}
    for row in report.waiting:
        places.setdefault((row.operation.op, row.operation.group, row.operation.sequence), []).append(row)
    lines: list[str] = []
    for rows in sorted(places.values(), key=lambda rows: (-len(rows), rows[0].rank))[:SHOWN]:
        first = rows[0]
        subject = f"{ranks_text([row.rank for row in rows])} {'waits' if len(rows) == 1 else 'wait'}"
        for_whom = f" for {ranks_text(first.waits_for)}" if first.waits_for else ", to which all came"
        text = f"{subject}{for_whom}{_since(rows)}: {_described(first.operation)}"
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
        lines += _frames(rows[0].operation)
    if len(places) > SHOWN:
        lines.append(f"  and {counted(len(places) - SHOWN, 'more place')}; --format json has all")
    return "\n".join(["who waits in what", *lines]) if lines else ""


def _activity(report: HangReport, width: int) -> str:
    """Return what the ranks are doing, and the result by that alone if the report's is another."""
    activity = report.activity
    if activity is None:
        return ""
    places: dict[tuple[object, ...], list[StandingRank]] = {}
    for row in activity.ranks:
        places.setdefault((row.step, row.phase, row.section, row.waiting, row.process), []).append(row)
    lines = [] if report.summary.startswith(activity.summary) else wrapped(activity.summary, width, indent="  ", hanging="    ")
    for rows in sorted(places.values(), key=lambda rows: (-len(rows), rows[0].rank))[:SHOWN]:
        longest = max(rows, key=lambda row: row.since_s)
        text = f"{ranks_text([row.rank for row in rows])}: {doing_text(longest)}"
        lines += wrapped(text, width, indent="  ", hanging="    ")
    if len(places) > SHOWN:
        lines.append(f"  and {counted(len(places) - SHOWN, 'more place')}; --format json has all")
    if activity.unknown:
        lines += wrapped(f"{ranks_text(activity.unknown)}: not known", width, indent="  ", hanging="    ")
    return "\n".join(["what the ranks are doing", *lines])


def _since(rows: list[Waiting]) -> str:
    longest = max((row.waited_s for row in rows if row.waited_s is not None), default=None)
    return "" if longest is None else f", {format_duration(longest * 1e6)} when it was dumped"


def _described(operation: Operation) -> str:
    sizes = ", ".join(
        f"{'x'.join(map(str, size)) or 'scalar'} {dtype}".strip()
        for size, dtype in zip(operation.input_sizes[:3], [*operation.input_dtypes[:3], "", "", ""], strict=False)
    )
    return f"{operation_text(operation)}, {operation.state}" + (f", {sizes}" if sizes else "")


def _frames(operation: Operation) -> list[str]:
    return [f"      {frame}" for frame in operation.frames[:FRAMES]]
