"""Counts of the survey of a run before an export, checked against the individual records."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.step_files import rows_of

from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.analysis.perfetto.selection import Selection
from rankscope.analysis.perfetto.step_tracks import weights
from rankscope.analysis.perfetto.survey import Survey
from rankscope.runs.records import CollectiveRecord, PhaseTimes, StepRecord

START = 1_790_000_000_000_000_000
maybe = st.none() | st.floats(0, 1e6, width=32)
phases = st.builds(PhaseTimes, forward=maybe, backward=maybe, data=maybe)
records = st.builds(
    StepRecord,
    step=st.integers(-1, 12),
    start_unix_ns=st.integers(START, START + 10**9) | st.just(-1),
    wall_us=st.floats(0, 1e6) | st.just(-1.0),
    phases_us=phases,
    blocked_us=st.none() | phases,
    profiled=st.booleans(),
)
ranks = st.lists(st.lists(records, max_size=6), max_size=3)
bounds = st.none() | st.integers(0, 12)


def possible(record: StepRecord) -> bool:
    return record.step >= 0 and record.start_unix_ns >= 0 and record.wall_us >= 0


def events_of(record: StepRecord) -> int:
    """Return the number of events of a step: the step, its garbage collection counter, its phases, and the waiting in them."""
    times = [record.phases_us, *([] if record.blocked_us is None else [record.blocked_us])]
    return 2 + sum(getattr(time_, phase) is not None for time_ in times for phase in ("forward", "backward", "data"))


@given(ranks, bounds, bounds)
def test_steps_are_counted_over_the_ranks(kept: list[list[StepRecord]], first: int | None, past: int | None) -> None:
    selection = Selection(steps=StepRange(first, past))
    survey = Survey(selection)
    for of_rank in kept:
        survey.add_steps([rows_of(*of_rank[:2]), rows_of(*of_rank[2:])])
    good = [record for record in chain(*kept) if possible(record)]
    chosen = [record for record in good if selection.steps.has(record.step)]
    recorded = [record.step for record in good]
    steps = {record.step for record in chosen}
    assert survey.damaged == sum(map(len, kept)) - len(good)
    assert survey.recorded == ((min(recorded), max(recorded) + 1) if recorded else None)
    assert survey.profiled == {record.step for record in chosen if record.profiled}
    assert survey.all_weights() == {step: sum(events_of(item) for item in chosen if item.step == step) for step in steps}
    for part in (range(13), range(3, 7)):
        by_rank = ({item.step for item in of_rank if possible(item) and selection.steps.has(item.step)} for of_rank in kept)
        assert survey.records_of(part) == sum(len(of_rank & set(part)) for of_rank in by_rank)
        here = [record for record in chosen if record.step in part]
        extent = survey.extent((part.start, part.stop))
        if not here:
            assert extent is None
        else:
            assert extent is not None
            assert extent[0] == min(record.start_unix_ns for record in here)
            assert extent[1] == max(record.start_unix_ns + round(record.wall_us * 1000) for record in here)


def test_steps_with_collectives_are_profiled_and_heavier() -> None:
    survey = Survey(Selection(steps=StepRange(2)))
    survey.add_steps([rows_of(*(StepRecord(step=step, start_unix_ns=START, wall_us=1.0) for step in range(4)))])
    before = survey.all_weights()
    times = {"enqueue_unix_ns": START, "start_unix_ns": START, "end_unix_ns": START}
    survey.add_collectives(CollectiveRecord(step=step, group="0", index=0, op="all_reduce", **times) for step in (1, 3, 3))  # type: ignore[arg-type]
    assert survey.profiled == {1, 3}
    assert survey.clock_range((2, 3)) == (1, 4)
    more = {step: count - before[step] for step, count in survey.all_weights().items()}
    assert more[2] == 0 < more[3]
    assert set(more) == {2, 3}


def test_record_of_an_absurd_time_does_not_move_the_extent() -> None:
    survey = Survey(Selection())
    starts = [START, START + 1000, START + 2000, 5, 2**61]
    survey.add_steps([rows_of(*(StepRecord(step=step, start_unix_ns=at, wall_us=1.0) for step, at in enumerate(starts)))])
    assert survey.extent((0, 5)) == (START, START + 3000)


@pytest.mark.parametrize("huge", [2**63, 10**30])
def test_bounds_beyond_every_step_number_select_no_step_or_all(huge: int) -> None:
    steps = np.arange(3)
    assert Selection(steps=StepRange(past=huge)).steps.among(steps).all()
    assert not Selection(steps=StepRange(huge)).steps.among(steps).any()


def test_unknown_times_are_no_events() -> None:
    plain = rows_of(StepRecord(step=0, start_unix_ns=START, wall_us=1.0, phases_us=PhaseTimes(forward=0.0)))
    assert weights(plain).tolist() == [3]
