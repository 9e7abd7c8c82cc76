"""Collectives of one rank, from its trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.traffic.message_size import element_bytes, input_size
from rankscope.analysis.operations import operation, operation_name
from rankscope.analysis.trace.categories import COPY, KERNEL, LAUNCHED, NOTE, OPERATOR
from rankscope.analysis.trace.classify import CPU_COMMUNICATION, operation_of_kernel
from rankscope.analysis.trace.columns import Trace
from rankscope.analysis.trace.intervals import distinct
from rankscope.analysis.trace.schema import EventArgs, integer
from rankscope.analysis.trace.work import COMMUNICATION, WorkEvents, enclosing, outermost, requests_communication
from rankscope.runs.records import CollectiveRecord

CPU_GROUP: Final = "cpu"
"""Group name of collectives on CPU threads: gloo's events do not name their process group."""

COPY_GROUP: Final = "copy-engine"
"""Group name of collectives carried by copies, where no event names their process group."""


def collectives_of(trace: Trace, events: WorkEvents) -> list[CollectiveRecord]:
    """Return every collective whose enqueue is in the trace, in the order of their enqueues, before they are put into steps.

    ``step`` and ``index`` are -1, and there are no compute spans yet.
    """
    records = [*_device_collectives(trace, events), *_copy_collectives(trace, events), *_cpu_collectives(trace)]
    return sorted(records, key=lambda record: (record.enqueue_unix_ns, record.start_unix_ns))


_record: Final = partial(CollectiveRecord, step=-1, index=-1)


def _group(args: EventArgs, trace: Trace, unnamed: str) -> dict[str, Any]:
    """Return the fields of a record about its process group, which is called ``unnamed`` where the arguments have no name."""
    ranks, size = _ranks(args, trace), integer(args.group_size)
    return {
        "group": unnamed if args.group_name is None else str(args.group_name),
        "group_ranks": ranks,
        "group_size": size if size is not None else (len(ranks) if ranks else None),
    }


def _device_collectives(trace: Trace, events: WorkEvents) -> list[CollectiveRecord]:
    chosen = (events.kind == COMMUNICATION) & (trace.category[events.rows] == KERNEL)
    rows = events.rows[chosen]
    if not len(rows):
        return []
    annotated = _annotations(trace)
    batches = _batches(trace)
    roots = _root_places(trace)
    notes = [annotated.get(correlation) for correlation in trace.correlation[rows].tolist()]
    calls = [_call(trace, row, note) for row, note in zip(rows.tolist(), notes, strict=True)]
    kernels = Counter(calls)
    names, on_stream = trace.name[rows].tolist(), trace.stream[rows].tolist()
    start, end = events.start[chosen].tolist(), events.end[chosen].tolist()
    enqueue = np.minimum(events.launch[chosen], events.start[chosen]).tolist()
    streams: dict[int, int] = {}
    records: list[CollectiveRecord] = []
    for at, row in enumerate(rows.tolist()):
        note, stream = notes[at], on_stream[at]
        # Stream numbers differ between ranks; the order in which the communication streams come into use does not.
        order = streams.setdefault(stream, len(streams))
        args = trace.communication_args.get(row) or EventArgs()
        spelling = args.collective or (None if note is None else trace.names[trace.name[note]])
        op = operation_name(spelling) if spelling else operation_of_kernel(trace.names[names[at]])
        if spelling and op == "all_to_allv" and _is_even(args):
            op = "all_to_all"
        group = _group(args, trace, f"stream-{order}")
        dtype, moved_bytes = args.dtype, _bytes(args)
        if args.collective is None and note is not None:
            dtype, moved_bytes = input_size(op, trace.communication_args.get(note))
        if kernels[calls[at]] > 1:
            # Several kernels serve one call: the number of bytes that each of them moves is not known.
            moved_bytes = None
        record = _record(
            op=op,
            **group,
            sequence=integer(args.sequence),
            dtype=dtype,
            bytes=moved_bytes,
            enqueue_unix_ns=enqueue[at],
            start_unix_ns=start[at],
            end_unix_ns=end[at],
            stream=max(stream, 0),
            p2p=operation(op).is_p2p,
            peer=_peer(op, args),
            root=_root(op, roots.get(integer(args.external_id)), group["group_ranks"]),
        )
        parts = batches.get(note, []) if args.collective is None and note is not None and kernels[calls[at]] == 1 else []
        records += [_part(record, part, trace) for part in parts] or [record]
    return records


