"""Raw steps: events and meter readings of a step that the rank writes without evaluating them, where it can.

Both sides come from one installation, so the order of the fields of ``RawStep`` is the format. The training thread packs a plain
tuple, and the helper turns it into the entry that the training thread would have made.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from rankscope.profiler.entries import Memory, StepEntry, Usage
from rankscope.profiler.events import StepEvents
from rankscope.profiler.phases import PhaseClock
from rankscope.profiler.work import EVALUATION, StepWork
from rankscope.runs.records import PHASES

NOT_KNOWN: Final = 0
"""Value of ``waiting``: the host cannot see how long the rank waited for others."""
NOT_AT_ALL: Final = 1
"""Value of ``waiting``: there are no other ranks."""
AS_NOTED: Final = 2
"""Value of ``waiting``: the waits are among the events."""

_W = TypeVar("_W", bound=StepWork)

_RUN_QUEUE: Final = 1
"""Position of the waiting time in ``schedstat``."""

Reading = tuple[int, int, bytes | None]
"""Counters of one thread since it started: voluntary and involuntary context switches, and the text of its ``schedstat``
(``None`` where the kernel does not keep it)."""

Span = tuple[int, Reading, Reading]
"""Consecutive steps that end with this one: the number of the first, and the readings before and after them."""

Told = tuple[int | None, int | None, float | None]
"""Samples, tokens and floating-point operations as reported by the script."""


class RawStep(msgspec.Struct, array_like=True):
    """One step; ``started_ns`` and ``ended_ns`` are times of ``perf_counter_ns``."""

    step: int
    start_unix_ns: int
    started_ns: int
    ended_ns: int
    profiled: bool
    waiting: int
    cpu_ns: int
    gc_ns: int
    told: Told | None
    memory: Memory | None
    sections_ns: dict[str, int] | None
    tags: list[str]
    span: Span | None = None
    noted: list[Any] = []
    """Noted events of the step, in the format of ``events``."""
    metrics: dict[str, float] | None = None


RawFields = tuple[
    int,
    int,
    int,
    int,
    bool,
    int,
    int,
    int,
    Told | None,
    Memory | None,
    dict[str, int] | None,
    list[str],
    Span | None,
    list[Any],
    dict[str, float] | None,
]
"""Fields of a ``RawStep``."""

pack_raw = msgspec.msgpack.Encoder().encode
"""Encoder of ``RawFields`` to bytes. Runs on the training thread."""
_spans = msgspec.msgpack.Decoder(tuple[int, int, Reading, Reading])
decode_raw = msgspec.msgpack.Decoder(RawStep).decode
"""Decoder of a packed step. Raises ``msgspec.DecodeError``."""


def unpack_raw(payload: bytes) -> StepEntry:
    """Return the entry of a packed step. Raises ``msgspec.DecodeError``."""
    raw = decode_raw(payload)
    return to_entry(raw, evaluate_raw(raw, PhaseClock(raw.started_ns)))


def evaluate_raw(raw: RawStep, clock: PhaseClock) -> StepEvents[StepWork]:
    """Evaluate the events of a step into ``clock``, which begins with the step."""
    work = StepWork()
    work.tags = raw.tags
    events = StepEvents(clock, work)
    events.noted += raw.noted
    events.finish(raw.ended_ns)
    return events


def to_entry(raw: RawStep, events: StepEvents[_W], *, awaits_device: bool = False) -> StepEntry:
    """Return the entry of a step all of whose events ``events`` has evaluated."""
    samples, elements, given = events.measures.work
    sections_ns = raw.sections_ns or {}
    if events.measures.evaluated_ns:
        sections_ns = {EVALUATION: events.measures.evaluated_ns} | sections_ns
    samples_told, tokens, flops = raw.told or (None, None, None)
    return StepEntry(
        step=raw.step,
        start_unix_ns=raw.start_unix_ns,
        wall_ns=raw.ended_ns - raw.started_ns,
        phases_ns=events.clock.times,
        blocked_ns=None if raw.waiting == NOT_KNOWN else [0] * len(PHASES) if raw.waiting == NOT_AT_ALL else events.clock.blocked,
        profiled=raw.profiled,
        awaits_device=awaits_device,
        cpu_ns=raw.cpu_ns,
        gc_ns=raw.gc_ns,
        samples=samples if samples_told is None else samples_told,
        tokens=tokens,
        input_elements=elements,
        flops=flops,
        memory=raw.memory,
        sections_ns=sections_ns,
        tags=events.measures.tags,
        usage=None if raw.span is None else _usage(*raw.span),
        model_elements=given,
        metrics=raw.metrics or {},
    )


def pack_span(last: int, span: Span) -> bytes:
    """Pack the usage of the steps up to ``last``, where it is not part of the entry of a step."""
    return pack_raw((last, *span))


def unpack_span(payload: bytes) -> tuple[int, Usage]:
    """Unpack the bytes of ``pack_span``, in the helper. Raises ``msgspec.DecodeError``."""
    last, since, before, after = _spans.decode(payload)
    return last, _usage(since, before, after)


def _usage(since: int, before: Reading, after: Reading) -> Usage:
    queued_before, queued = _queued(before[2]), _queued(after[2])
    return Usage(
        since=since,
        run_queue_ns=None if queued is None or queued_before is None else queued - queued_before,
        voluntary_switches=after[0] - before[0],
        involuntary_switches=after[1] - before[1],
    )


def _queued(schedstat: bytes | None) -> int | None:
    fields = (schedstat or b"").split()
    return int(fields[_RUN_QUEUE]) if len(fields) > _RUN_QUEUE else None
