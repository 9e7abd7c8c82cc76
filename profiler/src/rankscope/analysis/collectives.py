"""Collectives of one rank, out of its trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankscope.analysis.breakdown import Work
from rankscope.analysis.classify import is_cpu_communication, is_point_to_point, operation_name, operation_of_kernel
from rankscope.analysis.intervals import clip
from rankscope.analysis.kineto_schema import EventArgs, integer
from rankscope.analysis.traces import KERNEL, LAUNCHED, NOTE, OPERATOR, Trace
from rankscope.analysis.work import COMMUNICATION, WorkEvents
from rankscope.runs.records import CollectiveRecord

CPU_GROUP: Final = "cpu"
"""Group name of collectives on CPU threads: gloo's events do not say which process group they belong to."""

_ELEMENT_BYTES: Final[dict[str, int]] = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "long": 8,
    "short": 2,
    "char": 1,
    "byte": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


@dataclass(frozen=True, slots=True)
class Instance:
    """One collective of one rank, before it is put into a step. Times are absolute nanoseconds."""

    op: str
    group: str
    group_ranks: list[int] | None
    group_size: int | None
    sequence: int | None
    dtype: str | None
    bytes: int | None
    enqueue: int
    start: int
    end: int
    stream: int | None
    p2p: bool

    def record(self, step: int, index: int, work: Work) -> CollectiveRecord:
        """The record of this instance as number ``index`` of its group in ``step``."""
        inside = (clip(work.compute, self.enqueue, self.end) - self.enqueue) / 1000
        return CollectiveRecord(
            step=step,
            group=self.group,
            group_ranks=self.group_ranks,
            group_size=self.group_size,
            index=index,
            sequence=self.sequence,
            op=self.op,
            dtype=self.dtype,
            bytes=self.bytes,
            enqueue_unix_ns=self.enqueue,
            start_unix_ns=self.start,
            end_unix_ns=self.end,
            stream=self.stream,
            p2p=self.p2p,
            compute_spans_us=list(map(tuple, inside.tolist())),
        )


def collective_instances(trace: Trace, events: WorkEvents) -> list[Instance]:
    """Every collective whose enqueue is in the trace, in the order in which they were asked for."""
    found = [*_device_collectives(trace, events), *_cpu_collectives(trace)]
    return sorted(found, key=lambda instance: (instance.enqueue, instance.start))


def _device_collectives(trace: Trace, events: WorkEvents) -> list[Instance]:
    chosen = (events.kind == COMMUNICATION) & (trace.category[events.rows] == KERNEL)
    positions = np.flatnonzero(chosen)
    annotated = _annotated_operations(trace)
    streams: dict[int, int] = {}
    found: list[Instance] = []
    for position in positions:
        row = int(events.rows[position])
        stream = int(trace.stream[row])
        # Stream numbers differ between ranks; the order in which the communication streams come into use does not.
        order = streams.setdefault(stream, len(streams))
        args = trace.metadata.get(row) or EventArgs()
        operation = args.collective or annotated.get(int(trace.correlation[row]))
        op = operation_name(operation) if operation else operation_of_kernel(trace.names[trace.name[row]])
        if op == "all_to_allv" and _is_even(args):
            op = "all_to_all"
        group = f"stream-{order}" if args.group_name is None else str(args.group_name)
        ranks = _ranks(args, trace)
        size = integer(args.group_size)
        found.append(
            Instance(
                op=op,
                group=group,
                group_ranks=ranks,
                group_size=size if size is not None else (len(ranks) if ranks else None),
                sequence=integer(args.sequence),
                dtype=args.dtype,
                bytes=_bytes(args),
                enqueue=int(min(events.launch[position], events.start[position])),
                start=int(events.start[position]),
                end=int(events.end[position]),
                stream=max(stream, 0),
                p2p=is_point_to_point(op),
            )
        )
    return found


