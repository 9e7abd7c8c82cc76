"""Details of ranks for a terminal: ``rankscope analyze --detail``."""

from __future__ import annotations

import textwrap
from typing import Final

from rankscope.analysis.result.analysis import Analysis, RankResult
from rankscope.analysis.result.detail import CommunicationPart, Contention, CopyPart, LaunchPart, RankDetail, Recompute
from rankscope.analysis.result.text import UNKNOWN, aligned, cell, counted, share_cell, size, table
from rankscope.base.text import format_duration, shortened

SHOWN_RANKS: Final = 2
SHOWN_ROWS: Final = 12
"""Number of rows shown of each table; the JSON has more."""


def render_details(analysis: Analysis, width: int) -> str:
    """Render the tables of the ranks that the verdict names, else of the first ranks; empty where no rank has details."""
    having = [row for row in analysis.ranks if row.detail is not None or row.class_us is not None]
    named = set(analysis.verdict.ranks)
    shown = sorted(having, key=lambda row: (row.rank not in named, row.rank))[:SHOWN_RANKS]
    parts = [_window_details(row, width) if row.detail is None else _rank(row, row.detail, width) for row in shown]
    if len(having) > len(shown):
        not_shown = f"details of {counted(len(having) - len(shown), 'more rank')} not shown; --format json has all"
        parts.append(textwrap.fill(not_shown, width))
    return "\n\n".join(parts)


def _rank(row: RankResult, detail: RankDetail, width: int) -> str:
    sentences = (
        *_communication(row.communication_parts),
        *_launches(detail.launch),
        *_recompute(detail.recompute),
        *_contention(detail.contention),
    )
    parts = [
        f"rank {row.rank} in detail, a window of {format_duration(detail.window_us)}",
        _devices(detail) if len(detail.devices) > 1 else "",
        _streams(detail),
        _classes(detail),
        _copies(detail),
        _unclassified(detail, width),
        _steps(detail) if len(detail.steps) > 1 else "",
        "\n".join(line for sentence in sentences for line in textwrap.wrap(sentence, width, subsequent_indent="  ")),
    ]
    return "\n\n".join(part for part in parts if part)


def _window_details(row: RankResult, width: int) -> str:
    """Render the details that the windows of a run keep."""
    total = row.window_us or 0.0
    rows = [["class", "busy", "of window"]]
    rows += [
        [name, format_duration(busy), share_cell(busy, total)] for name, busy in list((row.class_us or {}).items())[:SHOWN_ROWS]
    ]
    facts = (
        (row.recompute_us, "computed again for activation checkpointing"),
        (row.idle_starved_us, "idle as nothing was launched"),
        (row.idle_queued_us, "idle with work queued"),
    )
    times = ", ".join(f"{format_duration(value)} {wording}" for value, wording in facts if value is not None)
    parts = [
        f"rank {row.rank} in detail, profiled windows of {format_duration(total)} in all",
        "\n".join(table(rows, len(row.class_us or {}), left_columns=(0,))),
        textwrap.fill(times, width, subsequent_indent="  "),
    ]
    return "\n\n".join(part for part in parts if part)


def _devices(detail: RankDetail) -> str:
    rows = [
        [cell(part.device), *(share_cell(getattr(part, name), part.window_us) for name in _PARTS)]
        for part in detail.devices[:SHOWN_ROWS]
    ]
    return "\n".join(aligned([["device", "compute", "overlap", "exposed", "copies", "idle"], *rows]))


def _streams(detail: RankDetail) -> str:
    rows = [["stream", "mostly", "events", "busy", "of window", "beside others", "alone"]]
    many = len(detail.devices) > 1
    for stream in detail.streams[:SHOWN_ROWS]:
        name = f"{cell(stream.device)}/{cell(stream.stream)}" if many else cell(stream.stream)
        times = (
            format_duration(stream.busy_us),
            share_cell(stream.busy_us, detail.window_us),
            format_duration(stream.overlapped_us),
        )
        rows.append([name, _KINDS[stream.kind], str(stream.events), *times, format_duration(stream.exposed_us)])
    return "\n".join(table(rows, len(detail.streams), left_columns=(1,)))


_KINDS: Final = {"compute": "compute", "communication": "communication", "memcpy": "copies"}


def _classes(detail: RankDetail) -> str:
    rows = [["class", "events", "busy", "of window", "under communication"]]
    for part in detail.classes[:SHOWN_ROWS]:
        hidden = f"{format_duration(part.overlapped_us)}{' of compute' if part.name == 'communication' else ''}"
        rows.append(
            [part.name, str(part.events), format_duration(part.busy_us), share_cell(part.busy_us, detail.window_us), hidden]
        )
    return "\n".join(table(rows, len(detail.classes), left_columns=(0,)))


