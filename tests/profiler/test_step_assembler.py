"""Steps from the words of the ring, and what is joined to them later; missing values stay missing."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.profiler.recorded_words import START, at
from tests.ring_step import SEEN, event, numbers, step_words, usage

from rankscope.profiler import words
from rankscope.profiler.handover import MessageKind
from rankscope.profiler.helper.step_assembler import MAX_HELD, MAX_SECONDS, MAX_SPAN, SPAN_SECONDS, AssembledStep, StepAssembler
from rankscope.profiler.phases import BACKWARD, DATA, OPTIMIZER
from rankscope.profiler.words import (
    AS_NOTED,
    AWAITS_DEVICE,
    BATCH,
    BATCH_WITHOUT_GRADIENTS,
    CHECKPOINT_BEGINS,
    CHECKPOINT_ENDS,
    COLLECTED,
    IF_NOTED,
    LEAVE,
    MARKED,
    MEMORY,
    METRIC,
    MODEL_EVALUATES,
    MODEL_INPUT,
    MODEL_TRAINS,
    NO_BATCH,
    NOT_AT_ALL,
    NOT_KNOWN,
    RAISED,
    READY,
    RETURNED,
    SECTION,
    SECTION_ENDS,
    SIGNALLED,
    TAG,
    UNSEEN_WAIT,
    WAIT,
    WAITED,
    WAITING,
    WORK,
    detail,
    details_of_float,
    words_of_message,
)
from rankscope.profiler.work import MAX_METRICS
from rankscope.runs.records import PHASES, PhaseTimes, StepRecord

NAMES = ["loss", "eval", "checkpoint", *(f"m{number}" for number in range(MAX_METRICS + 2))]


NOTED = SEEN | AS_NOTED << WAITING


def fail(error: Exception) -> None:
    raise error


def assembler(**options: Any) -> StepAssembler:
    return StepAssembler(NAMES.__getitem__, **{"lose": fail, "unix_offset": lambda: 0, **options})


def step_of(*happened: list[int], wall_ns: int = 1000, flags: int = NOTED) -> AssembledStep:
    """Return the step of these events."""
    taker = assembler()
    taker.add(step_words(7, *happened, start_ns=START, wall_ns=wall_ns, flags=flags))
    (step,) = taker.remaining_steps()
    return step


def record_of(*happened: list[int], flags: int = NOTED) -> StepRecord:
    return step_of(*happened, flags=flags).record


def test_section_across_the_end_of_a_step_is_split_between_both_steps() -> None:
    taker = assembler()
    taker.add(step_words(0, at(SECTION, 30, detail(0)), start_ns=START, wall_ns=100))
    taker.add(step_words(1, at(SECTION_ENDS, 130, detail(0)), start_ns=START + 100, wall_ns=50))
    assert [step.record.sections_us for step in taker.remaining_steps()] == [{"loss": 0.07}, {"loss": 0.03}]


def test_typical_step_has_phases_blocked_time_and_work() -> None:
    step = step_of(
        at(DATA, 100), at(BATCH, 150, *numbers(8, 24)), at(MODEL_INPUT, 160, detail(30)), at(BACKWARD, 300),
        at(READY, 500), at(LEAVE, 600), at(OPTIMIZER, 650), at(COLLECTED, 700, *numbers(5, 0)),
    )  # fmt: skip
    record = step.record
    assert record.phases_us == PhaseTimes(data=0.05, forward=0.15, backward=0.3, optimizer=0.4, between_steps=0.1)
    assert record.blocked_us == PhaseTimes(data=0, forward=0, backward=0.1, optimizer=0, between_steps=0)
    assert (record.samples, record.input_elements, record.model_elements, record.gc_us) == (8, 24, 30, 0.005)
    assert (record.wall_us, record.start_unix_ns, record.tags, record.profiled) == (1.0, START, [], False)
    assert (record.cpu_us, record.device_us, record.resident_bytes, record.tokens) == (None, None, None, None)
    # Its phases have times, which cover it
    assert [interval.phase for interval in step.intervals] == [
        "between_steps", "data", "forward", "backward", "optimizer", "optimizer",
    ]  # fmt: skip
    assert [interval.blocked_ns for interval in step.intervals] == [0, 0, 0, 100, 0, 0]
    bounds = [(interval.start_unix_ns, interval.end_unix_ns) for interval in step.intervals]
    assert [bounds[0][0], *(end for _, end in bounds)] == [START + ns for ns in (0, 100, 150, 300, 600, 650, 1000)]


KINDS: dict[int, int] = {
    kind: words.DETAILS[kind]
    for kind in (
        *range(len(PHASES)), LEAVE, RAISED, BATCH, NO_BATCH, BATCH_WITHOUT_GRADIENTS, MODEL_INPUT, MODEL_EVALUATES, MODEL_TRAINS,
        WAIT, WAITED, READY, RETURNED, CHECKPOINT_BEGINS, CHECKPOINT_ENDS, UNSEEN_WAIT, COLLECTED,
    )
}  # fmt: skip


stories = st.lists(st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 1000), st.integers(0, 50)))


@given(stories, st.sampled_from([NOT_KNOWN, NOT_AT_ALL, AS_NOTED, IF_NOTED]))
def test_phases_always_sum_to_the_whole_step(story: list[tuple[int, int, int]], waiting: int) -> None:
    later, happened = 0, []
    for kind, more, number in story:
        later += more
        happened.append(at(kind, later, *[detail(number)] * KINDS[kind]))
    step = step_of(*happened, wall_ns=later + 10, flags=SEEN | waiting << WAITING)
    record = step.record
    assert record.wall_us == pytest.approx((later + 10) / 1000)
    assert sum(record.phases_us.get(phase) or 0 for phase in PHASES) == pytest.approx(record.wall_us)
    assert sum(interval.end_unix_ns - interval.start_unix_ns for interval in step.intervals) == later + 10
    if waiting == NOT_KNOWN or (waiting != NOT_AT_ALL and any(kind == UNSEEN_WAIT for kind, _, _ in story)):
        assert record.blocked_us is None
    elif waiting == NOT_AT_ALL:
        assert record.blocked_total_us == 0


def test_waits_count_once_and_an_unseen_wait_makes_blocked_time_unknown() -> None:
    # Given a wait before the last gradient at 400, one after it, and a pass inside the pass
    happened = [
        at(BACKWARD, 100),
        at(WAIT, 200),
        at(WAITED, 250),
        at(WAIT, 450),
        at(WAITED, 480),
        at(READY, 400),
        at(RETURNED, 500),
    ]
    happened.append(at(LEAVE, 600))
    step = step_of(*happened)
    assert step.record.blocked_us is not None
    assert step.record.blocked_us.backward == 0.15
    assert sum(interval.blocked_ns for interval in step.intervals) == 150
    assert record_of(*happened, at(UNSEEN_WAIT, 700)).blocked_us is None
    assert record_of(at(DATA, 1), at(NO_BATCH, 2), flags=SEEN | IF_NOTED << WAITING).blocked_us is None
    assert record_of(at(WAIT, 1), at(WAITED, 2), flags=SEEN | IF_NOTED << WAITING).blocked_total_us == 0.001


def test_work_tags_and_metrics_of_the_script_are_recorded() -> None:
    metrics = [at(METRIC, 5, detail(3 + number), *details_of_float(number / 2)) for number in range(MAX_METRICS + 2)]
    record = record_of(
        at(DATA, 0), at(BATCH, 1, *numbers(8, 16)), at(WORK, 2, *numbers(3, 4), *details_of_float(5.0)), at(TAG, 1, detail(0)),
        at(TAG, 1, detail(0)), *metrics, at(METRIC, 6, detail(3), *details_of_float(-1.0)), flags=NOTED | words.PROFILED,
    )  # fmt: skip
    assert (record.samples, record.input_elements, record.tokens, record.flops) == (3, 16, 4, 5.0)
    assert (record.tags, record.profiled) == (["loss"], True)
    # The last value of each of the first names
    assert record.metrics == {"m0": -1.0, **{f"m{number}": number / 2 for number in range(1, MAX_METRICS)}}


def test_checkpoints_are_timed_unless_the_script_tags_a_checkpoint() -> None:
    happened = [at(CHECKPOINT_BEGINS, 100), at(CHECKPOINT_ENDS, 400)]
    record = record_of(*happened)
    assert (record.tags, record.sections_us, record.phases_us.between_steps) == (["checkpoint"], {"checkpoint": 0.3}, 1.0)
    record = record_of(*happened, at(TAG, 500, detail(2)))
    assert (record.tags, record.sections_us) == (["checkpoint"], {})
    # One whose end came in another step does not go on for ever
    taker = assembler()
    taker.add(step_words(0, at(CHECKPOINT_BEGINS, 50), start_ns=START, wall_ns=100))
    taker.add(step_words(1, at(CHECKPOINT_ENDS, 130), start_ns=START + 100, wall_ns=100))
    taker.add(step_words(2, start_ns=START + 200, wall_ns=100))
    assert [step.record.sections_us for step in taker.remaining_steps()] == [{"checkpoint": 0.05}, {"checkpoint": 0.03}, {}]


def test_model_work_is_summed_without_evaluation_and_gives_no_sample_count() -> None:
    record = record_of(
        at(MODEL_INPUT, 1, detail(16)), at(BACKWARD, 2), at(LEAVE, 3), at(MODEL_EVALUATES, 4, detail(0)),
        at(MODEL_INPUT, 5, detail(99)), at(MODEL_TRAINS, 6, detail(1)), at(MODEL_INPUT, 7, detail(4)), at(BACKWARD, 8),
    )  # fmt: skip
    assert (record.model_elements, record.input_elements, record.samples, record.tags) == (20, None, None, ["eval"])


def test_out_of_order_times_never_make_a_phase_negative() -> None:
    record = record_of(at(CHECKPOINT_BEGINS, 100), at(CHECKPOINT_ENDS, 800), at(BACKWARD, 90), at(LEAVE, 900))
    assert record.phases_us == PhaseTimes(forward=0.1, backward=0.1, between_steps=0.8)
    assert sum(record.phases_us.get(phase) or 0 for phase in PHASES) == pytest.approx(1.0)


def taken(taker: StepAssembler, *added: list[int]) -> list[StepRecord]:
    for more in added:
        taker.add(more)
    return [step.record for step in taker.complete()]


def short_step(number: int, wall_ns: int, **options: Any) -> list[int]:
    return step_words(number, start_ns=START, wall_ns=wall_ns, **options)


def test_short_steps_share_one_usage_reading_and_the_parts_add_up() -> None:
    taker = assembler()
    blocked = [at(WAIT, 0), at(WAITED, 3_000)]
    # Given three steps of which only the last has a reading, which covers all of them
    middle = step_words(1, *blocked, wall_ns=4_000, flags=NOTED)
    early = taken(taker, usage(10, 3, 100, 1000, begins=True), short_step(0, 1_000), middle)
    records = taken(taker, short_step(2, 1_000), usage(16, 4, 700, 4000))
    assert early == []
    assert [row.step for row in records] == [0, 1, 2]
    # Then time in the run queue goes by wall time, CPU time by own time
    assert [row.run_queue_us for row in records] == pytest.approx([0.1, 0.4, 0.1], abs=0.01)
    assert [row.cpu_us for row in records] == pytest.approx([1, 1, 1], abs=0.01)
    for name, total in (("run_queue_us", 0.6), ("cpu_us", 3), ("voluntary_switches", 6), ("involuntary_switches", 1)):
        assert sum(getattr(row, name) for row in records) == pytest.approx(total), name
    # And a step with a reading of its own waits for nothing; what the kernel does not keep is unknown
    (row,) = taken(taker, short_step(3, 100), usage(16, 4, None, 4007))
    assert (row.run_queue_us, row.cpu_us, row.voluntary_switches) == (None, 0.007, 0)


@pytest.mark.parametrize("lost", [1, 2])
def test_usage_of_a_span_with_a_missing_step_is_unknown(lost: int) -> None:
    # Given two readings, after the first step and after the last, and a step between them that was dropped
    steps = [short_step(number, 1000) for number in range(1, 4) if number != lost]
    first = [usage(0, 0, 0, 0, begins=True), short_step(0, 1000), usage(1, 1, 1, 1)]
    records = taken(assembler(), *first, *steps, usage(9, 9, 9, 9))
    assert [row.voluntary_switches for row in records] == [1, None, None]


def test_steps_without_a_usage_reading_are_still_written() -> None:
    now = 0.0
    taker = assembler(clock=lambda: now)
    # The recorder's own time between two readings is nobody's
    (row,) = taken(taker, usage(0, 0, 0, 50, begins=True), short_step(0, 1000), usage(0, 0, 0, 60))
    assert row.cpu_us == 0.01
    (row,) = taken(taker, usage(0, 0, 0, 99, begins=True), short_step(1, 1000), usage(0, 0, 0, 100))
    assert row.cpu_us == 0.001
    # Training pauses after a step
    assert taken(taker, short_step(2, 1000)) == []
    now = SPAN_SECONDS + 0.1
    assert [(row.step, row.cpu_us) for row in taken(taker)] == [(2, None)]
    # Then the share of the step that was written is lost, and no other's
    (row,) = taken(taker, short_step(3, 1000), usage(0, 0, 0, 3100))
    assert row.step == 3
    assert row.cpu_us == pytest.approx(1.5, abs=0.01)
    # A span may not grow without end, and the end of the rank waits for nothing
    assert len(taken(taker, *[short_step(4 + number, 10) for number in range(MAX_SPAN + 1)])) == MAX_SPAN + 1
    assert taken(taker, short_step(2000, 10)) == []
    assert [step.record.step for step in taker.remaining_steps()] == [2000]


def test_memory_reading_belongs_to_the_last_step() -> None:
    memory = event(MEMORY, 1, *numbers(1, None, 3, 4, 5))
    first, second = taken(assembler(), short_step(0, 10), short_step(1, 10), memory, usage(0, 0, 0, 0))
    assert (first.resident_bytes, first.peak_allocated_bytes) == (None, None)
    assert (second.resident_bytes, second.allocated_bytes, second.reserved_bytes) == (1, None, 3)
    assert (second.peak_allocated_bytes, second.allocator_retries) == (4, 5)


def on_device(number: int, *marks_ns: int) -> list[int]:
    """Return the message with the times of a step on its device."""
    return words_of_message(MessageKind.DEVICE, struct.pack(f"={len(marks_ns) + 1}q", number, *marks_ns))


def device_step(number: int, flags: int = SEEN | AWAITS_DEVICE | SIGNALLED) -> list[int]:
    happened = [at(DATA | MARKED, 10), at(BATCH | MARKED, 20, *numbers(1, 1)), at(BACKWARD | MARKED, 30), at(READY | MARKED, 40)]
    return [
        *step_words(number, *happened, at(LEAVE | MARKED, 50), at(OPTIMIZER, 60), wall_ns=100, flags=flags),
        *usage(0, 0, 0, 0),
    ]


def test_device_times_are_joined_to_their_step_and_keep_the_step_order() -> None:
    now = 0.0
    taker = assembler(clock=lambda: now)
    assert (
        taken(taker, usage(0, 0, 0, 0, begins=True), device_step(0), device_step(1), short_step(2, 10), usage(0, 0, 0, 0)) == []
    )
    assert taken(taker, on_device(1, 0, 100, 300, 700, 1000, 1500)) == []
    # Marks that are missing, and those of streams that the device passed in another order, tell nothing
    first, second, third = taken(taker, on_device(0, 0, 100))
    assert [row.step for row in (first, second, third)] == [0, 1, 2]
    assert second.device_us == PhaseTimes(data=0.1, forward=0.2, backward=0.7, optimizer=0.5)
    assert second.device_blocked_us is not None
    assert second.device_blocked_us.backward == 0.3
    assert [row.device_us for row in (first, third)] == [None, None]
    # Times of a step that is already written, or never existed, are ignored
    assert taken(taker, on_device(1, 0)) == []
    (row,) = taken(taker, device_step(3), on_device(3, 0, 100, 50, 700, 1000, 1500))
    assert row.device_us is None
    (row,) = taken(taker, device_step(4, SEEN | AWAITS_DEVICE), on_device(4, 0, 100, 300, 700, 1000, 1500))
    assert row.device_us is not None
    assert row.device_blocked_us is None


def test_steps_wait_for_device_times_with_limits_on_time_and_count() -> None:
    now = 0.0
    taker = assembler(clock=lambda: now)
    records = taken(taker, usage(0, 0, 0, 0, begins=True), *[device_step(number) for number in range(MAX_HELD + 3)])
    assert [row.step for row in records] == [0, 1, 2]
    now = MAX_SECONDS + 1
    assert [row.step for row in taken(taker)] == list(range(3, MAX_HELD + 3))
    assert taken(taker, device_step(100)) == []
    assert [(step.record.step, step.record.device_us) for step in taker.remaining_steps()] == [(100, None)]


def test_words_may_be_split_anywhere_and_unfinished_steps_are_kept() -> None:
    window = words_of_message(MessageKind.WINDOW, b"a window " * 5)
    stream = [*device_step(0), *window, *device_step(1), *on_device(0, 0, 1, 2, 3, 4, 5), *usage(0, 0, 0, 0)]
    whole = assembler()
    messages = whole.add(stream)
    assert messages == [(MessageKind.WINDOW, b"a window " * 5)]
    expected = [step.record for step in whole.complete()]
    assert [row.step for row in expected] == [0]
    # Step 1 still waits for its device: a replacement of this process reads it again
    assert whole.position == len(device_step(0)) + len(window)
    pieces = assembler(position=100)
    collected = [message for word in stream for message in pieces.add([word])]
    assert (collected, [step.record for step in pieces.complete()]) == (messages, expected)
    assert pieces.position == 100 + whole.position


def test_damaged_words_cost_only_their_step() -> None:
    lost: list[Exception] = []
    taker = assembler(lose=lost.append)
    # A name that nobody has, and a message longer than any step
    damaged = [*short_step(0, 10), *step_words(1, at(TAG, 1, detail(99))), *short_step(2, 10)]
    messages = taker.add([*words_of_message(MessageKind.MISSED_WINDOW, b"reason"), *damaged, (2**40) << 10 | words.MESSAGE])
    messages += taker.add(
        [*words_of_message(MessageKind.DEVICE, b"odd"), *short_step(3, 10), *step_words(4, at(TAG, 1, detail(98)))]
    )
    assert messages == [(MessageKind.MISSED_WINDOW, b"reason")]
    assert [step.record.step for step in taker.remaining_steps()] == [0, 2, 3]
    assert [type(error) for error in lost] == [IndexError, ValueError, struct.error, IndexError]
