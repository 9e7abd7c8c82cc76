"""Warnings of the analysis of a run: what is missing, damaged, left out or still going on."""

from __future__ import annotations

from contextlib import suppress
from itertools import count, islice
from typing import Final

import numpy as np

from rankscope.analysis.collectives.windows import suspicious_windows
from rankscope.analysis.evidence.damage import damage_warnings
from rankscope.analysis.evidence.step_table.chosen_steps import steps_text
from rankscope.analysis.hang.activity import activity_report
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.base.text import format_duration, ranks_text, span
from rankscope.runs.follow import last_rows
from rankscope.runs.paths import attempt_dir, rank_dir
from rankscope.runs.reader import RunReader

_SHOWN: Final = 8
_ATTEMPTS: Final = 20
"""Number of last attempts that are compared."""
_STEPS: Final = 1000
"""Number of last steps whose median is the step time of an attempt."""
_LEAST_STEPS: Final = 5
_SLOWER: Final = 1.25
"""Least factor between the step times of the slowest attempt and of the others."""


def warnings_of_run(run: RunEvidence, ended: list[str], *, chosen: bool) -> list[str]:
    """Return one sentence for each kind of data that is missing or left out.

    ``ended``: sentences on early ends of ranks. ``chosen``: the evidence is of some steps only.
    """
    warnings = [f"only {steps_text(run.table)} are analysed, as chosen"] if chosen else []
    attempts = run.reader.attempts()
    if len(attempts) > 1:
        which, others = "one", ""
        if run.table.attempt == attempts[-1]:
            which, others = (
                "the last",
                f"; for an earlier one name its folder, such as {attempt_dir(run.reader.path, attempts[-2])}",
            )
        warnings.append(f"{which} of {len(attempts)} attempts (number {run.table.attempt}) is analysed{others}")
        if (slowest := _slowest_attempt(run.reader)) is not None:
            warnings.append(slowest)
    if run.earlier.steps:
        steps = len(run.table.steps)
        warnings.append(f"judged by the last {steps:,} of {steps + run.earlier.steps:,} steps")
    # Never iterates over the whole world: a damaged file may claim any size.
    present = set(run.ranks)
    absent = (run.world_size or 0) - sum(rank < (run.world_size or 0) for rank in present)
    if absent > 0:
        shown = list(islice((rank for rank in count() if rank not in present), min(_SHOWN, absent)))
        warnings.append(f"no records of {ranks_text(shown, count=absent)}")
    has_record = run.table.has_record
    silent = [rank for row, rank in enumerate(run.ranks) if not has_record[row].any()]
    if silent:
        warnings.append(f"not one step recorded by {ranks_text(silent)}")
    warnings += ended
    warnings += run.table.numbers.warnings()
    warnings += _shared_gpus(run)
    going_on = [rank for rank, info in run.infos.items() if info.end_reason is None and info.end_unix_ns is None]
    if run.liveness == "silent" and going_on:
        warnings.append(_silence(run, going_on))
    return [*warnings, *_recorder_warnings(run), *damage_warnings(run.reader, run.damaged)]


def _slowest_attempt(reader: RunReader) -> str | None:
    """Return the sentence that one attempt had clearly slower steps than the others, if it had."""
    times = {attempt: usual for attempt in reader.attempts()[-_ATTEMPTS:] if (usual := _usual_us(reader, attempt)) is not None}
    if len(times) < 2:
        return None
    slowest = max(times, key=lambda attempt: times[attempt])
    others_us = float(np.median([usual for attempt, usual in times.items() if attempt != slowest]))
    if times[slowest] < _SLOWER * others_us:
        return None
    step_times = f"{format_duration(times[slowest])} per step, the others {format_duration(others_us)}"
    return f"attempt {slowest} was the slowest of {len(times)}: {step_times}; analyse {attempt_dir(reader.path, slowest)}"


def _usual_us(reader: RunReader, attempt: int) -> float | None:
    """Return the median step time of the first rank with records; ``None``: of too few steps."""
    for rank in reader.ranks(attempt)[:1]:
        with suppress(OSError):
            walls = last_rows(rank_dir(reader.path, attempt, rank), _STEPS)["wall_us"]
            walls = walls[np.isfinite(walls)]
            return float(np.median(walls)) if len(walls) >= _LEAST_STEPS else None
    return None