def _copies(detail: RankDetail) -> str:
    rows = [["copies", "memory", "events", "busy", "exposed", "size", "GB/s"]]
    for copy in detail.copies[:SHOWN_ROWS]:
        name = f"{copy.direction}, collective" if copy.collective else copy.direction
        times = (format_duration(copy.busy_us), format_duration(copy.exposed_us))
        rate = cell(copy.bytes_per_second, lambda rate: f"{rate / 1e9:.3g}")
        rows.append([name, copy.memory or UNKNOWN, str(copy.events), *times, _size(copy), rate])
    return "\n".join(table(rows, len(detail.copies), left_columns=(0, 1)))


def _size(copy: CopyPart) -> str:
    if copy.bytes is None:
        return UNKNOWN
    # Where only some copies have a known size, the sum is a lower bound.
    return size(copy.bytes) if copy.sized_events == copy.events else f"> {size(copy.bytes)}"


def _unclassified(detail: RankDetail, width: int) -> str:
    if not detail.unclassified:
        return ""
    title = "kernels of unknown kind beside the main stream; where they communicate, say so by --communication-pattern REGEX"
    rows = [["stream", "events", "busy", "longest", "name"]]
    rows += [
        [
            cell(kernel.stream),
            str(kernel.events),
            format_duration(kernel.busy_us),
            format_duration(kernel.longest_us),
            kernel.name,
        ]
        for kernel in detail.unclassified[:SHOWN_ROWS]
    ]
    return "\n".join([*textwrap.wrap(title, width), *(shortened(line, width) for line in aligned(rows, left_columns=(4,)))])


def _steps(detail: RankDetail) -> str:
    rows = [["step", "window", "compute", "overlap", "exposed", "copies", "idle", "starved"]]
    for step in detail.steps[:SHOWN_ROWS]:
        total = step.window_us
        sums = [sum(getattr(device, name) for device in step.devices) / len(step.devices) for name in _PARTS]
        starved = share_cell(None if step.launch is None else step.launch.idle_starved_us, total)
        rows.append([cell(step.step), format_duration(total), *(share_cell(part, total) for part in sums), starved])
    return "\n".join(table(rows, len(detail.steps)))


_PARTS: Final = ("compute_us", "overlap_us", "exposed_communication_us", "exposed_memcpy_us", "idle_us")


def _communication(part: CommunicationPart | None) -> list[str]:
    if part is None:
        return []
    transfer, wait = part.transfer_overlap_us + part.transfer_exposed_us, part.wait_overlap_us + part.wait_exposed_us
    hidden, waited = share_cell(part.transfer_overlap_us, transfer), share_cell(part.wait_overlap_us, wait)
    moving = f"{format_duration(transfer)} transferring, {hidden} of it under compute"
    return [f"communication: {moving}; {format_duration(wait)} waiting for later ranks, {waited} of it under compute"]


def _launches(launch: LaunchPart | None) -> list[str]:
    if launch is None:
        return []
    idle = launch.idle_queued_us + launch.idle_launching_us + launch.idle_starved_us + launch.idle_unknown_us
    reasons = (
        (launch.idle_starved_us, "as nothing was launched"),
        (launch.idle_launching_us, "while a call was launching"),
        (launch.idle_queued_us, "with work queued"),
        (launch.idle_unknown_us, "before work whose launch is not in the trace"),
    )
    shares = ", ".join(f"{share_cell(part, idle)} {reason}" for part, reason in reasons if part)
    sentences = [f"idle {format_duration(idle)}{': ' if shares else ''}{shares}"]
    if launch.queue_delay:
        delays = (
            f"{_KINDS[delay.kind]} {format_duration(delay.median_us)} (90% within {format_duration(delay.p90_us)})"
            for delay in launch.queue_delay
        )
        sentences.append(f"from launch to start, median: {', '.join(delays)}")
    if launch.graph_events:
        started = f"started {launch.graph_events} of {launch.events} kernels and copies"
        sentences.append(f"{launch.graph_launches} launches of device graphs {started}")
    return sentences


def _recompute(part: Recompute | None) -> list[str]:
    if part is None or not part.operators:
        return []
    share = "" if part.compute_share is None else f", {part.compute_share:.1%} of compute"
    return [f"recompute: {format_duration(part.busy_us)}{share}, by {part.operators} forward operators inside backward"]


def _contention(part: Contention | None) -> list[str]:
    if part is None or not part.overlapped:
        return []
    if part.slowdown is None:
        return [f"compute under communication: too few of its {part.overlapped} kernels ran alone, too, to compare"]
    return [
        (
            f"compute under communication takes {part.slowdown:.2f} times as long as the same kernels alone "
            f"({part.compared} of {part.overlapped} kernels compared)"
        )
    ]
