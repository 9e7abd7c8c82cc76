"""What a rank has written into its ring, decoded as its helper does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.ring_step import event

from rankscope.profiler.helper.step_assembler import StepAssembler
from rankscope.profiler.ring import HEAD, MASK, RingWriter
from rankscope.profiler.step_decoder import DecodedStep, StepDecoder
from rankscope.profiler.words import AS_NOTED, NUMBER, WAITING, WHOLE_STEP
from rankscope.runs.records import StepRecord

if TYPE_CHECKING:
    from rankscope.profiler.rank.recorder import StepRecorder

RECORDED = 1 | WHOLE_STEP | AS_NOTED << WAITING
"""Flags of a whole step of a rank that waits for others on the host."""


START = 10**9
"""Start of a step, in nanoseconds of ``perf_counter_ns``."""


def at(kind: int, later: int, *details: int) -> list[int]:
    """Return the words of an event, ``later`` nanoseconds after the start of the step."""
    return event(kind, START + later, *details)


def current_words(ring: RingWriter) -> list[int]:
    """Return the words of the step that is going on in a ring of memory of its own."""
    return [ring.words[at & MASK] for at in range(ring.header[HEAD], ring.at)]


def current_step(recorder: StepRecorder, end_ns: int | None = None) -> DecodedStep:
    """Return what a recorder has written of the step that is going on, as if it ended at ``end_ns`` or with its last event."""
    ring = recorder._ring
    names = {number: name for name, number in ring._names.items()}
    decoder = StepDecoder(lambda number: names.get(number, ""))
    words, start = current_words(ring), recorder._begun
    return decoder.decode(words, recorder.step_number, RECORDED, start, start if end_ns is None else end_ns)


def records(words: Sequence[int]) -> list[StepRecord]:
    """Return the records of the steps whose words these are."""
    assembler = StepAssembler(lambda _: "", lose=_fail, unix_offset=lambda: 0)
    assembler.add(words)
    return [step.record for step in assembler.remaining_steps()]


def _fail(error: Exception) -> None:
    raise error


def numbered(number: int, flags: int = RECORDED) -> int:
    """Return the word of a step's end with its number and flags."""
    return number << NUMBER | flags
