"""What is known of a step besides its phases: when it began, what the thread used, what it worked on, what happened in it."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from numbers import Real
from typing import Final

from rankscope.profiler.clock import now
from rankscope.profiler.entries import StepEntry
from rankscope.profiler.host import GC_TAG, GcMeter, ThreadMeter
from rankscope.profiler.memory import EVERY_STEPS, MemoryMeter
from rankscope.profiler.sections import Sections, short

_MAX_TAGS: Final = 8
_MAX_COUNT: Final = 2**63


class StepMeasures:
    """Measures of the current step of the thread that made it. Meters are read once where one step ends and the next begins."""

    def __init__(self) -> None:
        self._meter = ThreadMeter()
        self._gc = GcMeter(now)
        self._memory = MemoryMeter()
        self.sections = Sections()
        self.tags: list[str] = []
        self.work: tuple[int | None, int | None] = (None, None)
        """Samples and input elements so far."""
        self._told: tuple[int | None, int | None, float | None] = (None, None, None)
        self.restart()

    def restart(self) -> None:
        """The step begins only now: what it cost so far was the recorder's own."""
        self._use = self._meter.read()
        self._gc_ns, self._full = self._gc.read()
        self._start_unix_ns = time.time_ns()

    def add_work(self, samples: int | None, elements: int | None) -> None:
        """The step works on a batch of so many samples and elements, too."""
        before = self.work
        self.work = _sum(before[0], samples), _sum(before[1], elements)

    def told(self, samples: object, tokens: object, flops: object) -> None:
        """Samples, tokens and floating-point operations of the step as the script says; it knows better.

        What is no number is not known: asking a tensor on a device would wait for the device.
        """
        self._told = _count(samples), _count(tokens), _number(flops)

    def tag(self, tag: str) -> None:
        """``tag`` happens in the step."""
        tag = short(tag)
        if tag not in self.tags and len(self.tags) < _MAX_TAGS:
            self.tags.append(tag)

    def take(
        self,
        ended: int,
        *,
        step: int,
        wall_ns: int,
        phases_ns: list[int],
        blocked_ns: list[int] | None,
        profiled: bool,
        awaits_device: bool,
    ) -> StepEntry:
        """The entry of the step that ends now; the next one begins."""
        cpu, queued, voluntary, involuntary = self._meter.read()
        cpu_before, queued_before, voluntary_before, involuntary_before = self._use
        gc_ns, full = self._gc.read()
        if full != self._full:
            self.tag(GC_TAG)
        samples, elements = self.work
        samples_told, tokens, flops = self._told
        entry = StepEntry(
            step,
            self._start_unix_ns,
            wall_ns,
            phases_ns,
            blocked_ns,
            profiled,
            awaits_device,
            cpu - cpu_before,
            None if queued is None or queued_before is None else queued - queued_before,
            voluntary - voluntary_before,
            involuntary - involuntary_before,
            gc_ns - self._gc_ns,
            samples if samples_told is None else samples_told,
            tokens,
            elements,
            flops,
            None if step % EVERY_STEPS and ended < self._memory.due_ns else self._memory.read(ended),
            self.sections.take(ended) if self.sections.used else {},
            self.tags,
        )
        self._use = cpu, queued, voluntary, involuntary
        self._gc_ns, self._full = gc_ns, full
        self._start_unix_ns = time.time_ns()
        self.work = None, None
        if samples_told is not None or tokens is not None or flops is not None:
            self._told = None, None, None
        if self.tags:
            self.tags = []
        return entry

    def close(self) -> None:
        """Stop measuring. Never raises."""
        for meter in (self._gc, self._meter, self._memory):
            with suppress(Exception):
                meter.close()


def _sum(total: int | None, more: int | None) -> int | None:
    if more is None:
        return total
    return more if total is None else total + more


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if math.isfinite(number) and number >= 0 else None


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number >= _MAX_COUNT else int(value)  # type: ignore[call-overload]  # a number
