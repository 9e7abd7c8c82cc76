"""Rendering of waterfall, throughput, memory, advice and bandwidths for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from rankscope.analysis.result.analysis import Analysis, CollectiveMatching
from rankscope.analysis.result.collectives import CollectiveBandwidth, DirectedWait
from rankscope.analysis.result.costs import WaterfallPart
from rankscope.analysis.result.text import aligned, cell, counted, fitting, is_among, reasons_text, size, wrapped
from rankscope.base.text import format_duration, shortened

BARS: Final = 24
"""Width of the whole step in the waterfall, in columns."""
SHOWN_ADVICE: Final = 3
_CLEARLY: Final = 1.02
"""Ratio of the extent over all ranks to the mean step above which the extent is shown, too."""
_MIB: Final = 1 << 20


def waterfall_text(analysis: Analysis, width: int) -> str:
    """Return one bar per part, each starting where the previous one ends, and the names of unknown parts."""
    waterfall = analysis.waterfall
    if waterfall is None:
        return ""
    typical = "" if analysis.rare_steps is None else "typical "
    count = f"mean of {waterfall.steps:,} {typical}steps" if waterfall.unit == "step" else "mean over the ranks"
    if waterfall.extent_us is not None and waterfall.extent_us > _CLEARLY * waterfall.step_us:
        count += f"; {format_duration(waterfall.extent_us)} from the first start on any to the last end on any"
    lines = textwrap.wrap(
        f"where the {waterfall.unit} goes: {format_duration(waterfall.step_us)} ({count})", width, subsequent_indent="  "
    )
    shown = [part for part in waterfall.parts if part.us is not None and (part.share or 0) >= 0.0005]
    label = max((len(_label(part)) for part in shown), default=0)
    before = 0.0
    for part in shown:
        share = part.share or 0.0
        start, end = round(before * BARS), round((before + share) * BARS)
        bar = " " * start + "#" * (end - start)
        before += share
        source = "" if part.source is None else f"  {part.source}"
        lines.append(
            f"  {_label(part).ljust(label)}  {share:6.1%}  {format_duration(part.us or 0.0):>7}  |{bar.ljust(BARS)}|{source}"
        )
    unknown = [part for part in waterfall.parts if part.us is None and part.name not in ("pipeline_bubble", "ideal")]
    if unknown:
        names = ", ".join(_label(part) for part in unknown)
        lines += textwrap.wrap(f"not known: {names}", width, initial_indent="  ", subsequent_indent="    ")
        for note in dict.fromkeys(part.note for part in unknown if part.note is not None):
            lines += textwrap.wrap(note, width, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def throughput_text(analysis: Analysis, width: int) -> str:
    """Return the rates and MFU, on one line if they fit."""
    throughput = analysis.throughput
    if throughput is None:
        return ""
    facts = []
    for rate, noun in ((throughput.samples_per_second, "samples"), (throughput.tokens_per_second, "tokens")):
        if rate is not None:
            facts.append(f"{rate:,.4g} {noun}/s" if rate < 1000 else f"{rate:,.0f} {noun}/s")
    if throughput.flops_per_second_per_rank is not None:
        facts.append(f"{throughput.flops_per_second_per_rank / 1e12:.3g} TFLOP/s per rank")
    if throughput.mfu is not None:
        facts.append(f"MFU {throughput.mfu:.1%} of {throughput.gpu_name}'s {throughput.peak_dtype} peak")
    of = "" if analysis.rare_steps is None else " (in typical steps)"
    return "\n".join(textwrap.wrap(f"throughput {' · '.join(facts)}{of}", width)) if facts else ""


def memory_text(analysis: Analysis, width: int) -> str:
    """Return the peak of the rank with the highest peak memory."""
    memory = analysis.memory
    if memory is None:
        return ""
    lines: list[str] = []
    peaks = [(row.peak_allocated_bytes, row) for row in memory.ranks if row.peak_allocated_bytes is not None]
    if peaks:
        peak, row = max(peaks, key=lambda peak_row: peak_row[0])
        of = "" if row.peak_share is None else f" ({row.peak_share:.0%} of the device)"
        reserved = "" if row.reserved_bytes is None else f", {size(row.reserved_bytes)} reserved"
        unused = "" if row.fragmentation is None else f", {row.fragmentation:.0%} of it beyond the peak"
        retries = f", {row.allocator_retries} allocator retries" if row.allocator_retries else ""
        lines += textwrap.wrap(f"memory of rank {row.rank}: peak {size(peak)}{of}{reserved}{unused}{retries}", width)
    return "\n".join(lines)


def leak_text(analysis: Analysis, width: int) -> str:
    """Return the first ``SHOWN_ADVICE`` leaks of memory."""
    lines: list[str] = []
    growth = [] if analysis.memory is None else analysis.memory.growth
    for leak in [row for row in growth if row.leaking][:SHOWN_ADVICE]:
        where = "on the device" if leak.kind == "device" else "on the host"
        rate, low, high = (
            _mib(value) for value in (leak.bytes_per_1000_steps, leak.low_bytes_per_1000_steps, leak.high_bytes_per_1000_steps)
        )
        full = "" if leak.steps_until_full is None else f"; full in at most {leak.steps_until_full:,} steps"
        text = f"leak: rank {leak.rank} grows {where} by {rate} MiB per 1,000 steps ({low} to {high}){full}"
        lines += textwrap.wrap(text, width, subsequent_indent="  ")
    return "\n".join(lines)


def advice_text(analysis: Analysis, next_actions: Sequence[str], width: int) -> str:
    """Return the first three pieces of advice, the most that can be saved first; the JSON has all.

    Advice that ``next_actions``, printed elsewhere, already give is left out.
    """
    advice = [row for row in analysis.advice if not is_among(row, next_actions)]
    if not advice:
        return ""
    unit = "step" if analysis.waterfall is None else analysis.waterfall.unit
    lines = ["what to try" if len(advice) == len(analysis.advice) else "what else to try"]
    for row in advice[:SHOWN_ADVICE]:
        bound = "" if row.gain_share_at_most is None else f"at most {row.gain_share_at_most:.0%} of the {unit}: "
        lines += wrapped(f"{bound}{row.action}", width, indent="  ", hanging="    ")
    if len(advice) > SHOWN_ADVICE:
        more = f"and {len(advice) - SHOWN_ADVICE} more in --format json, each with its evidence and how to check it"
        lines += wrapped(more, width, indent="  ", hanging="    ")
    return "\n".join(lines)


def _mib(value: float) -> str:
    return f"{value / _MIB:.3g}" if abs(value) < 999 * _MIB else f"{value / _MIB:,.0f}"


def _label(part: WaterfallPart) -> str:
    return "waiting for later ranks" if part.name == "straggler_wait" else part.name.replace("_", " ")


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
            lines += textwrap.wrap(f"{title}: {reasons_text(reasons)}", width)
    return "\n".join(lines)


def _rows(rows: list[CollectiveBandwidth], width: int) -> list[str]:
    shown = [row for row in rows if row.transfer_us is not None or row.bus_at_least_gb_s is not None][:SHOWN_ROWS]
    if not shown:
        return []
    header = ["collective", "ranks", "size", "count", "transfer", "wait", "bus GB/s", "expected", "share"]
    cells = [[_name(row), *_figures(row)] for row in shown]
    lines = textwrap.wrap("collectives: the transfer alone, without waiting; medians", width)
    lines += aligned(fitting([header, *cells], width, _DISPENSABLE), left_columns=(0,))
    if (more := len(rows) - len(shown)) > 0:
        lines += textwrap.wrap(f"{counted(more, 'more row')} not shown; --format json has all", width)
    if any(row.bus_gb_s is None and row.bus_at_least_gb_s is not None for row in shown):
        lines += textwrap.wrap("≥: waiting counted as transfer, for other ranks' side is not at hand", width)
    if any(row.bound_by == "latency" for row in shown):
        lines += textwrap.wrap("short: over before the rate of its link matters", width)
    reasons = dict.fromkeys(row.expected_unknown for row in shown if row.bytes is not None and row.expected_unknown is not None)
    for reason in reasons:
        lines += textwrap.wrap(f"nothing to expect: {reason}", width, subsequent_indent="  ")
    return lines


def _name(row: CollectiveBandwidth) -> str:
    return shortened(row.op if row.group in ("cpu", "0") else f"{row.op} {row.group}", 22)


def _figures(row: CollectiveBandwidth) -> list[str]:
    at_least = cell(row.bus_at_least_gb_s, lambda rate: f"≥ {rate:.3g}")
    return [
        cell(row.group_size),
        cell(row.bytes, size),
        str(row.count),
        cell(row.transfer_us, format_duration),
        cell(row.wait_us, format_duration),
        at_least if row.bus_gb_s is None else f"{row.bus_gb_s:.3g}",
        cell(row.expected_gb_s, ".4g"),
        "short" if row.bound_by == "latency" else cell(row.share, ".0%"),
    ]


def _waits(waits: list[DirectedWait], width: int) -> list[str]:
    lines: list[str] = []
    for row in waits[:SHOWN_WAITS]:
        times = "once" if row.count == 1 else f"{row.count} times"
        lines += textwrap.wrap(
            f"{row.op}: rank {row.waiter} waited {format_duration(row.wait_us)} for rank {row.origin}, {times}", width
        )
    if len(waits) > SHOWN_WAITS:
        lines += textwrap.wrap(f"and {counted(len(waits) - SHOWN_WAITS, 'more pair')} of ranks", width)
    return lines
