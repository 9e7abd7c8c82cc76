"""Device times, on a simulated device that runs behind the host."""

from __future__ import annotations

import pytest

from rankscope.profiler.entries import DeviceEntry
from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, FORWARD, OPTIMIZER, UNSEEN, PhaseClock

pytestmark = pytest.mark.usefixtures("require_torch")


class Stream:
    """Simulated ``DeviceClock``: launches take no time, and work runs in order."""

    def __init__(self) -> None:
        self.now = 0.0
        """Time on the host's clock."""
        self.done_at = 0.0
        """Time at which all launched work is done."""
        self.capturing = False
        self.marks: list[list[float]] = []

    def launch(self, microseconds: float) -> None:
        self.done_at = max(self.done_at, self.now) + microseconds

    def usable(self) -> bool:
        return not self.capturing

    def mark(self) -> list[float]:
        mark = [max(self.done_at, self.now)]
        self.marks.append(mark)
        return mark

    def again(self, mark: list[float]) -> None:
        mark[0] = max(self.done_at, self.now)

    def follow(self) -> None: ...

    def leave(self) -> bool:
        return False

    def ready(self, mark: list[float]) -> bool:
        assert not self.capturing, "asking would spoil the capture"
        return self.now >= mark[0]

    def elapsed_us(self, earlier: list[float], later: list[float]) -> float:
        assert self.ready(earlier)
        assert self.ready(later), "nobody waits for the device"
        return later[0] - earlier[0]


class Training:
    """Events of a recorder on that device; each host operation takes a microsecond."""

    def __init__(self) -> None:
        from rankscope.profiler.events import StepEvents
        from rankscope.profiler.rank.device import DeviceLine
        from rankscope.profiler.rank.measures import StepMeasures

        self.stream = Stream()
        self.line = DeviceLine(self.stream)
        self.measures = StepMeasures()
        self.events = StepEvents(PhaseClock(0), self.measures)
        self.events.watch(self.line)
        self.line.begin()
        self.at = 0

    def note(self, kind: int, more: object = None) -> None:
        self.at += 1000
        self.stream.now += 1
        self.events.note(kind, self.at, more)

    def step(self, number: int, *, waited_us: float = 0, waits: int = 0, signalled: bool = True) -> bool:
        """Run a step: data 10, forward 100 with short waits, backward 200 whose end is a wait, optimizer 50 on the device."""
        from rankscope.profiler.events import LEAVE, WAITED

        self.note(DATA)
        self.stream.launch(10)
        self.note(LEAVE)
        self.stream.launch(100)
        for _ in range(waits):
            self.note(WAITED, (0, self.line.mark_wait(), self.line.mark_wait()))
        self.note(BACKWARD)
        self.stream.launch(200 - waited_us)
        since = self.line.mark_wait()
        self.stream.launch(waited_us)
        self.note(WAITED, (0, since, self.line.mark_wait()))
        self.note(LEAVE)
        self.note(OPTIMIZER)
        self.stream.launch(50)
        self.note(LEAVE)
        self.events.finish(self.at)
        taken = self.line.finish(number, signalled=signalled)
        self.events.begin(self.at)
        return taken


def in_us(entry: DeviceEntry) -> dict[int, float]:
    assert entry.phases_ns is not None
    return {phase: time / 1000 for phase, time in enumerate(entry.phases_ns) if time != UNSEEN}


def test_times_are_the_devices_and_are_read_when_it_is_done() -> None:
    training = Training()
    for number in range(3):
        assert training.step(number, waited_us=80)
        assert training.line.read() == [], "the device is still at it"
    training.stream.now = training.stream.done_at
    entries = training.line.read()
    training.measures.close()
    assert [entry.step for entry in entries] == [0, 1, 2]
    for entry in entries[1:]:
        times = in_us(entry)
        assert (times[DATA], times[FORWARD], times[BACKWARD], times[OPTIMIZER]) == (10, 100, 200, 50)
        assert sum(times.values()) == 360
        assert entry.blocked_ns is not None
        assert entry.blocked_ns[BACKWARD] == 80_000
        assert sum(entry.blocked_ns) == 80_000


def test_marks_are_used_again_and_never_while_they_are_needed() -> None:
    training = Training()
    for number in range(50):
        training.step(number)
        training.stream.now = training.stream.done_at
        entry = training.line.read()[0]
        assert in_us(entry)[BACKWARD] == 200
        if number == 5:
            made = len(training.stream.marks)
    training.measures.close()
    assert len(training.stream.marks) <= 2 * made


