"""Reduction of a trace to the records that a run keeps: a breakdown per step, its collectives, its costliest kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.extract import collectives_of, integers, uncalled
from rankscope.analysis.operations import operation_name
from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.categories import KERNEL
from rankscope.analysis.trace.columns import Trace
from rankscope.analysis.trace.intervals import clips
from rankscope.analysis.trace.kernels import kernel_class
from rankscope.analysis.trace.quality import are_damaged
from rankscope.analysis.trace.work import COMMUNICATION, KINDS, Steps, Work, WorkEvents, annotated_steps, partition, work_events
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import CollectiveRecord, DeviceKind, KernelRecord, StepBreakdown, WindowBasis

COSTLIEST: Final = 10
"""Number of kernel records kept per step."""


class Reduction(msgspec.Struct, frozen=True):
    """Records that a trace is reduced to."""

    breakdowns: list[StepBreakdown] = msgspec.field(default_factory=list)
    collectives: list[CollectiveRecord] = msgspec.field(default_factory=list)
    kernels: list[KernelRecord] = msgspec.field(default_factory=list)
    uncalled: int = 0
    """Number of collectives that ran in the trace without a call in it; counted for whole files only."""
    without_order: bool = False
    """True if all collectives were left out, because they have no sequence numbers and device events are missing."""

    @property
    def count(self) -> int:
        """Number of collectives; at least 1 if there are any that were left out."""
        return len(self.collectives) or int(self.without_order)


def matchable(reductions: Mapping[int, Reduction]) -> dict[int, list[CollectiveRecord]]:
    """Return the collectives by rank. A rank all of whose collectives were left out counts as missing: it may be the last."""
    return {rank: reduction.collectives for rank, reduction in reductions.items() if not reduction.without_order}


def reduce_trace(trace: Trace) -> Reduction:
    """Reduce each step with a ``ProfilerStep#N`` annotation to its records.

    Without such annotations the reduction is empty; ``reduce_file`` takes such a trace as one window.

    CPU work is cut at the step's own bounds. Device work runs later than the step that launched it. So a device window goes from
    the first start of the work launched in a step to that of the next step, found by launch correlation. All work in the window
    is cut to it. A collective belongs to the step in which it was enqueued.
    """
    # Imported only for windows of runs and detailed traces: imports are a large part of the time that a trace takes.
    from rankscope.analysis.trace.detail_columns import detail_columns
    from rankscope.analysis.trace.window_detail import with_parts

    annotated = annotated_steps(trace)
    if annotated is None:
        return Reduction()
    events = work_events(trace)
    owner = annotated.position(events.launch)
    breakdowns = _step_breakdowns(trace, events, annotated, owner)
    every = collectives_of(trace, events)
    records = _in_steps(every, annotated, events.work, trace)
    columns = detail_columns(trace, events, breakdowns)
    kernels = [_costliest(trace, events, np.flatnonzero(owner == at), step) for at, step in enumerate(annotated.numbers)]
    return Reduction(
        breakdowns=[with_parts(columns, row) for row in breakdowns],
        collectives=records,
        kernels=list(chain.from_iterable(kernels)),
        without_order=bool(every) and not records and bool(len(trace.missing) + len(trace.cut)),
    )


def step_breakdowns(trace: Trace, events: WorkEvents) -> list[StepBreakdown]:
    """Return the breakdowns of ``reduce_trace`` for every annotated step."""
    annotated = annotated_steps(trace)
    if annotated is None:
        return []
    return _step_breakdowns(trace, events, annotated, annotated.position(events.launch))


def _step_breakdowns(trace: Trace, events: WorkEvents, steps: Steps, owner: NDArray[np.intp]) -> list[StepBreakdown]:
    windows = _device_windows(steps, events, owner) if trace.has_device_work else list(zip(steps.start, steps.end, strict=True))
    breakdowns: list[StepBreakdown] = []
    damaged = damaged_steps(trace, events, steps)
    for position, number in enumerate(steps.numbers):
        start, end = map(int, windows[position])
        count = int((owner == position).sum())
        # A step without device work, launched or recorded, has its host interval as window.
        truncated = trace.has_device_work and (not count or bool(damaged[position]))
        breakdowns.append(
            _breakdown(number, trace.device_kind, events.work, (start, end), count, truncated=truncated, basis="steps")
        )
    return breakdowns


def damaged_steps(trace: Trace, events: WorkEvents, steps: Steps) -> NDArray[np.bool_]:
    """Return which steps miss, or have cut, so many of their device events that their figures do not count, [steps]."""
    present, missing, cut = (
        np.bincount(position[position >= 0], minlength=len(steps.numbers))
        for position in map(steps.position, (events.launch, *_lost_and_cut(trace, events)))
    )
    return are_damaged(present, missing, cut)


def _lost_and_cut(trace: Trace, events: WorkEvents) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the launch times of the device events that are missing or worthless, and of those that were cut.

    A collective that was cut is worthless: its length shows how long the rank waited, which is not usual.
    """
    if not len(trace.cut):
        return trace.missing, trace.cut
    waits = events.launch[(events.kind == COMMUNICATION) & events.is_on_device(trace)]
    return np.concatenate((trace.missing, trace.cut[np.isin(trace.cut, waits)])), trace.cut


