"""Decoder of the words of a step: phases, waits, work and annotations. Runs in the helper process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.profiler import words
from rankscope.profiler.evaluation import EvaluationDetector
from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, H2D, OPTIMIZER, UNSEEN, PhaseClock
from rankscope.profiler.words import DETAILS, KIND, MARKED, SHIFT, float_of, size_of_message, value_of
from rankscope.profiler.work import CHECKPOINT, EVALUATION, MAX_METRICS, Sections, StepWork
from rankscope.runs.records import PHASES

GC_TAG: Final = "gc"
_TRAINING: Final = (DATA, BACKWARD, OPTIMIZER)
_WAITS: Final = (words.WAIT, words.WAITED, words.READY)
_BATCHES: Final = (words.BATCH, words.NO_BATCH)
_PASS_ENDS: Final = (words.LEAVE, words.RETURNED)
_CUTS: Final = frozenset(
    (
        *range(len(PHASES)), words.LEAVE, words.RAISED, words.TRAINING_BATCH, words.BATCH_WITHOUT_GRADIENTS, words.BATCH,
        words.NO_BATCH, words.MODEL_INPUT, words.MODEL_EVALUATES, words.MODEL_TRAINS, *_WAITS, words.RETURNED,
    )
)  # fmt: skip
"""Kinds of events that the phases depend on."""
_SHOWN: Final = _CUTS | {words.CHECKPOINT_BEGINS, words.CHECKPOINT_ENDS, words.SECTION, words.SECTION_ENDS}
"""Kinds of events that show what a rank is doing."""


class PhaseEvent:
    """One event that the phases of a step depend on."""

    __slots__ = ("at", "details", "kind", "marked")

    def __init__(self, kind: int, at: int, marked: bool, details: Sequence[int | None]) -> None:
        self.kind, self.at, self.marked, self.details = kind, at, marked, details


@dataclass(slots=True)
class DecodedStep:
    """One step. Times are nanoseconds of ``perf_counter_ns``, or nanoseconds per phase; ``UNSEEN`` marks a phase without time."""

    number: int
    start_ns: int
    end_ns: int
    flags: int
    events: list[PhaseEvent]
    phases_ns: list[int]
    blocked_ns: list[int] | None
    pieces: list[tuple[int, int]]
    """(phase, end) of the consecutive pieces of the step."""
    waits: list[tuple[int, int]]
    """(start, end) of the waits for other ranks."""
    work: StepWork
    tokens: int | None
    flops: float | None
    gc_ns: int
    sections_ns: dict[str, int]
    metrics: dict[str, float]

    @property
    def wall_ns(self) -> int:
        """Duration in nanoseconds."""
        return self.end_ns - self.start_ns


class _Annotations:
    """What the script and the meters say of one step, besides its phases."""

    __slots__ = ("_name", "_sections", "_work", "flops", "gc_ns", "metrics", "samples", "tokens", "unseen")

    def __init__(self, name: Callable[[int], str], sections: Sections, work: StepWork) -> None:
        self._name, self._sections, self._work = name, sections, work
        self.metrics: dict[str, float] = {}
        self.samples: int | None = None
        self.tokens: int | None = None
        self.flops: float | None = None
        self.gc_ns = 0
        self.unseen = False
        """True if the rank may have waited for others without a sign of how long."""

    def add(self, kind: int, at: int, details: Sequence[int]) -> None:
        """Add an event that the phases do not depend on."""
        if kind == words.UNSEEN_WAIT:
            self.unseen = True
        elif kind == words.COLLECTED:
            self.gc_ns += value_of(details[0]) or 0
            if value_of(details[1]):
                self._work.tag(GC_TAG)
        elif kind == words.WORK:
            self.samples, self.tokens = value_of(details[0]), value_of(details[1])
            self.flops = float_of(details[2], details[3])
        elif kind in (words.SECTION, words.SECTION_ENDS, words.TAG, words.METRIC) and (name := self._named(details[0])):
            self._add_named(kind, at, name, details)

    def _named(self, word: int) -> str:
        number = value_of(word)
        return "" if number is None else self._name(number)

    def _add_named(self, kind: int, at: int, name: str, details: Sequence[int]) -> None:
        if kind == words.SECTION:
            self._sections.enter(name, at)
        elif kind == words.SECTION_ENDS:
            self._sections.leave(name, at)
        elif kind == words.METRIC:
            number = float_of(details[1], details[2])
            if number is not None and (name in self.metrics or len(self.metrics) < MAX_METRICS):
                self.metrics[name] = number
        else:
            self._work.tag(name)
            if name == CHECKPOINT:
                # The script may write most of its checkpoint in other ways than the functions that are timed.
                self._sections.discard(CHECKPOINT)


class StepDecoder:
    """Decoder of the steps of one rank, in their order. ``name`` returns the name that has a number."""

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._sections = Sections()

    def decode(self, step: Sequence[int], number: int, flags: int, start_ns: int, end_ns: int) -> DecodedStep:
        """Decode the words of a step, without its ``END``."""
        work = StepWork()
        annotations = _Annotations(self._name, self._sections, work)
        events = self._events(step, annotations, work)
        division = _PhaseDivision(start_ns, work)
        division.add(events)
        division.finish(end_ns)
        end_ns = start_ns + sum(ns for ns in division.clock.times if ns != UNSEEN)
        sections_ns = self._sections.take(end_ns)
        if work.evaluated_ns:
            sections_ns = {EVALUATION: work.evaluated_ns} | sections_ns
        if annotations.samples is not None:
            work.work = annotations.samples, *work.work[1:]
        waiting = flags >> words.WAITING & 3
        if waiting == words.NOT_AT_ALL:
            blocked: list[int] | None = [0] * len(PHASES)
        elif annotations.unseen or waiting == words.NOT_KNOWN or (waiting == words.IF_NOTED and not division.waits):
            blocked = None
        else:
            blocked = division.clock.blocked
        return DecodedStep(
            number=number, start_ns=start_ns, end_ns=end_ns, flags=flags, events=events, phases_ns=division.clock.times,
            blocked_ns=blocked, pieces=division.clock.pieces, waits=division.waits, work=work, tokens=annotations.tokens,
            flops=annotations.flops, gc_ns=annotations.gc_ns, sections_ns=sections_ns, metrics=annotations.metrics,
        )  # fmt: skip

    def _events(self, step: Sequence[int], annotations: _Annotations, work: StepWork) -> list[PhaseEvent]:
        """Return the events that the phases depend on; all others are added to ``annotations``."""
        events: list[PhaseEvent] = []
        for kind, at, marked, details in _parsed(step):
            if kind in _CUTS:
                events.append(PhaseEvent(kind, at, marked, [value_of(more) for more in details]))
            elif kind == words.CHECKPOINT_BEGINS:
                work.tag(CHECKPOINT)
                self._sections.enter(CHECKPOINT, at)
                events.append(PhaseEvent(BETWEEN, at, marked, ()))
            elif kind == words.CHECKPOINT_ENDS:
                self._sections.leave(CHECKPOINT, at)
                events.append(PhaseEvent(words.LEAVE, at, marked, ()))
            else:
                annotations.add(kind, at, details)
        return events


def _parsed(step: Sequence[int]) -> Iterator[tuple[int, int, bool, Sequence[int]]]:
    """Return (kind, time, marked, details) of the events among some words."""
    place = 0
    while place < len(step):
        word = step[place]
        kind = word & KIND
        if kind == words.MESSAGE:
            place += 1 + size_of_message(word)[2]
            continue
        following = place + 1 + DETAILS[kind]
        yield kind, word >> SHIFT, bool(word & MARKED), step[place + 1 : following]
        place = following


class _PhaseDivision:
    """Division of the time of a step, which begins at ``start``, by its events."""

    def __init__(self, start: int, work: StepWork) -> None:
        self.clock = PhaseClock(start)
        self.waits: list[tuple[int, int]] = []
        self._work = work
        self._evaluation = EvaluationDetector()
        self._began: int | None = None
        """Start of the wait that is going on."""
        self._ready: int | None = None
        """Time when the graph of the pass that ends next was exhausted."""

    def add(self, events: Sequence[PhaseEvent]) -> None:
        """Add events in their order."""
        clock, evaluation = self.clock, self._evaluation
        for event in events:
            kind, at = event.kind, event.at
            if kind <= BETWEEN:
                if evaluation.suspected is not None and kind in _TRAINING:
                    evaluation.training(clock, self._work, proof=kind != DATA)
                clock.enter(kind, at)
            elif kind in _PASS_ENDS:
                self._end_pass(at)
                if kind == words.LEAVE:
                    clock.leave(at)
            elif kind in _BATCHES:
                clock.leave(at)
                if kind == words.BATCH:
                    self._work.add_work(*event.details)
                if evaluation.suspected is not None:
                    evaluation.batch(at)
            elif kind in _WAITS:
                self._wait(kind, at)
            else:
                self._add_other(event)

    def finish(self, end: int) -> None:
        """End the step."""
        if self._evaluation.suspected is not None:
            self._evaluation.training(self.clock, self._work, proof=True)
        self.clock.finish(end)

    def _end_pass(self, at: int) -> None:
        if self._ready is None:
            return
        # Waits inside are part of it already.
        ready, self._ready = self._ready, None
        inside = sum(until - since for since, until in self.waits if since >= ready)
        self.clock.wait(at - ready - inside)
        self.waits = [wait for wait in self.waits if wait[0] < ready] + [(ready, at)]

    def _wait(self, kind: int, at: int) -> None:
        if kind == words.READY:
            self._ready = at
        elif kind == words.WAIT:
            self._began = at
        elif self._began is not None:
            self.clock.wait(at - self._began)
            self.waits.append((self._began, at))
            self._began = None

    def _add_other(self, event: PhaseEvent) -> None:
        kind, at, details = event.kind, event.at, event.details
        clock, work, evaluation = self.clock, self._work, self._evaluation
        if kind == words.MODEL_INPUT:
            work.add_model_work(details[0])
        elif kind == words.RAISED:
            clock.abandon(OPTIMIZER)
        elif kind == words.BATCH_WITHOUT_GRADIENTS:
            evaluation.batch_without_gradients(clock, work, at)
        elif kind == words.MODEL_EVALUATES:
            evaluation.model_evaluates(clock, work, at, gradients=bool(details[0]))
        elif kind == words.MODEL_TRAINS and evaluation.suspected is not None:
            evaluation.model_trains(clock, work, at, gradients=bool(details[0]))
        elif kind == words.TRAINING_BATCH and evaluation.suspected is not None:
            evaluation.batch_to_train_on(clock, work)


def device_times(step: DecodedStep, marks_ns: Sequence[int]) -> tuple[list[int], list[int] | None] | None:
    """Return the phases of a step on its device, and the waits for other ranks in them (``None``: not known).

    ``marks_ns``: when the device reached the marks of the step's marked events and of its end, in nanoseconds since the mark of
    its start. ``None``: marks are missing, or those of different streams are out of order, so the times between are not known.
    """
    marked = sum(event.marked for event in step.events)
    if len(marks_ns) != marked + 1:
        return None
    at, following, signalled = 0, iter(marks_ns), bool(step.flags & words.SIGNALLED)
    events: list[PhaseEvent] = []
    for event in step.events:
        time = next(following) if event.marked else at
        if event.kind in _WAITS:
            if not event.marked:
                # The device waited without marks around it.
                signalled = False
                if event.kind == words.WAITED and events and events[-1].kind == words.WAIT:
                    events.pop()
                continue
        elif time < at:
            return None
        else:
            at = time
        events.append(PhaseEvent(event.kind, time, True, event.details))
    if marks_ns[-1] < at:
        return None
    division = _PhaseDivision(0, StepWork())
    division.add(events)
    division.finish(marks_ns[-1])
    blocked = division.clock.blocked
    return division.clock.times, blocked if signalled and min(blocked) >= 0 else None


@dataclass(slots=True)
class Activity:
    """What a rank is doing."""

    phase: int
    """Phase in which the rank is, as far as the events so far show."""
    since_ns: int
    """Time of its last event."""
    waits: bool
    """Whether it waits for other ranks."""
    unseen: bool
    """True if it may wait without a sign of it."""
    checkpoint: bool
    """Whether it writes a checkpoint."""
    section: int | None
    """Number of the name of the script's innermost section that is open."""