def _silence(run: RunEvidence, ranks: list[int]) -> str:
    """Return the warning that no step has ended for longer than the steps so far explain; ``ranks`` have not ended."""
    steps = run.table.steps
    last = f" (last: step {steps[-1]})" if len(steps) else ""
    shown = None if run.activities is None else activity_report(run.activities)
    # Of a hang by the activities, the verdict tells it.
    doing = "" if shown is None or shown.kind == "hang" else f". {shown.summary.removesuffix('.')}"
    harmless = "they are in a longer step than any before" if len(steps) else "they are still starting"
    return (
        f"the run goes on, but no rank has finished a step for {span(run.silent_s)}{last}: "
        f"{ranks_text(ranks)} recorded no end; the job hangs, it has vanished with its nodes, or {harmless}{doing}"
    )


def _shared_gpus(run: RunEvidence) -> list[str]:
    """Return the warning that ranks share GPUs, or an empty list."""
    ranks_on: dict[str, list[int]] = {}
    for rank, info in run.infos.items():
        if info.gpu_uuid is not None:
            ranks_on.setdefault(info.gpu_uuid, []).append(rank)
    shared = [sorted(ranks) for ranks in ranks_on.values() if len(ranks) > 1]
    if not shared:
        return []
    more = f" ({len(shared)} GPUs are shared)" if len(shared) > 1 else ""
    turns = "which runs their work in turns of some ms: a rank also waits for the turns of the others, and may be late for them"
    return [f"{ranks_text(shared[0])} share one GPU{more}, {turns}"]


def _recorder_warnings(run: RunEvidence) -> list[str]:
    """Return the warnings about records and windows that the recorder lost, and about odd windows."""
    warnings: list[str] = []
    disabled = [rank for rank, info in run.infos.items() if info.disabled_reason]
    if disabled:
        warnings.append(f"the recorder switched itself off on {ranks_text(disabled)}: {run.infos[disabled[0]].disabled_reason}")
    dropped = sum(info.dropped_records for info in run.infos.values())
    unwritten = {rank: info.unwritten_steps for rank, info in run.infos.items() if info.unwritten_steps}
    if unwritten:
        most = max(unwritten.values())
        warnings.append(f"the last {most:,} steps of {ranks_text([*unwritten])} could not be written, and are not judged")
    if dropped:
        warnings.append(f"{dropped} records were dropped: a ring was full, or they could not be written")
    unconfirmed = sum(info.unconfirmed_records for info in run.infos.values())
    if unconfirmed:
        warnings.append(f"up to {unconfirmed} records may be missing: the filesystem took them and failed afterwards")
    warnings += _expired(run)
    missed = sum(info.missed_windows for info in run.infos.values())
    if missed:
        warnings.append(f"{missed} profiler windows were left out, counted over the ranks; the job's stderr says why")
    breakdowns = {rank: reduction.breakdowns for rank, reduction in run.windows.items()}
    return warnings + suspicious_windows(run.reader.path, run.table.attempt, breakdowns)


def _expired(run: RunEvidence) -> list[str]:
    """Return the warning about records that retention removed, or an empty list."""
    removed: dict[str, int] = {}
    ranks: list[int] = []
    for rank, info in run.infos.items():
        ranks += [rank] if info.expired_records else []
        for stream, number in info.expired_records.items():
            removed[stream] = removed.get(stream, 0) + number
    if not removed:
        return []
    counts = ", ".join(f"{count:,} of {stream}" for stream, count in removed.items())
    rows = [row for row, rank in enumerate(run.ranks) if rank in ranks and run.infos[rank].expired_records.get("steps")]
    first = [int(run.table.steps[present.argmax()]) for present in run.table.has_record[rows] if present.any()]
    since = f", among them all steps before {max(first)}" if first and not run.earlier.steps else ""
    return [f"retention removed the oldest records of {ranks_text(ranks)} ({counts}){since}; what is left is analysed"]