def quality_of(trace: Trace, events: WorkEvents) -> DataQuality:
    """Return the quality of a trace with what its steps lack: a trace of which no step is whole is unusable."""
    quality = trace.quality
    if quality.problem is not None or not (len(trace.missing) or len(trace.cut)):
        return quality
    annotated = annotated_steps(trace)
    if annotated is not None:
        damaged = damaged_steps(trace, events, annotated)
        quality = msgspec.structs.replace(quality, damaged_steps=int(damaged.sum()))
        if not damaged.all():
            return quality
        reason = "misses device events in every step, or has some of unknown length"
        return msgspec.structs.replace(quality, problem="damaged", reason=reason)
    present = int(events.is_on_device(trace).sum())
    missing, cut = map(len, _lost_and_cut(trace, events))
    if not are_damaged(*(np.array([count]) for count in (present, missing, cut))).any():
        return quality
    reason = f"misses {(missing + cut) / (missing + present):.0%} of its device events, or does not know their length"
    return msgspec.structs.replace(quality, problem="damaged", reason=reason)


def reduce_file(trace: Trace, events: WorkEvents | None = None) -> Reduction:
    """Reduce the whole trace to one window, from the first start to the last end of any work.

    ``events`` are its ``work_events``. Collectives keep the number of the annotated step they were enqueued in, or 0 without
    annotations. Raises ``InputError`` when there is no work at all.
    """
    events = work_events(trace) if events is None else events
    work = events.work
    extent = work.extent()
    if trace.quality.problem:
        extent = (0, 0)
    if extent is None:
        raise InputError(trace.path, "nothing to analyse: no kernel, copy, operator or collective takes any time")
    annotated = annotated_steps(trace)
    number = annotated.numbers[0] if annotated else 0
    breakdown = _breakdown(
        number,
        trace.device_kind,
        work,
        extent,
        len(events.rows),
        truncated=trace.torn is not None or trace.quality.problem is not None,
        basis="file",
    )
    every = collectives_of(trace, events)
    records = _in_steps(every, annotated, work, trace, whole_file=True)
    return Reduction(
        breakdowns=[breakdown],
        collectives=records,
        without_order=bool(every) and not records,
        kernels=_costliest(trace, events, np.arange(len(events.rows)), number),
        uncalled=uncalled(trace, every),
    )


def step_numbers(trace: Trace) -> list[int]:
    """Return the numbers of the annotated steps, ascending in time; empty without annotations."""
    annotated = annotated_steps(trace)
    return annotated.numbers if annotated else []


def exchanged_rows(trace: Trace) -> int | None:
    """Return the rows that the rank sent or received in uneven all-to-all, the larger of both per operation; ``None`` without."""
    rows = [
        max(sum(integers(args.in_split)), sum(integers(args.out_split)))
        for row, args in trace.communication_args.items()
        if trace.category[row] == KERNEL and operation_name(args.collective or "") == "all_to_allv"
    ]
    return sum(rows) if any(rows) else None


def _device_windows(steps: Steps, events: WorkEvents, owner: NDArray[np.intp]) -> list[tuple[int, int]]:
    first: list[int | None] = []
    last: list[int | None] = []
    for position in range(len(steps.numbers)):
        of_window = owner == position
        first.append(int(events.start[of_window].min()) if of_window.any() else None)
        last.append(int(events.end[of_window].max()) if of_window.any() else None)
    windows: list[tuple[int, int]] = []
    for position in range(len(steps.numbers)):
        begin, stop = first[position], last[position]
        if begin is None or stop is None:
            windows.append((int(steps.start[position]), int(steps.end[position])))
            continue
        following = first[position + 1] if position + 1 < len(first) else None
        adjacent = following is not None and steps.numbers[position + 1] == steps.numbers[position] + 1
        if adjacent and following is not None and following >= begin:
            stop = following
        windows.append((begin, stop))
    return windows


