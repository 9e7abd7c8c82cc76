"""Assembly of the records of steps from the words in the ring, and from what arrives later.

Device times arrive some steps later, each for one step. Readings of the thread's counters arrive after the last step of a span
of short steps (see ``rank.meters``), for the whole span. CPU time is split in proportion to the time in which a step did not wait
for others, context switches and the time in the run queue in proportion to its wall time; the parts add up to the reading.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rankscope.profiler import words
from rankscope.profiler.handover import MessageKind
from rankscope.profiler.phases import UNSEEN, PhaseInterval
from rankscope.profiler.ring import STEP_WORDS
from rankscope.profiler.step_decoder import DecodedStep, StepDecoder, device_times
from rankscope.profiler.words import DETAILS, KIND, SHIFT, bytes_of_message, size_of_message, value_of
from rankscope.runs.records import PHASES, PhaseTimes, StepRecord

MAX_HELD: Final = 64
"""Largest number of steps that wait for their device times; beyond it the oldest are written without."""
MAX_SECONDS: Final = 10.0
"""Longest wait of a step for its device times, plus three times its own duration: a hung device must not hide earlier steps."""
MAX_SPAN: Final = 1024
"""Largest number of steps per reading of the thread's counters; steps of longer spans are written without."""
SPAN_SECONDS: Final = 1.0
"""Longest wait of a step for the end of its span, because training may pause."""
_BETWEEN_STEPS: Final = (words.MESSAGE, words.USAGE, words.MEMORY)
_NOT_NUMBERED: Final = (1 << words.NUMBER) - 1
"""Mask of the flags beside a step's number."""


class Usage(NamedTuple):
    """Counters of the training thread, or what it used in one step. ``None``: not known."""

    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    run_queue_ns: int | None = None
    cpu_ns: int | None = None


class MemoryUse(NamedTuple):
    """Memory at one moment in bytes; see the fields of ``StepRecord``. ``None``: not known, or there is no device."""

    resident_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    allocator_retries: int | None = None


class AssembledStep(NamedTuple):
    """Record of a step, and the times of its phases."""

    record: StepRecord
    intervals: Sequence[PhaseInterval]


class EndedStep(NamedTuple):
    """The last step that ended."""

    number: int
    ended_ns: int
    """Time of its end, of ``perf_counter_ns``."""
    waits_known: bool
    """Whether it is known how long the rank waited for others on the host."""


class _PendingStep:
    __slots__ = ("awaits", "awaits_usage", "device", "memory", "position", "step", "until", "usage", "usage_until")

    def __init__(self, step: DecodedStep, position: int, now: float) -> None:
        self.step = step
        self.position = position
        self.device: tuple[list[int], list[int] | None] | None = None
        self.usage, self.memory = Usage(), MemoryUse()
        self.awaits, self.awaits_usage = bool(step.flags & words.AWAITS_DEVICE), True
        # The marks of a step are read at the end of one of the next two steps, which take about as long.
        self.until = now + MAX_SECONDS + 3 * step.wall_ns / 1e9
        self.usage_until = now + SPAN_SECONDS