def _batches(trace: Trace) -> dict[int, list[EventArgs]]:
    """Map each annotation of a batch of sends and receives to its parts.

    The kernel is launched inside the annotation, after the calls of its parts have ended: those on the same thread since the
    annotation before it (pytorch#194693).
    """
    batches = trace.rows(NOTE, "nccl:coalesced")
    if not len(batches):
        return {}
    calls = np.array(
        [
            row
            for row, args in trace.communication_args.items()
            if trace.category[row] == OPERATOR and args.collective in ("send", "recv")
        ],
        dtype=np.intp,
    )
    batch_parts: dict[int, list[EventArgs]] = {}
    for thread in distinct(trace.thread[batches]):
        notes = batches[trace.thread[batches] == thread]
        notes = notes[np.argsort(trace.start[notes], kind="stable")]
        calls_of_thread = calls[trace.thread[calls] == thread]
        calls_of_thread = calls_of_thread[np.argsort(trace.start[calls_of_thread], kind="stable")]
        places = np.searchsorted(trace.start[notes], trace.start[calls_of_thread])
        for call, place in zip(calls_of_thread.tolist(), places.tolist(), strict=True):
            if place < len(notes):
                batch_parts.setdefault(int(notes[place]), []).append(trace.communication_args[call])
    return batch_parts


def _part(batch: CollectiveRecord, args: EventArgs, trace: Trace) -> CollectiveRecord:
    """Return one send or receive of a batch, which has the times of the batch's kernel."""
    op = operation_name(args.collective or "")
    message = {"op": op, "dtype": args.dtype, "bytes": _bytes(args), "p2p": True, "peer": _peer(op, args)}
    return msgspec.structs.replace(batch, **_group(args, trace, batch.group), **message)


def _peer(op: str, args: EventArgs) -> int | None:
    """Return the other end of a send or receive."""
    return integer(args.destination_rank if op == "send" else args.source_rank) if operation(op).is_p2p else None


def _copy_collectives(trace: Trace, events: WorkEvents) -> list[CollectiveRecord]:
    """Return the collectives that copy engines carry. The copies launched inside one operator or annotation that requests
    communication are one collective. If a communication kernel was launched there, too, they are part of its collective.
    """
    copies = np.flatnonzero((events.kind == COMMUNICATION) & (trace.category[events.rows] == COPY))
    if not len(copies):
        return []
    frames = outermost(trace, requests_communication(trace))
    kernels = events.launch_row[(events.kind == COMMUNICATION) & (trace.category[events.rows] == KERNEL)]
    has_kernel = set(enclosing(trace, kernels[kernels >= 0], frames))
    described = np.array([row for row, args in trace.communication_args.items() if args.collective], dtype=np.intp)
    described_by_frame = dict(zip(enclosing(trace, described, frames), described, strict=True))
    frame_of_copy = enclosing(trace, events.launch_row[copies], frames)
    records: list[CollectiveRecord] = []
    for number in sorted(set(frame_of_copy) - has_kernel - {-1}):
        copies_of_frame = copies[frame_of_copy == number]
        frame = frames[number]
        args = trace.communication_args[int(described_by_frame[number])] if number in described_by_frame else EventArgs()
        op = operation_name(args.collective or trace.names[trace.name[frame]])
        start = int(events.start[copies_of_frame].min())
        records.append(
            _record(
                op=op,
                **_group(args, trace, COPY_GROUP),
                sequence=integer(args.sequence),
                dtype=args.dtype,
                bytes=_bytes(args),
                enqueue_unix_ns=min(int(events.launch[copies_of_frame].min()), start),
                start_unix_ns=start,
                end_unix_ns=int(events.end[copies_of_frame].max()),
                stream=max(int(trace.stream[events.rows[copies_of_frame[0]]]), 0),
                p2p=operation(op).is_p2p,
            )
        )
    return records


def _annotations(trace: Trace) -> dict[int, int]:
    """Map correlation ids to the row of the ``nccl:…`` annotation, for launches made inside one. Older traces name the operation
    nowhere else.
    """
    rows = trace.rows(NOTE, "nccl:")
    operations: dict[int, int] = {}
    calls = trace.rows(LAUNCHED)
    for thread in distinct(trace.thread[rows]):
        calls_of_thread = calls[trace.thread[calls] == thread]
        calls_of_thread = calls_of_thread[np.argsort(trace.start[calls_of_thread], kind="stable")]
        notes = rows[trace.thread[rows] == thread]
        correlation = trace.correlation[calls_of_thread].tolist()
        first, past = (np.searchsorted(trace.start[calls_of_thread], times[notes]).tolist() for times in (trace.start, trace.end))
        for note, begin, end in zip(notes.tolist(), first, past, strict=True):
            operations.update(dict.fromkeys(correlation[begin:end], note))
    operations.pop(-1, None)
    return operations