def _annotated_operations(trace: Trace) -> dict[int, str]:
    """Correlation id to ``nccl:…`` annotation, for launches made inside one: older traces name the operation nowhere else."""
    notes = [row for row in trace.rows(NOTE) if trace.names[trace.name[row]].startswith("nccl:")]
    if not notes:
        return {}
    operations: dict[int, str] = {}
    calls = trace.rows(LAUNCHED)
    for thread in {int(trace.thread[row]) for row in notes}:
        mine = calls[trace.thread[calls] == thread]
        mine = mine[np.argsort(trace.start[mine], kind="stable")]
        starts = trace.start[mine]
        for row in notes:
            if trace.thread[row] == thread:
                first, past = np.searchsorted(starts, (trace.start[row], trace.end[row]))
                operations.update(dict.fromkeys(map(int, trace.correlation[mine[first:past]]), trace.names[trace.name[row]]))
    operations.pop(-1, None)
    return operations


def _cpu_collectives(trace: Trace) -> list[Instance]:
    """Pair each worker's annotation with its enqueue on the calling thread.

    The workers take from one queue per process group in the order of the calls, so the k-th annotation of an operation, by
    start, belongs to its k-th call. Annotations that start before the first call were asked for before the trace began.
    """
    calls: dict[str, list[int]] = {}
    workers: dict[str, list[int]] = {}
    if not any(map(is_cpu_communication, trace.names)):
        return []
    for row in trace.rows(OPERATOR):
        name = trace.names[trace.name[row]]
        if name.startswith("c10d::"):
            calls.setdefault(_queue(name), []).append(int(row))
    for row in trace.rows(NOTE):
        name = trace.names[trace.name[row]]
        if is_cpu_communication(name):
            workers.setdefault(_queue(name), []).append(int(row))
    found: list[Instance] = []
    for queue, rows in workers.items():
        waiting = sorted(calls.get(queue, []), key=lambda row: int(trace.start[row]))
        for row in sorted(rows, key=lambda row: int(trace.start[row])):
            if not waiting or trace.start[waiting[0]] > trace.start[row]:
                continue
            call = waiting.pop(0)
            op = operation_name(trace.names[trace.name[row]])
            found.append(
                Instance(
                    op=op,
                    group=CPU_GROUP,
                    group_ranks=None,
                    group_size=None,
                    sequence=None,
                    dtype=None,
                    bytes=None,
                    enqueue=int(trace.start[call]),
                    start=int(trace.start[row]),
                    end=int(trace.end[row]),
                    stream=None,
                    p2p=is_point_to_point(op),
                )
            )
    return found


# Gloo annotates what it runs, which for these calls is another operation than the one called.
_RUN_AS: Final[dict[str, str]] = {
    "all_gather_base": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_reduce_coalesced": "all_reduce",
    "sparse_all_reduce": "all_reduce",
    "sparseallreduce": "all_reduce",
}


def _queue(name: str) -> str:
    op = operation_name(name)
    return _RUN_AS.get(op, op)


def _bytes(args: EventArgs) -> int | None:
    elements = [count for count in (integer(args.in_elements), integer(args.out_elements)) if count is not None]
    width = _ELEMENT_BYTES.get((args.dtype or "").lower())
    return max(elements) * width if elements and width else None


def _is_even(args: EventArgs) -> bool:
    sizes = [_integers(args.in_split), _integers(args.out_split)]
    return all(len(set(size)) <= 1 for size in sizes)


def _ranks(args: EventArgs, trace: Trace) -> list[int] | None:
    configured = trace.groups.get(str(args.group_name))
    if configured:
        return list(configured)
    # Long lists are cut ("[0, 1, ..., 63]"): the size tells.
    said = _integers(args.group_ranks)
    size = integer(args.group_size)
    return said if said and (size is None or len(said) == size) else None


def _integers(value: str | list[int] | None) -> list[int]:
    if value is None or isinstance(value, list):
        return value or []
    return [int(number) for number in re.findall(r"\d+", value)]
