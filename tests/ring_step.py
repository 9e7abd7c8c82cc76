"""Steps in the words of the ring, for tests of its readers."""

from __future__ import annotations

from pathlib import Path

from rankscope.profiler.phases import BACKWARD
from rankscope.profiler.ring import RingWriter
from rankscope.profiler.words import END, LEAVE, NUMBER, PROFILED, SHIFT, USAGE, WHOLE_STEP, detail

SEEN = 1 | WHOLE_STEP
"""Flags of a usual step."""


def event(kind: int, at: int, *details: int) -> list[int]:
    """Return the words of an event with these details."""
    return [at << SHIFT | kind, *details]


def numbers(*values: int | None) -> list[int]:
    """Return the words of details."""
    return [detail(value) for value in values]


def step_words(number: int, *events: list[int], start_ns: int = 10**9, wall_ns: int = 1_000_000, flags: int = SEEN) -> list[int]:
    """Return the words of a step with these events; its last detail tells when it began."""
    words = [word for event in events for word in event]
    return [*words, (start_ns + wall_ns) << SHIFT | END, number << NUMBER | flags, start_ns]


def usage(*counters: int | None, begins: bool = False) -> list[int]:
    """Return the words of a reading of the thread's counters."""
    return event(USAGE, 1, *numbers(*counters, int(begins)))


def put_step(ring: RingWriter, number: int, *, wall_ns: int = 1_000_000, profiled: bool = False) -> bool:
    """Write a step that is one long forward phase, and the reading that it waits for. False: the ring has no room."""
    end = 10**9 + wall_ns
    flags = SEEN | PROFILED * profiled
    ring.write(*step_words(number, event(BACKWARD, end), event(LEAVE, end), wall_ns=wall_ns, flags=flags))
    ring.write(*usage(0, 0, None, 0))
    return ring.next_step()


def ring_in(path: Path) -> RingWriter:
    """Return the writer of a ring in a new file."""
    ring = RingWriter()
    with path.open("xb+") as file:
        ring.share(file.fileno())
    return ring