class StepAssembler:
    """Assembler that takes the words of a rank and returns complete steps, in their order.

    ``name`` returns the name that has a number, ``position`` is that of the first word. ``lose`` is called with the reason where
    words are damaged. ``clock`` is in seconds, ``unix_offset`` returns the system's time less ``perf_counter_ns``.
    """

    def __init__(
        self,
        name: Callable[[int], str],
        position: int = 0,
        *,
        lose: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
        unix_offset: Callable[[], int] = lambda: time.time_ns() - time.perf_counter_ns(),
    ) -> None:
        self._decoder = StepDecoder(name)
        self._lose = lose
        self._clock = clock
        self._unix_offset = unix_offset
        self._pending: list[int] = []
        """Words from ``_position`` on: those of a step whose end has not come yet."""
        self._parsed = 0
        """Number of the pending words that have been looked at."""
        self._position = position
        self._pending_steps: deque[_PendingStep] = deque()
        self._span: list[_PendingStep] = []
        """Steps since the last reading of the thread's counters."""
        self._counters: Usage | None = None
        """The last reading; ``None``: there is none for the steps since."""
        self.last: EndedStep | None = None
        self._number = self._read_after = -1
        """Number of the last step that ended, and of the last one before the last reading."""

    def add(self, added: Sequence[int]) -> list[tuple[int, bytes]]:
        """Add words; return the messages among them, as (kind, content). Damaged words are reported through ``lose``."""
        self._pending += added
        messages: list[tuple[int, bytes]] = []
        while True:
            try:
                self._parse(messages)
            except Exception as error:  # noqa: BLE001  # damaged words must not cost the steps after them
                self._lose(error)
            else:
                return messages

    def _parse(self, messages: list[tuple[int, bytes]]) -> None:
        while self._parsed < len(self._pending):
            pending, place = self._pending, self._parsed
            word = pending[place]
            kind = word & KIND
            size = 0
            if kind == words.MESSAGE:
                about, size, more = size_of_message(word)
            else:
                more = DETAILS[kind]
            if more > STEP_WORDS:
                self._parsed = place + 1
                raise ValueError(f"a message of {size} bytes")
            if place + more >= len(pending):
                return
            self._parsed = place + 1 + more
            details = pending[place + 1 : self._parsed]
            if kind == words.MESSAGE:
                content = bytes_of_message(size, details)
                if about == MessageKind.DEVICE:
                    self._add_device(content)
                else:
                    messages.append((about, content))
            else:
                self._take(kind, word >> SHIFT, details)
            if not place and kind in _BETWEEN_STEPS:
                self._cut()

    def _take(self, kind: int, at: int, details: Sequence[int]) -> None:
        """Handle a word, most of which only count when their step has ended."""
        if kind == words.USAGE:
            self._add_usage(details)
        elif kind == words.MEMORY:
            if self._pending_steps:
                self._pending_steps[-1].memory = MemoryUse(*map(value_of, details))
        elif kind == words.END:
            self._end(at, *details)

    def _end(self, ended: int, about: int, started: int) -> None:
        step, position = self._pending[: self._parsed - 1 - DETAILS[words.END]], self._position
        self._cut()
        flags = about & _NOT_NUMBERED
        self._number = about >> words.NUMBER
        decoded = self._decoder.decode(step, about >> words.NUMBER, flags, started, ended)
        self.last = EndedStep(self._number, ended, waits_known=decoded.blocked_ns is not None)
        # A first step whose beginning was not observed has a number but no record.
        if not flags & words.WHOLE_STEP:
            return
        pending = _PendingStep(decoded, position, self._clock())
        self._pending_steps.append(pending)
        self._span.append(pending)
        if len(self._span) > MAX_SPAN:
            self._end_span()
        if len(self._pending_steps) > MAX_HELD:
            self._pending_steps[-1 - MAX_HELD].awaits = False

    def _cut(self) -> None:
        """Forget the words that have been looked at."""
        self._pending = self._pending[self._parsed :]
        self._position, self._parsed = self._position + self._parsed, 0

    def _add_usage(self, details: Sequence[int]) -> None:
        *counters, begins = map(value_of, details)
        reading, before = Usage(*counters), self._counters
        if before is not None and not begins:
            self._share(before, reading)
        self._counters, self._read_after = reading, self._number
        self._end_span()

    def _share(self, before: Usage, after: Usage) -> None:
        """Split what the thread used between two readings over the steps between."""
        span = self._span
        # If a step is missing, its share is not known.
        if not span or len(span) != self._number - self._read_after:
            return
        walls = [pending.step.wall_ns + 1 for pending in span]
        own = [max(pending.step.wall_ns - sum(pending.step.blocked_ns or ()), 0) + 1 for pending in span]
        used = [None if last is None or first is None else last - first for first, last in zip(before, after, strict=True)]
        weights = (walls, walls, walls, own)
        parts = [[None] * len(span) if total is None else _shares(total, by) for total, by in zip(used, weights, strict=True)]
        for pending, shares in zip(span, zip(*parts, strict=True), strict=True):
            pending.usage = Usage(*shares)

    def _end_span(self) -> None:
        for pending in self._span:
            pending.awaits_usage = False
        self._span.clear()

    def _add_device(self, content: bytes) -> None:
        number, *marks_ns = struct.unpack(f"={len(content) // 8}q", content)
        for pending in self._pending_steps:
            if pending.step.number == number:
                pending.device, pending.awaits = device_times(pending.step, marks_ns), False
                break

    @property
    def position(self) -> int:
        """Position of the first word that is not part of a returned step."""
        return self._pending_steps[0].position if self._pending_steps else self._position

    def complete(self) -> list[AssembledStep]:
        """Return the steps that are complete, or have waited long enough; to be called after ``add`` and periodically."""
        now = self._clock()
        for pending in self._pending_steps:
            if now <= pending.usage_until:
                break
            pending.awaits_usage = False
        offset = self._unix_offset()
        steps = []
        while self._pending_steps:
            pending = self._pending_steps[0]
            if pending.awaits_usage or (pending.awaits and now <= pending.until):
                break
            self._pending_steps.popleft()
            steps.append(AssembledStep(_record(pending, offset), _intervals(pending.step, offset)))
        return steps

    def remaining_steps(self) -> list[AssembledStep]:
        """Return all remaining steps, after the end of the rank."""
        for pending in self._pending_steps:
            pending.awaits = pending.awaits_usage = False
        return self.complete()


