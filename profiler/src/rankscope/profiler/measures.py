"""What is known of a step besides its phases: when it began, what the thread used, what it worked on, what happened in it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final, TypedDict

from rankscope.profiler.batch import measure
from rankscope.profiler.clock import now
from rankscope.profiler.host import GC_TAG, GcMeter, ThreadMeter

_MAX_TAGS: Final = 8
_MAX_TAG_LETTERS: Final = 32


class Measured(TypedDict):
    """Fields of a ``StepRecord``."""

    start_unix_ns: int
    cpu_us: float
    run_queue_us: float | None
    voluntary_switches: int
    involuntary_switches: int
    gc_us: float
    samples: int | None
    input_elements: int | None
    tags: list[str]


class StepMeasures:
    """Measures of the current step of the thread that made it; ``begin`` starts the next one."""

    def __init__(self) -> None:
        self._meter = ThreadMeter()
        self._gc = GcMeter(now)
        self.samples: int | None = None
        self._elements: int | None = None
        self._tags: list[str] = []
        self.begin()

    def begin(self) -> None:
        """A step begins now."""
        self.samples = self._elements = None
        self._tags.clear()
        self._gc.take()
        self._use = self._meter.read()
        self._start_unix_ns = time.time_ns()

    def add_batch(self, batch: object) -> None:
        """The step works on ``batch``, too."""
        samples, elements = measure(batch)
        if samples is not None:
            self.samples = (self.samples or 0) + samples
        if elements is not None:
            self._elements = (self._elements or 0) + elements

    def tag(self, tag: str) -> None:
        """``tag`` happens in the step."""
        if tag not in self._tags and len(self._tags) < _MAX_TAGS:
            self._tags.append(tag[:_MAX_TAG_LETTERS])

    def take(self) -> Measured:
        """The measures of the step that ends now."""
        before, use = self._use, self._meter.read()
        gc_ns, full = self._gc.take()
        if full:
            self.tag(GC_TAG)
        queued = None
        if use.run_queue_ns is not None and before.run_queue_ns is not None:
            queued = (use.run_queue_ns - before.run_queue_ns) / 1000
        return Measured(
            start_unix_ns=self._start_unix_ns,
            cpu_us=(use.cpu_ns - before.cpu_ns) / 1000,
            run_queue_us=queued,
            voluntary_switches=use.voluntary - before.voluntary,
            involuntary_switches=use.involuntary - before.involuntary,
            gc_us=gc_ns / 1000,
            samples=self.samples,
            input_elements=self._elements,
            tags=list(self._tags),
        )

    def close(self) -> None:
        """Stop measuring. Never raises."""
        with suppress(Exception):
            self._gc.close()
        with suppress(Exception):
            self._meter.close()
