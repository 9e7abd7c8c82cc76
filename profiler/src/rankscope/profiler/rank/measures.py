"""Measures of a step besides its phases: start, resource use of the thread, amount of work, and tags."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict
from contextlib import suppress
from numbers import Real
from time import perf_counter_ns as now
from time import thread_time_ns, time_ns
from typing import Final

from torch import Tensor

from rankscope.profiler.events import StepEvents
from rankscope.profiler.rank.guard import raised_by_a_signal_handler
from rankscope.profiler.rank.meters import EVERY_STEPS, GC_TAG, READ_EVERY_NS, GcMeter, MemoryMeter, ThreadMeter
from rankscope.profiler.raw import RawFields, Span, Told
from rankscope.profiler.work import MAX_METRICS, NO_WORK, Sections, StepWork

_MAX_COUNT: Final = 2**63
_MAX_LEAVES: Final = 64
"""Largest number of items examined in one batch, to keep the measure cheap."""

# Other mappings may compute their values on access, as a lazy batch does.
_PLAIN_VALUES: Final = (dict.values, OrderedDict.values)


class StepMeasures(StepWork):
    """Measures of the current step of the thread that made this object. Meters are read once, where two steps meet."""

    def __init__(self) -> None:
        super().__init__()
        self._meter = ThreadMeter()
        self._gc = GcMeter(now)
        self.memory = MemoryMeter()
        self.sections = Sections()
        self._told: Told | None = None
        self._metrics: dict[str, float] | None = None
        self.use_due_ns = 0
        """Time of the next reading of the thread's usage; 0: at the end of this step."""
        self.restart(0)

    def restart(self, step: int) -> None:
        """Begin ``step`` only now, because the time so far was the recorder's own cost."""
        self.restart_span(step)
        self._gc_ns, self._full = self._gc.read()
        self._cpu_ns = thread_time_ns()
        self._start_unix_ns = time_ns()

    def restart_span(self, step: int) -> None:
        """Count context switches and the time in the run queue from ``step`` on."""
        self._since, self._use, self.use_due_ns = step, self._meter.read(), now() + READ_EVERY_NS

    def told(self, samples: object, tokens: object, flops: object) -> None:
        """Set samples, tokens and floating-point operations of the step, which override the measured values.

        A value that is not a number counts as unknown: reading a tensor on a device would wait for the device.
        """
        self._told = _count(samples), _count(tokens), _number(flops)

    def metric(self, name: str, value: object) -> None:
        """Set a metric of the script in this step. A value that is no finite number is left out, as in ``told``."""
        known = self._metrics or {}
        if (name in known or len(known) < MAX_METRICS) and (number := _finite(value)) is not None:
            self._metrics = known
            known[name] = number

    def take(self, step: int, events: StepEvents[StepMeasures], ended: int, profiled: bool, waiting: int) -> RawFields:
        """Return the fields of the step that ends now, see ``RawStep``, and begin the next one."""
        cpu_ns, started = thread_time_ns(), self._start_unix_ns
        self._start_unix_ns = time_ns()
        gc_ns = 0
        if self._gc.stamps:
            gc_ns = self._collected()
        span: Span | None = None
        if ended >= self.use_due_ns:
            span = self.take_span(step + 1)
            self.use_due_ns = ended + READ_EVERY_NS
        fields = (
            step,
            started,
            events.start,
            ended,
            profiled,
            waiting,
            cpu_ns - self._cpu_ns,
            gc_ns,
            self._told,
            None if step % EVERY_STEPS and ended < self.memory.due_ns else self.memory.read(ended),
            self.sections.take(ended) if self.sections.used else None,
            self.tags,
            span,
            events.noted,
            self._metrics,
        )
        self._cpu_ns = cpu_ns
        self._told = self._metrics = None
        return fields

    def take_span(self, following: int) -> Span:
        """Return the usage of the thread in the steps since the last reading, up to but not including ``following``."""
        span = self._since, self._use, self._meter.read()
        self._since, self._use = following, span[2]
        return span

    def _collected(self) -> int:
        """Return the nanoseconds of garbage collection since the step began."""
        gc_ns, full = self._gc.read()
        if full != self._full:
            self._full = full
            self.tag(GC_TAG)
        before, self._gc_ns = self._gc_ns, gc_ns
        return gc_ns - before

    def forget(self) -> None:
        """Clear tags and work of the step that has been taken, before the next one."""
        if self.tags:
            self.tags = []
        self.work = NO_WORK
        self.evaluated_ns = 0

    def close(self) -> None:
        """Stop measuring. Never raises."""
        for meter in (self._gc, self._meter, self.memory):
            with suppress(Exception):
                meter.close()


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _number(value: object) -> float | None:
    number = _finite(value)
    return None if number is None or number < 0 else number


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number >= _MAX_COUNT else int(value)  # type: ignore[call-overload]  # a number


def measure(batch: object) -> tuple[int | None, int | None]:
    """Return (samples, elements) of a batch: first dimension of its first tensor, elements of all its tensors.

    ``None`` where there is no tensor, and for a batch that cannot be examined.
    """
    try:
        return _measure(batch)
    except Exception as error:
        # An error in a custom batch class is not the recorder's: the size is unknown.
        if raised_by_a_signal_handler(error):
            raise
        return None, None


def _measure(batch: object) -> tuple[int | None, int | None]:
    if isinstance(batch, Tensor):
        return (batch.size(0) if batch.dim() else None), batch.numel()
    samples: int | None = None
    elements: int | None = None
    queue: list[object] = [batch]
    for item in queue:
        if len(queue) > _MAX_LEAVES:
            del queue[_MAX_LEAVES:]
        if isinstance(item, Tensor):
            if samples is None and item.dim():
                samples = item.size(0)
            elements = (elements or 0) + item.numel()
        elif isinstance(item, list | tuple):
            queue.extend(item[:_MAX_LEAVES])
        elif isinstance(item, dict) and type(item).values in _PLAIN_VALUES:
            queue.extend(item.values())
        elif isinstance(item, UserDict) and isinstance(item.data, dict):
            queue.append(item.data)
    return samples, elements
