"""Tracks above all ranks: the verdict, the findings, and notes about the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rankscope.analysis.perfetto.chrome_json import TraceWriter
from rankscope.analysis.perfetto.export_result import ExportClock, clock_sentence
from rankscope.analysis.result.analysis import Analysis, Finding


def write_annotations(
    writer: TraceWriter,
    analysis: Analysis | None,
    clock: ExportClock,
    *,
    step_times: Mapping[int, tuple[int, int]],
    extent: tuple[int, int],
    left_out: Sequence[str],
) -> None:
    """Write the process above all others.

    ``step_times``: exported step to its first start and last end. ``extent``: first start and last end of the file.
    """
    simulated = analysis is not None and analysis.source.simulated
    pid = writer.process("rankscope" + (" · simulated" if simulated else ""), order=-1)
    if analysis is not None:
        verdict = analysis.verdict
        span = _span(verdict.steps, step_times, extent)
        writer.track(pid, "verdict").slice(verdict.summary, *span, _stated(verdict), kind="verdict")
        spans = [(_span(finding.steps, step_times, extent), finding) for finding in analysis.findings]
        findings = writer.track(pid, "findings", nest=False)
        for (start, end), finding in sorted(spans, key=lambda item: (item[0][0], -item[0][1])):
            findings.slice(finding.summary, start, end, _finding_args(finding), kind="finding")
        warnings = writer.track(pid, "warnings")
        for text in analysis.source.warnings:
            warnings.instant(text, extent[0], kind="warning")
    notes = writer.track(pid, "about this file")
    notes.instant(clock_sentence(clock), extent[0], msgspec.to_builtins(clock, str_keys=True), kind="clock")
    if simulated:
        notes.instant("The GPU readings of this run are simulated.", extent[0], kind="simulated")
    for text in left_out:
        notes.instant(f"Left out: {text}", extent[0], kind="left out")


def _span(steps: tuple[int, int] | None, step_times: Mapping[int, tuple[int, int]], extent: tuple[int, int]) -> tuple[int, int]:
    """Return the time span of those of ``steps`` that are exported; the whole extent if none is."""
    times = [
        (start, end)
        for step, (start, end) in step_times.items()
        if (steps is None or steps[0] <= step < steps[1]) and extent[0] <= start <= end <= extent[1]
    ]
    return (min(start for start, _ in times), max(end for _, end in times)) if times else extent


def _stated(record: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of ``record`` that are neither ``None``, empty nor false."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {name: value for name, value in fields.items() if value not in (None, []) and value is not False}


def _finding_args(finding: Finding) -> dict[str, Any]:
    args = _stated(finding)
    args["evidence"] = {
        row.name: f"{row.value:,.6g} {row.unit}" + (f" ({row.detail})" if row.detail else "") for row in finding.evidence
    }
    return args