def _breakdown(
    number: int, device: DeviceKind, work: Work, window: tuple[int, int], events: int, *, truncated: bool, basis: WindowBasis
) -> StepBreakdown:
    return StepBreakdown(
        step=number,
        start_unix_ns=window[0],
        device_kind=device,
        window_basis=basis,
        events=events,
        truncated=truncated,
        **msgspec.structs.asdict(partition(work, *window)),
    )


def _in_steps(
    every: Sequence[CollectiveRecord], steps: Steps | None, work: Work, trace: Trace, *, whole_file: bool = False
) -> list[CollectiveRecord]:
    """Return the collectives with their steps, numbered per (step, group), and with the compute beside them.

    Those enqueued outside every step are left out, unless the whole file is the window. So are those whose kernel was cut,
    because its length shows the wait, and those without a sequence number in a step from which any is missing: that would
    shift the order of the others.
    """
    if not every:
        return []

    def position_of(times: NDArray[np.int64]) -> NDArray[np.intp]:
        if steps is None:
            return np.zeros(len(times), dtype=np.intp)
        # Enqueued before the first annotation: counts to the first step. Between two steps: to the earlier one.
        return np.maximum(np.searchsorted(steps.start, times, side="right") - 1, 0) if whole_file else steps.position(times)

    times = np.array([record.enqueue_unix_ns for record in every], dtype=np.int64)
    positions = position_of(times)
    cut = set(trace.cut.tolist())
    is_cut = [record.stream is not None and record.enqueue_unix_ns in cut for record in every]
    shifted = set(position_of(trace.missing).tolist()) | set(positions[is_cut].tolist())
    counted: Counter[tuple[int, str]] = Counter()
    records: list[CollectiveRecord] = []
    inside = clips(work.compute, times, np.array([record.end_unix_ns for record in every], dtype=np.int64))
    for record, position, compute, left_out in zip(every, positions.tolist(), inside, is_cut, strict=True):
        if position < 0 or left_out or (record.stream is not None and record.sequence is None and position in shifted):
            continue
        step = steps.numbers[position] if steps is not None else 0
        spans_us = ((compute - record.enqueue_unix_ns) / 1000).tolist()
        index = counted[step, record.group]
        records.append(msgspec.structs.replace(record, step=step, index=index, compute_spans_us=list(map(tuple, spans_us))))
        counted[step, record.group] += 1
    return records


def _costliest(trace: Trace, events: WorkEvents, rows: NDArray[np.intp], number: int) -> list[KernelRecord]:
    if not len(rows):
        return []
    names = trace.name[events.rows[rows]].astype(np.int64)
    keys = names * len(KINDS) + events.kind[rows]
    calls = np.bincount(keys)
    totals = np.bincount(keys, weights=(events.end[rows] - events.start[rows]).astype(np.float64))
    order = np.argsort(-totals, kind="stable")
    order = order[calls[order] > 0][:COSTLIEST]
    records: list[KernelRecord] = []
    for at in map(int, order):
        name, kind = trace.names[at // len(KINDS)], KINDS[at % len(KINDS)]
        records.append(
            KernelRecord(
                step=number,
                name=name,
                kind=kind,
                total_us=float(totals[at]) / 1000,
                calls=int(calls[at]),
                kernel_class=kernel_class(name) if kind == "compute" else None,
            )
        )
    return records


def suspicious_windows(run: Path, attempt: int, windows: Mapping[int, Sequence[StepBreakdown]]) -> list[str]:
    """Return at most one sentence: the number of such steps, the last of them, and the folder of the remaining raw traces."""
    odd_rows = {rank: rows for rank, all_rows in windows.items() if (rows := [row for row in all_rows if row.looked_wrong])}
    if not odd_rows:
        return []
    rank, last = max(
        ((rank, row) for rank, rows in odd_rows.items() for row in rows), key=lambda candidate: (candidate[1].step, -candidate[0])
    )
    count = len({row.step for rows in odd_rows.values() for row in rows})
    steps = "one profiled step" if count == 1 else f"{count:,} profiled steps"
    where = f"{steps} of {ranks_text(sorted(odd_rows))}, last in step {last.step} of rank {rank}"
    text = f"something looked wrong in {where}: {last.looked_wrong}"
    with_traces = [number for number in sorted(odd_rows) if any((rank_dir(run, attempt, number) / "traces").glob("window-*"))]
    if with_traces:
        shown = rank if rank in with_traces else with_traces[0]
        text += f"; raw traces are in {rank_dir(Path(), attempt, shown) / 'traces'}"
    return [text]
