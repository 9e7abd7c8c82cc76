"""Evaluation of the words of a step: phases, waits, work and annotations. Runs in the helper process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rankscope.profiler import events as words
from rankscope.profiler.evaluation import Evaluation
from rankscope.profiler.events import DETAILS, KIND, MARKED, SHIFT, float_of, size_of_message, value_of
from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, OPTIMIZER, UNSEEN, PhaseClock
from rankscope.profiler.work import CHECKPOINT, EVALUATION, MAX_METRICS, Sections, StepWork
from rankscope.runs.records import PHASES

GC_TAG: Final = "gc"
_TRAINING: Final = (DATA, BACKWARD, OPTIMIZER)
_WAITS: Final = (words.WAIT, words.WAITED, words.READY)
_CUTS: Final = frozenset(
    (
        *range(len(PHASES)), words.LEAVE, words.RAISED, words.TRAINING_BATCH, words.BATCH_WITHOUT_GRADIENTS, words.BATCH,
        words.NO_BATCH, words.MODEL_INPUT, words.MODEL_EVALUATES, words.MODEL_TRAINS, *_WAITS, words.RETURNED,
    )
)  # fmt: skip
"""Kinds of events that the phases depend on."""


class Event:
    """One event that the phases of a step depend on."""

    __slots__ = ("at", "details", "kind", "marked")

    def __init__(self, kind: int, at: int, marked: bool, details: Sequence[int | None]) -> None:
        self.kind, self.at, self.marked, self.details = kind, at, marked, details


@dataclass(slots=True)
class EvaluatedStep:
    """One step. Times are nanoseconds of ``perf_counter_ns``, or nanoseconds per phase; ``UNSEEN`` marks a phase without time."""

    number: int
    start_ns: int
    end_ns: int
    flags: int
    events: list[Event]
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


@dataclass(slots=True)
class _Charged:
    """Division of the time of a step."""

    clock: PhaseClock
    waits: list[tuple[int, int]] = field(default_factory=list)


class StepEvaluator:
    """Evaluator of the steps of one rank, in their order. ``name`` returns the name that has a number."""

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._sections = Sections()

    def evaluate(self, step: Sequence[int], number: int, flags: int, start_ns: int, end_ns: int) -> EvaluatedStep:
        """Evaluate the words of a step, without its ``END``."""
        work, sections = StepWork(), self._sections
        events: list[Event] = []
        metrics: dict[str, float] = {}
        tokens: int | None = None
        flops: float | None = None
        samples: int | None = None
        gc_ns, unseen, place = 0, False, 0
        while place < len(step):
            word = step[place]
            kind, at = word & KIND, word >> SHIFT
            if kind == words.MESSAGE:
                place += 1 + size_of_message(word)[2]
                continue
            details = step[place + 1 : place + 1 + DETAILS[kind]]
            place += 1 + DETAILS[kind]
            if kind in _CUTS:
                events.append(Event(kind, at, bool(word & MARKED), [value_of(more) for more in details]))
            elif kind == words.UNSEEN_WAIT:
                unseen = True
            elif kind == words.COLLECTED:
                gc_ns += value_of(details[0]) or 0
                if value_of(details[1]):
                    work.tag(GC_TAG)
            elif kind == words.WORK:
                samples, tokens = value_of(details[0]), value_of(details[1])
                flops = float_of(details[2], details[3])
            elif kind == words.METRIC:
                _set_metric(metrics, self._named(details[0]), float_of(details[1], details[2]))
            elif kind == words.CHECKPOINT_BEGINS:
                work.tag(CHECKPOINT)
                sections.enter(CHECKPOINT, at)
                events.append(Event(BETWEEN, at, bool(word & MARKED), ()))
            elif kind == words.CHECKPOINT_ENDS:
                sections.leave(CHECKPOINT, at)
                events.append(Event(words.LEAVE, at, bool(word & MARKED), ()))
            elif kind in (words.SECTION, words.SECTION_ENDS, words.TAG):
                self._annotate(kind, at, self._named(details[0]), work)
        charged = _charge(start_ns, end_ns, events, work)
        end_ns = start_ns + sum(ns for ns in charged.clock.times if ns != UNSEEN)
        taken = sections.take(end_ns)
        if work.evaluated_ns:
            taken = {EVALUATION: work.evaluated_ns} | taken
        if samples is not None:
            work.work = samples, *work.work[1:]
        waiting = flags >> words.WAITING & 3
        if waiting == words.NOT_AT_ALL:
            blocked: list[int] | None = [0] * len(PHASES)
        elif unseen or waiting == words.NOT_KNOWN or (waiting == words.IF_NOTED and not charged.waits):
            blocked = None
        else:
            blocked = charged.clock.blocked
        return EvaluatedStep(
            number=number, start_ns=start_ns, end_ns=end_ns, flags=flags, events=events, phases_ns=charged.clock.times,
            blocked_ns=blocked, pieces=charged.clock.pieces, waits=charged.waits, work=work, tokens=tokens, flops=flops,
            gc_ns=gc_ns, sections_ns=taken, metrics=metrics,
        )  # fmt: skip

    def _named(self, word: int) -> str:
        number = value_of(word)
        return "" if number is None else self._name(number)

    def _annotate(self, kind: int, at: int, name: str, work: StepWork) -> None:
        if not name:
            return
        if kind == words.SECTION:
            self._sections.enter(name, at)
        elif kind == words.SECTION_ENDS:
            self._sections.leave(name, at)
        else:
            work.tag(name)
            if name == CHECKPOINT:
                # The script may write most of its checkpoint in other ways than the functions that are timed.
                self._sections.discard(CHECKPOINT)


def _set_metric(metrics: dict[str, float], name: str, number: float | None) -> None:
    if name and number is not None and (name in metrics or len(metrics) < MAX_METRICS):
        metrics[name] = number


def device_times(step: EvaluatedStep, marks_ns: Sequence[int]) -> tuple[list[int], list[int] | None] | None:
    """Return the phases of a step on its device, and the waits for other ranks in them (``None``: not known).

    ``marks_ns``: when the device reached the marks of the step's marked events and of its end, in nanoseconds since the mark of
    its start. ``None``: marks are missing, or those of different streams are out of order, so the times between are not known.
    """
    marked = sum(event.marked for event in step.events)
    if len(marks_ns) != marked + 1:
        return None
    at, following, signalled = 0, iter(marks_ns), bool(step.flags & words.SIGNALLED)
    events: list[Event] = []
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
        events.append(Event(event.kind, time, True, event.details))
    if marks_ns[-1] < at:
        return None
    charged = _charge(0, marks_ns[-1], events, StepWork())
    blocked = charged.clock.blocked
    return charged.clock.times, blocked if signalled and min(blocked) >= 0 else None


def _charge(start: int, end: int, events: Sequence[Event], work: StepWork) -> _Charged:
    """Divide the time from ``start`` to ``end`` by its events."""
    clock, evaluation = PhaseClock(start), Evaluation()
    charged = _Charged(clock)
    began: int | None = None
    ready: int | None = None
    for event in events:
        kind, at = event.kind, event.at
        if kind <= BETWEEN:
            if evaluation.suspected is not None and kind in _TRAINING:
                evaluation.training(clock, work, proof=kind != DATA)
            clock.enter(kind, at)
        elif kind in (words.LEAVE, words.RETURNED):
            if ready is not None:
                # Waits inside are part of it already.
                inside = sum(until - since for since, until in charged.waits if since >= ready)
                clock.wait(at - ready - inside)
                charged.waits.append((ready, at))
                ready = None
            if kind == words.LEAVE:
                clock.leave(at)
        elif kind in (words.BATCH, words.NO_BATCH):
            clock.leave(at)
            if kind == words.BATCH:
                work.add_work(*event.details)
            if evaluation.suspected is not None:
                evaluation.batch(at)
        elif kind == words.WAIT:
            began = at
        elif kind == words.WAITED:
            if began is not None:
                clock.wait(at - began)
                charged.waits.append((began, at))
                began = None
        elif kind == words.READY:
            ready = at
        else:
            _evaluate(evaluation, clock, work, event)
    if evaluation.suspected is not None:
        evaluation.training(clock, work, proof=True)
    clock.finish(end)
    return charged


def _evaluate(evaluation: Evaluation, clock: PhaseClock, work: StepWork, event: Event) -> None:
    kind, at = event.kind, event.at
    gradients: Any = bool(event.details and event.details[0])
    if kind == words.MODEL_INPUT:
        work.add_model_work(event.details[0])
    elif kind == words.RAISED:
        clock.abandon(OPTIMIZER)
    elif kind == words.BATCH_WITHOUT_GRADIENTS:
        evaluation.batch_without_gradients(clock, work, at)
    elif kind == words.MODEL_EVALUATES:
        evaluation.model_evaluates(clock, work, at, gradients=gradients)
    elif evaluation.suspected is None:
        return
    elif kind == words.MODEL_TRAINS:
        evaluation.model_trains(clock, work, at, gradients=gradients)
    elif kind == words.TRAINING_BATCH:
        evaluation.batch_to_train_on(clock, work)


class Activity:
    """What a rank is doing."""

    __slots__ = ("phase", "since_ns", "waits")

    def __init__(self, phase: int, since_ns: int, *, waits: bool) -> None:
        self.phase = phase
        """Phase in which the rank is, as far as the events so far show."""
        self.since_ns = since_ns
        """Time of its last event."""
        self.waits = waits
        """Whether it waits for other ranks."""


def activity(step: Sequence[int]) -> Activity | None:
    """Return what the rank is doing by the words of the step that is going on; ``None``: nothing has happened in it yet."""
    opened: list[int] = []
    waits, at, last, place = False, 0, UNSEEN, 0
    while place < len(step):
        word = step[place]
        kind = word & KIND
        if kind == words.MESSAGE:
            place += 1 + size_of_message(word)[2]
            continue
        place += 1 + DETAILS[kind]
        if kind not in _CUTS and kind not in (words.CHECKPOINT_BEGINS, words.CHECKPOINT_ENDS):
            continue
        at = word >> SHIFT if kind != words.READY else at
        if kind <= BETWEEN or kind == words.CHECKPOINT_BEGINS:
            opened.append(min(kind, BETWEEN))
        elif kind in (words.LEAVE, words.BATCH, words.NO_BATCH, words.CHECKPOINT_ENDS):
            last = opened.pop() if opened else last
        elif kind == words.WAIT:
            waits = True
        elif kind == words.WAITED:
            waits = False
    if not at:
        return None
    # Time after a batch is forward; time after a backward pass is the optimizer's.
    following = {DATA: PHASES.index("forward"), BACKWARD: OPTIMIZER}
    return Activity(opened[-1] if opened else following.get(last, BETWEEN), at, waits=waits)