def test_a_device_that_never_gets_there_costs_a_bounded_number_of_marks() -> None:
    from rankscope.profiler.rank.device import MAX_PENDING

    training = Training()
    for number in range(3 * MAX_PENDING):
        training.step(number)
    made = len(training.stream.marks)
    training.step(1000)
    training.stream.now = training.stream.done_at
    steps = [entry.step for entry in training.line.read()]
    training.measures.close()
    assert made <= 12 * (MAX_PENDING + 2)
    assert len(steps) == MAX_PENDING
    assert steps[-1] == 1000


def test_a_step_in_which_a_graph_is_captured_is_left_alone() -> None:
    training = Training()
    training.step(0)
    training.stream.capturing = True
    assert not training.step(1)
    assert training.line.read() == []
    training.stream.capturing = False
    # Work that begins in a capture is unknown, later work is known.
    training.step(2)
    training.step(3)
    training.stream.now = training.stream.done_at
    steps = [entry.step for entry in training.line.read()]
    training.measures.close()
    assert steps == [0, 3]


def test_an_evaluation_in_the_middle_is_between_steps_on_the_device_too() -> None:
    from rankscope.profiler.events import BATCH_WITHOUT_GRADIENTS, LEAVE, MODEL_TRAINS

    training = Training()
    training.step(0)
    training.note(DATA)
    training.note(LEAVE)
    training.stream.launch(30)  # forward
    training.note(BATCH_WITHOUT_GRADIENTS)
    training.stream.launch(500)
    training.note(MODEL_TRAINS, True)  # gradients are enabled
    training.stream.launch(70)  # forward
    training.note(BACKWARD)
    training.note(LEAVE)
    training.events.finish(training.at)
    training.line.finish(1, signalled=False)
    training.stream.now = training.stream.done_at
    times = in_us(training.line.read()[1])
    tags = training.measures.tags
    training.measures.close()
    assert (times[FORWARD], times[BETWEEN]) == (100, 500)
    assert tags == ["eval"]


@pytest.mark.parametrize("out_of_order", ["cut", "wait"])
def test_times_between_marks_out_of_order_are_not_known(out_of_order: str) -> None:
    training = Training()
    training.step(0)
    training.step(1, waited_us=80)
    training.stream.now = training.stream.done_at
    # Given a step in which the device passed the end of the backward pass, or of the wait in it, before its beginning
    step = training.line._pending[1]
    _, since, until = step.waits[0]
    if out_of_order == "wait":
        since[0], until[0] = until[0], since[0]
    else:
        step.marks[2][0] = step.marks[1][0] - 1
    known, unknown = training.line.read()
    training.measures.close()
    # Then what lies between them is unknown rather than zero
    assert known.blocked_ns is not None
    assert unknown.blocked_ns is None
    assert (unknown.phases_ns is None) == (out_of_order == "cut")


def test_a_step_with_thousands_of_waits_has_a_bounded_number_of_marks_and_no_blocked_time() -> None:
    from rankscope.profiler.rank.device import MAX_WAITS, QUIET_STEPS

    training = Training()
    for number in range(QUIET_STEPS + 3):
        training.step(number, waited_us=80, waits=5000 if number < 3 else 10)
    training.stream.now = training.stream.done_at
    entries = training.line.read()
    training.measures.close()
    # Only the first step pays for that.
    assert len(training.stream.marks) <= 2 * MAX_WAITS + 20 * len(entries) + 2 * 2 * 11
    # And what is not known of the waits is not taken for zero, while the phases are known
    assert [in_us(entry)[BACKWARD] for entry in entries] == [200] * (QUIET_STEPS + 3)
    assert [entry.blocked_ns is None for entry in entries] == [True] * (QUIET_STEPS + 1) + [False] * 2


def test_a_step_with_too_many_cuts_has_a_bounded_number_of_marks_and_no_times() -> None:
    from rankscope.profiler.events import LEAVE
    from rankscope.profiler.rank.device import MAX_CUTS

    training = Training()
    training.step(0)
    for _ in range(5000):
        training.note(DATA)
        training.note(LEAVE)
    assert not training.step(1)
    training.step(2)
    training.step(3)
    training.stream.now = training.stream.done_at
    steps = [entry.step for entry in training.line.read()]
    training.measures.close()
    assert len(training.stream.marks) <= MAX_CUTS + 60
    assert steps == [0, 2, 3]


def test_waits_are_marked_only_where_what_the_device_waits_for_can_be_known() -> None:
    training = Training()
    training.step(0, signalled=False)
    made = len(training.stream.marks)
    for number in range(1, 4):
        training.step(number, waits=100, signalled=number == 3)
    # The last step is known to report all waits, but they had no marks.
    training.step(4, waited_us=80, waits=100)
    training.stream.now = training.stream.done_at
    entries = training.line.read()
    training.measures.close()
    assert len(training.stream.marks) <= made + 4 * 20 + 2 * 101
    assert [entry.blocked_ns is None for entry in entries] == [True, True, True, True, False]
