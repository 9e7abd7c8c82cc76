"""Evaluation distinguished from training, event by event on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rankscope.profiler.phases import BACKWARD, DATA, OPTIMIZER, UNSEEN, PhaseClock
from rankscope.runs.records import PHASES

pytestmark = pytest.mark.usefixtures("require_torch")

ON, OFF = True, False
Story = Iterable[tuple[int, str]]


def told(story: Story, *, end: int) -> tuple[dict[str, int], list[str], tuple[int | None, int | None]]:
    """Return the phases, tags and work of a step with these events. A batch has 4 samples of 2 elements."""
    from rankscope.profiler import events
    from rankscope.profiler.rank.measures import StepMeasures

    words: dict[str, tuple[int, object]] = {
        "data": (DATA, None),
        "batch": (events.BATCH, (4, 8)),
        "no more": (events.BATCH, None),
        "backward": (BACKWARD, None),
        "optimizer": (OPTIMIZER, None),
        "end": (events.LEAVE, None),
        "batch without gradients": (events.BATCH_WITHOUT_GRADIENTS, None),
        "eval()": (events.MODEL_EVALUATES, ON),
        "eval() without gradients": (events.MODEL_EVALUATES, OFF),
        "train()": (events.MODEL_TRAINS, ON),
        "data to train on": (events.TRAINING_BATCH, None),
    }
    measures = StepMeasures()
    try:
        step = events.StepEvents(PhaseClock(0), measures)
        for at, word in story:
            kind, more = words[word]
            step.note(kind, at, more)
        assert step.finish(end) == end
    finally:
        measures.close()
    times: dict[str, int] = {phase: time for phase, time in zip(PHASES, step.clock.times, strict=True) if time not in (0, UNSEEN)}
    assert sum(times.values()) == end
    return times, measures.tags, measures.work[:2]


TRAINS = [(100, "data"), (110, "batch"), (140, "backward"), (190, "end"), (190, "optimizer"), (200, "end")]
TRAINED = {"data": 10, "forward": 30, "backward": 50, "optimizer": 10, "between_steps": 100}

EVALUATIONS: dict[str, Story] = {
    "batches without gradients": [(0, "batch without gradients"), (50, "batch without gradients")],
    "eval() and its batches": [(0, "eval()"), (10, "data"), (20, "batch"), (60, "data"), (60, "no more"), (70, "train()")],
    "eval() without gradients or loader": [(0, "eval() without gradients"), (90, "train()")],
    "a loader with gradients, and nobody says train()": [
        (0, "eval()"),
        (10, "data"),
        (20, "batch"),
        (60, "data"),
        (60, "no more"),
        (100, "data to train on"),
    ],
}


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_an_evaluation_before_a_step_is_between_steps(kind: str) -> None:
    times, tags, work = told([*EVALUATIONS[kind], *TRAINS], end=200)
    assert times == TRAINED
    assert tags == ["eval"]
    assert work == (4, 8)


@pytest.mark.parametrize("kind", list(EVALUATIONS)[:3])
def test_an_evaluation_in_the_middle_of_a_step_is_no_forward_pass(kind: str) -> None:
    middle = [(at + 20, word) for at, word in EVALUATIONS[kind]]
    last = middle[-1][0]
    story = [(0, "data"), (10, "batch"), *middle, (last + 5, "backward"), (last + 55, "end"), (last + 55, "optimizer")]
    times, tags, work = told([*story, (last + 65, "end")], end=last + 65)
    assert times == {"data": 10, "forward": 15, "backward": 50, "optimizer": 10, "between_steps": last - 20}
    assert tags == ["eval"]
    assert work == (4, 8)


@pytest.mark.parametrize("frozen", ["before the loop", "in every step"])
def test_a_frozen_part_of_a_model_is_no_evaluation(frozen: str) -> None:
    first, second = [(100, "eval()")], [(112, "train()"), (113, "eval()")]
    story = [*first, *TRAINS] if frozen == "before the loop" else [*TRAINS[:2], *second, *TRAINS[2:]]
    times, tags, work = told(story, end=200)
    assert (times, tags, work) == (TRAINED, [], (4, 8))


def test_a_step_with_more_events_than_are_kept_is_understood_all_the_same() -> None:
    story = []
    for number in range(2000):
        at = 10 * number
        story += [(at, "data"), (at + 1, "batch"), (at + 4, "backward"), (at + 10, "end")]
    times, _, work = told(story, end=20_000)
    assert times == {"data": 2000, "forward": 6000, "backward": 12_000}
    assert work == (8000, 16_000)