def _shares(total: int, weights: list[int]) -> list[int | None]:
    """Split ``total`` into integers proportional to ``weights``, as far as integers can be, that add up to it."""
    weight_sum, weight_so_far, before = sum(weights), 0, 0
    shares: list[int | None] = []
    for weight in weights:
        weight_so_far += weight
        up_to = total * weight_so_far // weight_sum
        shares.append(up_to - before)
        before = up_to
    return shares


def _record(pending: _PendingStep, unix_offset: int) -> StepRecord:
    step, memory, usage, work = pending.step, pending.memory, pending.usage, pending.step.work
    samples, elements, model_elements = work.work
    device, device_blocked = pending.device or (None, None)
    return StepRecord(
        step=step.number,
        start_unix_ns=step.start_ns + unix_offset,
        wall_us=step.wall_ns / 1000,
        phases_us=_phases(step.phases_ns),
        blocked_us=_blocked(step.blocked_ns, step.phases_ns),
        cpu_us=None if usage.cpu_ns is None else usage.cpu_ns / 1000,
        run_queue_us=None if usage.run_queue_ns is None else usage.run_queue_ns / 1000,
        voluntary_switches=usage.voluntary_switches,
        involuntary_switches=usage.involuntary_switches,
        gc_us=step.gc_ns / 1000,
        samples=samples,
        tokens=step.tokens,
        input_elements=elements,
        model_elements=model_elements,
        flops=step.flops,
        device_us=None if device is None else _phases(device),
        device_blocked_us=None if device is None else _blocked(device_blocked, device),
        sections_us={name: ns / 1000 for name, ns in step.sections_ns.items()},
        profiled=bool(step.flags & words.PROFILED),
        tags=work.tags,
        metrics=step.metrics,
        **memory._asdict(),
    )


def _intervals(step: DecodedStep, unix_offset: int) -> list[PhaseInterval]:
    intervals = []
    start = step.start_ns
    for phase, end in step.pieces:
        if end > start:
            waited = sum(max(0, min(end, until) - max(start, since)) for since, until in step.waits)
            blocked = min(waited, end - start)
            intervals.append(PhaseInterval(PHASES[phase], start + unix_offset, end + unix_offset, blocked))
            start = end
    return intervals


def _phases(times: list[int]) -> PhaseTimes:
    return _times([None if ns == UNSEEN else ns / 1000 for ns in times])


def _blocked(blocked: list[int] | None, times: list[int]) -> PhaseTimes | None:
    """Return the blocked time of each observed phase: zero without waiting, and never longer than the phase itself."""
    if blocked is None:
        return None
    pairs = zip(blocked, times, strict=True)
    return _times([None if ns == UNSEEN else max(min(wait, ns), 0) / 1000 for wait, ns in pairs])


def _times(values: list[float | None]) -> PhaseTimes:
    # Explicit keywords instead of a dictionary, because this runs at every step of every rank.
    data, h2d, forward, backward, optimizer, between_steps = values
    return PhaseTimes(data=data, h2d=h2d, forward=forward, backward=backward, optimizer=optimizer, between_steps=between_steps)
