"""Details of a trace's time beyond the partition: devices, streams, classes of kernels, copies, launches, recompute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.result.detail import (
    ClassPart,
    Contention,
    CopyPart,
    DevicePart,
    LaunchPart,
    NamedKernel,
    QueueDelay,
    RankDetail,
    Recompute,
    SlowedKernel,
    StreamPart,
    WindowDetail,
)
from rankscope.analysis.trace.classify import direction_of, memory_of
from rankscope.analysis.trace.detail_columns import NO_GRAPH, DetailColumns, end_of
from rankscope.analysis.trace.intervals import by_key, clip, distinct, intersect, measure, shared, subtract
from rankscope.analysis.trace.kernels import COMMUNICATION_CLASS, LABELS, LEAST_SHARE, NO_LABEL, OTHER
from rankscope.analysis.trace.work import COMMUNICATION, COMPUTE, KINDS, MEMCPY, Work, partition
from rankscope.runs.records import StepBreakdown

MAX_STEPS: Final = 64
"""Number of steps whose details are kept, from the first one on."""

_MOST_STREAMS: Final = 64
_MOST_COPIES: Final = 32
_MOST_KERNELS: Final = 10
"""Largest numbers of rows, the longest first: a hostile trace may invent any number."""

_LARGEST_COPY_BYTES: Final = 2**40
"""Largest plausible copy, 1 TiB: a larger size is damage."""


def detail_of(columns: DetailColumns, window: StepBreakdown, steps: Sequence[StepBreakdown]) -> RankDetail:
    """Return the details of the whole ``window`` of a file, and of its annotated ``steps``."""
    window_detail = _window(columns, window, step=None)
    return RankDetail(
        **{name: getattr(window_detail, name) for name in window_detail.__struct_fields__},
        steps=[_window(columns, row, step=row.step) for row in steps[:MAX_STEPS]],
    )


def with_parts(columns: DetailColumns, step: StepBreakdown) -> StepBreakdown:
    """Return the breakdown with the details that a run keeps: classes, recompute, and the reasons of idle time."""
    inside = columns.cut(step.start_unix_ns, end_of(step))
    recompute = _recompute(inside)
    return msgspec.structs.replace(
        step,
        class_us={part.name: part.busy_us for part in _classes(inside)},
        recompute_us=None if recompute is None else recompute.busy_us,
        **_idle_us(columns, step.start_unix_ns, end_of(step)),
    )


def _window(columns: DetailColumns, window: StepBreakdown, step: int | None) -> WindowDetail:
    begin, end = window.start_unix_ns, end_of(window)
    inside = columns.cut(begin, end)
    starting = columns.take(columns.on_device & (columns.start >= begin) & (columns.start < end))
    return WindowDetail(
        step=step,
        start_unix_ns=begin,
        window_us=window.window_us,
        devices=_devices(inside, begin, end),
        streams=_streams(inside),
        classes=_classes(inside),
        unclassified=_unclassified(inside, LEAST_SHARE * (end - begin)),
        recompute=_recompute(inside),
        launch=_launches(starting, _idle_us(columns, begin, end)),
        copies=_copies(starting),
        contention=_contention(starting) if columns.communicates else None,
    )


def _devices(inside: DetailColumns, begin: int, end: int) -> list[DevicePart]:
    """Return the partition of the window on each device; work on the CPU (gloo) counts on all of them."""
    parts: list[DevicePart] = []
    for number in np.unique(inside.device[inside.device >= 0]) if (inside.device >= 0).any() else [-1]:
        own = (inside.device == number) | (inside.device < 0)
        work = Work(*(inside.spans(own & (inside.kind == kind)) for kind in (COMPUTE, COMMUNICATION, MEMCPY)))
        parts.append(DevicePart(device=_number(number), **msgspec.structs.asdict(partition(work, begin, end))))
    return parts


def _streams(inside: DetailColumns) -> list[StreamPart]:
    """Return one row per stream, busiest first."""
    events = inside.take(inside.on_device)
    parts: list[StreamPart] = []
    for on_device in by_key(events.device):
        streams = [on_device[rows] for rows in by_key(events.stream[on_device])]
        busy = [events.spans(rows) for rows in streams]
        several = shared(busy)
        for rows, spans in zip(streams, busy, strict=True):
            by_kind = [measure(events.spans(rows[events.kind[rows] == kind])) for kind in range(len(KINDS))]
            overlapped = measure(intersect(spans, several))
            parts.append(
                StreamPart(
                    device=_number(events.device[rows[0]]),
                    stream=_number(events.stream[rows[0]]),
                    kind=KINDS[int(np.argmax(by_kind))],
                    events=len(rows),
                    busy_us=measure(spans) / 1000,
                    overlapped_us=overlapped / 1000,
                    exposed_us=(measure(spans) - overlapped) / 1000,
                    compute_us=by_kind[COMPUTE] / 1000,
                    communication_us=by_kind[COMMUNICATION] / 1000,
                    memcpy_us=by_kind[MEMCPY] / 1000,
                )
            )
    return sorted(parts, key=lambda part: -part.busy_us)[:_MOST_STREAMS]


def _classes(inside: DetailColumns) -> list[ClassPart]:
    """Return one row per class, busiest first."""
    events = inside.take(inside.label != NO_LABEL)
    compute, communication = (events.spans(events.kind == kind) for kind in (COMPUTE, COMMUNICATION))
    parts: list[ClassPart] = []
    for rows in by_key(events.label):
        name = LABELS[events.label[rows[0]]]
        busy = events.spans(rows)
        parts.append(
            ClassPart(
                name=name,
                events=len(rows),
                busy_us=measure(busy) / 1000,
                summed_us=int((events.end[rows] - events.start[rows]).sum()) / 1000,
                overlapped_us=measure(intersect(busy, compute if name == COMMUNICATION_CLASS else communication)) / 1000,
            )
        )
    return sorted(parts, key=lambda part: (-part.busy_us, part.name))


def _unclassified(inside: DetailColumns, least_ns: float) -> list[NamedKernel]:
    """Return the kernels without a class off the main streams, by name and stream, that take ``least_ns``; longest first."""
    events = inside.take(inside.beside & (inside.label == LABELS.index(OTHER)))
    return sorted(
        (
            NamedKernel(
                name=events.names[events.name[rows[0]]],
                stream=_number(events.stream[rows[0]]),
                events=len(rows),
                busy_us=busy / 1000,
                longest_us=int((events.end[rows] - events.start[rows]).max()) / 1000,
            )
            for rows in by_key(events.name, events.stream)
            if (busy := measure(events.spans(rows))) >= least_ns
        ),
        key=lambda kernel: -kernel.busy_us,
    )[:_MOST_KERNELS]


def _recompute(inside: DetailColumns) -> Recompute | None:
    if not inside.knows_recompute:
        return None
    is_recomputed, computes = inside.recomputing >= 0, inside.kind == COMPUTE
    compute = measure(inside.spans(computes))
    return Recompute(
        operators=len(np.unique(inside.recomputing[is_recomputed])),
        events=int(is_recomputed.sum()),
        busy_us=measure(inside.spans(is_recomputed)) / 1000,
        compute_share=measure(inside.spans(computes & is_recomputed)) / compute if compute else None,
    )


def _idle_us(columns: DetailColumns, begin: int, end: int) -> dict[str, float]:
    """Return the idle time of a window by reason; empty where no launching call is in the trace."""
    return {reason: measure(clip(spans, begin, end)) / 1000 for reason, spans in (columns.idle or {}).items()}


def _launches(starting: DetailColumns, idle_us: dict[str, float]) -> LaunchPart | None:
    """Summarise the launches of the events on devices that start in a window; ``None`` without its idle time by reason."""
    if not idle_us:
        return None
    calls = starting.call[starting.call >= 0]
    graph = starting.graph[starting.graph != NO_GRAPH]
    delays = [_queue_delay(kind, starting.take(starting.leads & (starting.kind == kind))) for kind in range(len(KINDS))]
    return LaunchPart(
        events=len(starting.start),
        linked=len(calls),
        calls=len(np.unique(calls)),
        queue_delay=[delay for delay in delays if delay is not None],
        started_early=int((starting.delay[starting.leads] < 0).sum()),
        graph_launches=len(np.unique(graph)),
        graph_events=len(graph),
        **idle_us,
    )


def _queue_delay(kind: int, leading: DetailColumns) -> QueueDelay | None:
    if not len(leading.delay):
        return None
    median, late, longest = np.percentile(np.maximum(leading.delay, 0), (50, 90, 100)) / 1000
    return QueueDelay(
        kind=KINDS[kind], events=len(leading.delay), median_us=float(median), p90_us=float(late), longest_us=float(longest)
    )


def _copies(starting: DetailColumns) -> list[CopyPart]:
    """Return one row per direction, memory and purpose, longest first."""
    copies = starting.take(starting.is_copy | (starting.kind == MEMCPY))
    of_name = {number: (direction_of(copies.names[number]), memory_of(copies.names[number])) for number in distinct(copies.name)}
    labels = list(dict.fromkeys(of_name.values()))
    label = np.array([labels.index(of_name[number]) for number in copies.name.tolist()], dtype=np.int64)
    collective = copies.kind == COMMUNICATION
    parts: list[CopyPart] = []
    for rows in by_key(label, collective):
        direction, memory = labels[label[rows[0]]]
        busy = copies.spans(rows)
        sized = rows[(copies.bytes[rows] >= 0) & (copies.bytes[rows] <= _LARGEST_COPY_BYTES)]
        took = measure(copies.spans(sized))
        total = int(copies.bytes[sized].sum()) if len(sized) else None
        parts.append(
            CopyPart(
                direction=direction,
                memory=memory,
                events=len(rows),
                busy_us=measure(busy) / 1000,
                exposed_us=measure(subtract(busy, copies.hides)) / 1000,
                bytes=total,
                sized_events=len(sized),
                bytes_per_second=total * 1e9 / took if total is not None and took else None,
                collective=bool(collective[rows[0]]),
            )
        )
    return sorted(parts, key=lambda part: -part.busy_us)[:_MOST_COPIES]


_ENOUGH: Final = 3
"""Smallest number of samples on each side, so that one outlier does not decide the median."""
_STEADY: Final = 0.2
"""Largest interquartile range over the median of a kernel alone: beyond it there is no typical time to compare with."""
_SHORTEST_NS: Final = 5_000
"""Kernels that take less time alone are left out, because some traces have whole microseconds only."""
_MOST_SLOWED: Final = 8


def _contention(starting: DetailColumns) -> Contention:
    """Compare compute kernels under communication with those that do the same work without communication beside them.

    A kernel is overlapped when at least half of it is under communication of its device, and alone when none of it is.
    """
    kernels = starting.take(starting.kind == COMPUTE)
    length = kernels.end - kernels.start
    overlapped = (2 * kernels.under >= length) & (length > 0)
    alone = (kernels.under == 0) & (length > 0)
    rows: list[SlowedKernel] = []
    for group in by_key(kernels.name, kernels.work):
        overlapped_lengths, by_itself = length[group[overlapped[group]]], length[group[alone[group]]]
        if min(len(overlapped_lengths), len(by_itself)) < _ENOUGH:
            continue
        slowed = float(np.median(overlapped_lengths))
        low, usual, high = map(float, np.percentile(by_itself, (25, 50, 75)))
        if usual < _SHORTEST_NS or high - low > _STEADY * usual:
            continue
        rows.append(
            SlowedKernel(
                name=kernels.names[kernels.name[group[0]]],
                overlapped=len(overlapped_lengths),
                alone=len(by_itself),
                overlapped_median_us=slowed / 1000,
                alone_median_us=usual / 1000,
                ratio=slowed / usual,
            )
        )
    expected = sum(row.overlapped * row.alone_median_us for row in rows)
    took = sum(row.overlapped * row.overlapped_median_us for row in rows)
    return Contention(
        slowdown=took / expected if rows else None,
        extra_us=took - expected if rows else None,
        compared=sum(row.overlapped for row in rows),
        overlapped=int(overlapped.sum()),
        costliest=sorted(rows, key=lambda row: -abs(row.overlapped * (row.overlapped_median_us - row.alone_median_us)))[
            :_MOST_SLOWED
        ],
    )


def _number(number: int) -> int | None:
    """Return the number of a device or stream, or ``None`` if the trace has none (it is negative)."""
    return None if number < 0 else int(number)