def _call(trace: Trace, row: int, note: int | None) -> tuple[str, int]:
    """Return what launched a kernel: the call that its metadata was copied from, else the annotation, else the kernel itself."""
    args = trace.communication_args.get(row)
    if args is not None and (call := integer(args.external_id)) is not None:
        return "call", call
    return ("kernel", row) if note is None else ("note", note)


def _root_places(trace: Trace) -> dict[int | None, int | None]:
    """Map the external id of a call to the position of its root in the group: kernels carry the id, but not the position."""
    operators = trace.category == OPERATOR
    return {integer(args.external_id): integer(args.rank) for row, args in trace.communication_args.items() if operators[row]}


def _root(op: str, place: int | None, ranks: list[int] | None) -> int | None:
    return ranks[place] if operation(op).has_root and place is not None and ranks and place < len(ranks) else None


def _cpu_collectives(trace: Trace) -> list[CollectiveRecord]:
    """Pair each worker's annotation with its enqueue on the calling thread.

    The workers take from one queue per process group in the order of the calls, so the k-th annotation of an operation, by
    start, belongs to its k-th call. Annotations that start before the first call were enqueued before the trace began.
    """
    notes = trace.rows(NOTE, CPU_COMMUNICATION)
    if not len(notes):
        return []
    calls: dict[str, list[int]] = {}
    workers: dict[str, list[int]] = {}
    for by_queue, rows_of_kind in ((calls, trace.rows(OPERATOR, "c10d::")), (workers, notes)):
        for row in rows_of_kind.tolist():
            by_queue.setdefault(_queue(trace.names[trace.name[row]]), []).append(row)
    records: list[CollectiveRecord] = []
    for queue, rows in workers.items():
        waiting = sorted(calls.get(queue, []), key=lambda row: int(trace.start[row]))
        for row in sorted(rows, key=lambda row: int(trace.start[row])):
            if not waiting or trace.start[waiting[0]] > trace.start[row]:
                continue
            call = waiting.pop(0)
            op = operation_name(trace.names[trace.name[row]])
            called = operation_name(trace.names[trace.name[call]])
            if operation(called).family == "reduce_scatter":
                op = called  # keeps sharding distinct from reducing whole gradients, also where gloo runs an all-reduce
            dtype, moved_bytes = input_size(op, trace.communication_args.get(row))
            records.append(
                _record(
                    op=op,
                    group=CPU_GROUP,
                    dtype=dtype,
                    bytes=moved_bytes,
                    enqueue_unix_ns=int(trace.start[call]),
                    start_unix_ns=int(trace.start[row]),
                    end_unix_ns=int(trace.end[row]),
                    p2p=operation(op).is_p2p,
                )
            )
    return records


def uncalled(trace: Trace, records: Sequence[CollectiveRecord]) -> int:
    """Return the number of collectives that CPU workers ran and that are not in ``records``: enqueued before the trace began,
    or by an unknown call.
    """
    return len(trace.rows(NOTE, CPU_COMMUNICATION)) - sum(record.stream is None for record in records)


def _queue(name: str) -> str:
    # Gloo annotates the operation that it runs, which may be another one than the operation called.
    op = operation_name(name)
    return operation(op).gloo or op


def _bytes(args: EventArgs) -> int | None:
    elements = [count for count in (integer(args.in_elements), integer(args.out_elements)) if count is not None]
    width = element_bytes(args.dtype)
    return max(elements) * width if elements and width else None


def _is_even(args: EventArgs) -> bool:
    sizes = [integers(args.in_split), integers(args.out_split)]
    return all(len(set(size)) <= 1 for size in sizes)


def _ranks(args: EventArgs, trace: Trace) -> list[int] | None:
    configured = trace.groups.get(str(args.group_name))
    if configured:
        return configured  # one list for all records: copies of a thousand ranks each would fill the memory
    # Long lists are cut ("[0, 1, ..., 63]"), so the length must equal the group's size.
    ranks = integers(args.group_ranks)
    size = integer(args.group_size)
    return ranks if ranks and (size is None or len(ranks) == size) else None


def integers(value: str | list[int] | None) -> list[int]:
    """Return the whole numbers in a list, or in the text of one."""
    if value is None or isinstance(value, list):
        return value or []
    return [int(number) for number in re.findall(r"\d+", value)]