def activity(step: Sequence[int], ready_ns: int = 0) -> Activity | None:
    """Return what the rank is doing by the words of the step that is going on; ``None``: nothing has happened in it yet.

    ``ready_ns``: time when the graph of the last backward pass was exhausted, from which on the pass waits for other ranks.
    """
    kinds = {word_kind for word_kind, _, _, _ in _parsed(step)}
    if kinds.isdisjoint(_SHOWN):
        return None
    opened: list[int] = []
    waits, since, last = False, 0, UNSEEN
    for kind, at, _, _ in _parsed(step):
        since = max(since, at)
        if kind <= BETWEEN or kind == words.CHECKPOINT_BEGINS:
            opened.append(kind)
        elif kind in (words.LEAVE, words.CHECKPOINT_ENDS, *_BATCHES):
            ended = opened.pop() if opened else BETWEEN
            last = last if ended in (H2D, BETWEEN, words.CHECKPOINT_BEGINS) else ended
        elif kind == words.RAISED:
            opened = [phase for phase in opened if phase != OPTIMIZER]
        elif kind in (words.WAIT, words.WAITED):
            waits = kind == words.WAIT
    # Time after a batch is forward; time after a backward pass is the optimizer's.
    following = {DATA: PHASES.index("forward"), BACKWARD: OPTIMIZER}
    phase = min(opened[-1], BETWEEN) if opened else following.get(last, BETWEEN)
    if BACKWARD in opened[-1:] and ready_ns > since:
        waits, since = True, ready_ns
    return Activity(
        phase=phase,
        since_ns=since,
        waits=waits,
        unseen=words.UNSEEN_WAIT in kinds,
        checkpoint=words.CHECKPOINT_BEGINS in opened,
        section=_open_section(step),
    )


def _open_section(step: Sequence[int]) -> int | None:
    """Return the number of the name of the innermost section that begins in some words and does not end."""
    opened: list[int] = []
    for kind, _, _, details in _parsed(step):
        if kind == words.SECTION:
            opened.append(details[0])
        elif kind == words.SECTION_ENDS and details[0] in opened:
            del opened[opened.index(details[0]) :]
    return value_of(opened[-1]) if opened else None
