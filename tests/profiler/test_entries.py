"""Entries of the ring: the helper writes what a rank packs, and missing values stay missing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.profiler.entries import (
    DeviceEntry,
    Memory,
    StepEntry,
    Usage,
    pack,
    pack_within,
    to_record,
    unpack_device,
    unpack_step,
)
from rankscope.profiler.events import (
    BATCH,
    BATCH_WITHOUT_GRADIENTS,
    DETAILED,
    LEAVE,
    MODEL_EVALUATES,
    MODEL_INPUT,
    MODEL_TRAINS,
    SHAPE,
    SHIFT,
    TAIL,
    WAITED,
    StepEvents,
)
from rankscope.profiler.helper.step_assembler import MAX_HELD, MAX_SECONDS, SPAN_SECONDS, StepAssembler
from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, OPTIMIZER, UNSEEN, PhaseClock
from rankscope.profiler.raw import AS_NOTED, NOT_AT_ALL, NOT_KNOWN, pack_raw, pack_span, unpack_raw
from rankscope.profiler.ring import SLOT_BYTES
from rankscope.profiler.work import MAX_NAME_BYTES, MAX_SECTIONS, Sections, StepWork, short
from rankscope.runs.records import PHASES, PhaseTimes

LARGEST = 2**63 - 1
SLOT_ROOM = SLOT_BYTES - 16

nanoseconds = st.integers(0, 2**40)
counts = st.none() | st.integers(0, LARGEST)
phases = st.lists(st.just(UNSEEN) | nanoseconds, min_size=6, max_size=6)
waits = st.lists(nanoseconds, min_size=6, max_size=6)
entries = st.builds(
    StepEntry,
    step=st.integers(0, LARGEST),
    start_unix_ns=st.integers(0, LARGEST),
    wall_ns=nanoseconds,
    phases_ns=phases,
    blocked_ns=st.none() | waits,
    profiled=st.booleans(),
    awaits_device=st.booleans(),
    cpu_ns=nanoseconds,
    gc_ns=nanoseconds,
    samples=counts,
    tokens=counts,
    input_elements=counts,
    model_elements=counts,
    flops=st.none() | st.floats(0, 1e30),
    memory=st.none() | st.builds(Memory, counts, counts, counts, counts, counts),
    sections_ns=st.dictionaries(st.text(max_size=20), nanoseconds, max_size=4),
    tags=st.lists(st.text(max_size=20), max_size=4),
    metrics=st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=4),
    usage=st.none()
    | st.builds(
        Usage,
        st.integers(0, LARGEST),
        st.none() | nanoseconds,
        voluntary_switches=st.integers(0, 2**31),
        involuntary_switches=st.integers(0, 2**31),
    ),
)


def step_entry(step: int, **fields: Any) -> StepEntry:
    """Return a minimal entry."""
    values: dict[str, Any] = {
        "start_unix_ns": 1,
        "wall_ns": 1000,
        "phases_ns": [1000] + [UNSEEN] * 5,
        "blocked_ns": None,
        "profiled": False,
        "awaits_device": False,
        "cpu_ns": 0,
        "gc_ns": 0,
        "samples": None,
        "tokens": None,
        "input_elements": None,
        "flops": None,
        "memory": None,
        "sections_ns": {},
        "tags": [],
        "usage": Usage(step, None, 0, 0),
    }
    return StepEntry(step=step, **(values | fields))


@given(entries)
def test_an_entry_comes_out_as_it_went_in_and_none_is_not_zero(entry: StepEntry) -> None:
    assert unpack_step(pack(entry)) == entry
    record = to_record(entry, usage=entry.usage)
    for phase, time, wait in zip(PHASES, entry.phases_ns, entry.blocked_ns or [0] * 6, strict=True):
        assert record.phases_us.get(phase) == (None if time == UNSEEN else time / 1000)
        blocked = None if record.blocked_us is None else record.blocked_us.get(phase)
        assert blocked == (None if entry.blocked_ns is None or time == UNSEEN else min(wait, time) / 1000)
    assert (record.samples, record.tokens, record.input_elements) == (entry.samples, entry.tokens, entry.input_elements)
    assert (record.flops, record.profiled, record.tags) == (entry.flops, entry.profiled, entry.tags)
    usage = Usage(0, None, 0, 0) if entry.usage is None else entry.usage
    assert record.run_queue_us == (None if usage.run_queue_ns is None else usage.run_queue_ns / 1000)
    assert record.voluntary_switches == (None if entry.usage is None else usage.voluntary_switches)
    assert record.resident_bytes == (None if entry.memory is None else entry.memory.resident_bytes)
    assert record.device_us is record.device_blocked_us is None


def test_the_largest_step_fits_a_slot_of_the_ring() -> None:
    sections = Sections()
    for number in range(2 * MAX_SECTIONS):
        sections.enter(short(f"{number:03d}" + "ä" * 100), 0)
    times = sections.take(LARGEST)
    assert len(times) == MAX_SECTIONS
    names = [short(f"{number}" + "\N{OWL}" * 100) for number in range(8)]
    everything = dict.fromkeys(("start_unix_ns", "wall_ns", "cpu_ns", "gc_ns"), LARGEST)
    entry = step_entry(
        LARGEST,
        **everything,
        phases_ns=[LARGEST] * 6,
        blocked_ns=[LARGEST] * 6,
        samples=LARGEST,
        tokens=LARGEST,
        input_elements=LARGEST,
        flops=1e300,
        memory=Memory(*[LARGEST] * 5),
        sections_ns=times,
        tags=names,
        usage=Usage(*[LARGEST] * 4),
    )
    assert len(pack(entry)) <= SLOT_ROOM


def test_names_are_cut_where_a_letter_ends_and_can_always_be_written() -> None:
    assert short("forward") == "forward"
    assert short("\N{OWL}" * 100) == "\N{OWL}" * (MAX_NAME_BYTES // 4)
    assert short("caf\udce9") == "caf?"
    assert short(7) == "7"


def test_sections_add_up_and_one_inside_itself_counts_once() -> None:
    sections = Sections()
    for start in (0, 100):
        sections.enter("loss", start)
        sections.enter("inner", start + 10)
        sections.enter("loss", start + 20)
        sections.leave("loss", start + 30)
        sections.leave("inner", start + 40)
        sections.leave("loss", start + 50)
    sections.leave("never begun", 200)
    assert sections.take(200) == {"loss": 100, "inner": 60}
    assert sections.take(300) == {}


def test_a_section_across_the_end_of_a_step_is_shared_out() -> None:
    sections = Sections()
    sections.enter("epoch", 0)
    assert sections.take(70) == {"epoch": 70}
    sections.leave("epoch", 100)
    assert sections.take(120) == {"epoch": 30}


def test_a_step_without_a_device_is_written_at_once() -> None:
    joining = StepAssembler()
    assert [row.step for number in range(3) for row in joining.step(pack(step_entry(number)))] == [0, 1, 2]
    assert joining.rest() == []


def test_device_times_are_joined_to_their_step_and_the_order_of_steps_stays() -> None:
    at = 0.0
    joining = StepAssembler(clock=lambda: at)
    assert joining.step(pack(step_entry(0, awaits_device=True))) == []
    assert joining.step(pack(step_entry(1, awaits_device=True))) == []
    # A step without device times waits for the steps before it
    assert joining.step(pack(step_entry(2))) == []
    late = DeviceEntry(1, [2000] + [UNSEEN] * 5, [500] + [0] * 5)
    assert unpack_device(pack(late)) == late
    assert joining.device(pack(late)) == []
    assert joining.overdue() == []
    records = joining.device(pack(DeviceEntry(0, [1000, UNSEEN, 0, UNSEEN, UNSEEN, UNSEEN], None)))
    assert [row.step for row in records] == [0, 1, 2]
    assert [row.device_us for row in records] == [PhaseTimes(data=1.0, forward=0.0), PhaseTimes(data=2.0), None]
    assert [row.device_blocked_us for row in records] == [None, PhaseTimes(data=0.5), None]
    # Device times of a step that is already written, or never existed, are ignored
    assert joining.device(pack(late)) == []


def test_steps_wait_for_their_device_times_neither_for_ever_nor_in_any_number() -> None:
    at = 0.0
    joining = StepAssembler(clock=lambda: at)
    done = [row.step for number in range(MAX_HELD + 3) for row in joining.step(pack(step_entry(number, awaits_device=True)))]
    assert done == [0, 1, 2]
    at = MAX_SECONDS + 1
    written = []
    while rows := joining.overdue():
        written += [row.step for row in rows]
    assert written == list(range(3, MAX_HELD + 3))
    joining.step(pack(step_entry(100, awaits_device=True)))
    rest = joining.rest()
    assert [(row.step, row.device_us) for row in rest] == [(100, None)]


KINDS: dict[int, st.SearchStrategy[Any]] = {
    **{kind: st.none() for kind in (DATA, BACKWARD, OPTIMIZER, BETWEEN, LEAVE)},
    BATCH: st.none() | st.tuples(st.none() | st.integers(0, 100), st.none() | st.integers(0, 1000)),
    SHAPE: st.lists(st.integers(0, 100), max_size=3),
    MODEL_INPUT: st.none() | st.integers(0, 1000),
    WAITED: st.tuples(st.integers(0, 50), st.none(), st.none()),
    BATCH_WITHOUT_GRADIENTS: st.none(),
    MODEL_EVALUATES: st.booleans(),
    MODEL_TRAINS: st.booleans(),
}
events = st.lists(
    st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 1000)).flatmap(
        lambda e: st.tuples(st.just(e[0]), st.just(e[1]), KINDS[e[0]])
    )
)


@given(events, st.sampled_from([NOT_KNOWN, NOT_AT_ALL, AS_NOTED]))
def test_the_helper_understands_a_step_as_its_rank_would(story: list[tuple[int, int, Any]], waiting: int) -> None:
    # Given events as a rank notes them, and the step that it computes from them
    started = at = 5_000_000_000
    here = StepEvents(PhaseClock(started), StepWork())
    for kind, later, more in story:
        at += later
        here.noted += (at << SHIFT | kind, more) if kind >= DETAILED else (at << SHIFT | kind,)
    span = (5, (10, 3, b"7 100 9\n"), (12, 3, b"8 160 12\n"))
    fields = (7, 1, started, at + 10, False, waiting, 500, 5, None, None, None, ["own"], span, here.noted)
    # When the helper gets them
    entry = unpack_raw(pack_raw(fields))
    here.finish(at + 10)
    # Then it computes the same step, and the phases are the whole step
    assert entry.phases_ns == here.clock.times
    assert sum(max(time, 0) for time in entry.phases_ns) == entry.wall_ns == at + 10 - started
    assert entry.blocked_ns == {NOT_KNOWN: None, NOT_AT_ALL: [0] * len(PHASES), AS_NOTED: here.clock.blocked}[waiting]
    assert entry.tags == ["own", *here.measures.tags]
    samples, elements, given = here.measures.work
    assert entry.samples == samples
    assert (entry.input_elements, entry.model_elements) == (elements, given)
    assert (entry.cpu_ns, entry.usage) == (500, Usage(5, 60, 2, 0))


def test_what_the_script_says_of_its_work_counts_and_an_unknown_delay_stays_unknown() -> None:
    reading = (10, 3, None)
    entry = unpack_raw(
        pack_raw(
            (
                7,
                1,
                0,
                10,
                True,
                NOT_KNOWN,
                0,
                0,
                (3, 4, 5.0),
                None,
                {"loss": 6},
                [],
                (7, reading, reading),
                [0 << SHIFT | DATA, 4 << SHIFT | BATCH, (8, 16)],
            )
        )
    )
    assert (entry.samples, entry.tokens, entry.flops, entry.input_elements) == (3, 4, 5.0, 16)
    assert entry.usage == Usage(7, None, 0, 0)
    assert (entry.profiled, entry.sections_ns) == (True, {"loss": 6})


def test_work_at_the_model_adds_up_without_evaluation_and_is_not_taken_for_samples() -> None:
    # Given two calls of the model, an evaluation between them, and a loader that is not seen
    noted: list[object] = [
        *(1 << SHIFT | MODEL_INPUT, 16, 2 << SHIFT | BACKWARD, 3 << SHIFT | LEAVE),
        *(4 << SHIFT | MODEL_EVALUATES, False, 5 << SHIFT | MODEL_INPUT, 99, 6 << SHIFT | MODEL_TRAINS, True),
        *(7 << SHIFT | MODEL_INPUT, 4, 8 << SHIFT | BACKWARD, 9 << SHIFT | LEAVE),
    ]
    entry = unpack_raw(pack_raw((7, 1, 0, 60, False, NOT_KNOWN, 0, 0, None, None, None, [], None, noted)))
    assert (entry.model_elements, entry.input_elements, entry.samples, entry.tags) == (20, None, None, ["eval"])


def test_the_shape_of_a_batch_is_its_samples_and_elements_and_a_tail_is_a_wait() -> None:
    noted = [0 << SHIFT | DATA, 4 << SHIFT | SHAPE, (8, 16), 10 << SHIFT | BACKWARD, 50 << SHIFT | TAIL, 20, 50 << SHIFT | LEAVE]
    entry = unpack_raw(pack_raw((7, 1, 0, 60, False, AS_NOTED, 0, 0, None, None, None, [], None, noted)))
    assert (entry.samples, entry.input_elements) == (8, 128)
    assert entry.blocked_ns is not None
    assert entry.blocked_ns[BACKWARD] == 30


SPAN = [
    step_entry(3, wall_ns=10_000, cpu_ns=10_000, usage=None),
    step_entry(4, wall_ns=50_000, cpu_ns=20_000, usage=None),
    step_entry(5, wall_ns=11_000, cpu_ns=1_000, usage=Usage(3, 40_000, 4, 1)),
]


def test_short_steps_share_a_reading_by_the_time_they_were_off_the_processor() -> None:
    joining = StepAssembler()
    # Given steps of which only the last has a reading, which covers all of them
    early = [row for entry in SPAN[:2] for row in joining.step(pack(entry))]
    records = joining.step(pack(SPAN[2]))
    # Then they wait for it, and share it
    assert early == []
    assert [row.step for row in records] == [3, 4, 5]
    assert [row.run_queue_us for row in records] == pytest.approx([0, 30, 10], abs=0.01)
    for name, total in (("run_queue_us", 40), ("voluntary_switches", 4), ("involuntary_switches", 1)):
        assert sum(getattr(row, name) for row in records) == pytest.approx(total), name
    # And the next step, with a reading of its own, waits for nothing
    assert [row.run_queue_us for row in joining.step(pack(step_entry(6, usage=Usage(6, 7000, 0, 0))))] == [7]


def test_of_a_span_with_a_missing_step_nothing_is_known() -> None:
    joining = StepAssembler()
    records = [row for entry in (SPAN[0], SPAN[2]) for row in joining.step(pack(entry))]
    assert [(row.step, row.run_queue_us, row.voluntary_switches) for row in records] == [(3, None, None), (5, None, None)]


def test_steps_before_a_span_and_those_that_training_pauses_after_are_written_without() -> None:
    at = 0.0
    joining = StepAssembler(clock=lambda: at)
    # Given a step before the first of a span, as after the start of a profiler
    joining.step(pack(step_entry(2, wall_ns=10**9, usage=None)))
    records = [row for entry in SPAN for row in joining.step(pack(entry))]
    assert [row.run_queue_us is None for row in records] == [True, False, False, False]
    # And a step without a successor
    joining.step(pack(step_entry(6, usage=None)))
    assert joining.overdue() == []
    at = SPAN_SECONDS + 0.1
    assert [(row.step, row.run_queue_us) for row in joining.overdue()] == [(6, None)]
    # Then the share of a step that was written already is lost, and no other's
    records = joining.step(pack(step_entry(7, wall_ns=1000, cpu_ns=0, usage=Usage(6, 4000, 0, 0))))
    assert [row.step for row in records] == [7]
    assert records[0].run_queue_us == pytest.approx(2, abs=0.01)


def test_what_waits_for_a_reading_at_the_end_is_written_all_the_same() -> None:
    joining = StepAssembler()
    joining.step(pack(SPAN[0]))
    assert [(row.step, row.run_queue_us) for row in joining.rest()] == [(3, None)]
    # And it is known where its rank had the time for one more reading
    joining = StepAssembler()
    for entry in SPAN[:2]:
        joining.step(pack(entry))
    records = joining.span(pack_span(4, (3, (0, 0, b"1 10000 1"), (2, 0, b"2 50000 3"))))
    assert [row.step for row in records] == [3, 4]
    assert [row.run_queue_us for row in records] == pytest.approx([0, 40], abs=0.01)
    assert joining.rest() == []


def test_a_step_that_does_not_fit_its_slot_loses_the_scripts_metrics_only() -> None:
    entry = step_entry(3, metrics={"loss": 2.5}, tags=["eval"])
    size = len(pack(entry))
    assert unpack_step(pack_within(size, entry)) == entry
    assert unpack_step(pack_within(size - 1, entry)) == msgspec.structs.replace(entry, metrics={})
