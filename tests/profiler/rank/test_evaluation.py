"""Evaluation distinguished from training, event by event on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.ring_step import SEEN, event

from rankscope.profiler import events
from rankscope.profiler.events import detail
from rankscope.profiler.phases import BACKWARD, DATA, OPTIMIZER, UNSEEN
from rankscope.profiler.step_evaluation import StepEvaluator
from rankscope.runs.records import PHASES

ON, OFF = True, False
Story = Iterable[tuple[int, str]]


def told(story: Story, *, end: int) -> tuple[dict[str, int], list[str], tuple[int | None, int | None]]:
    """Return the phases, tags and work of a step with these events. A batch has 4 samples of 2 elements."""
    words: dict[str, list[int]] = {
        "data": [DATA],
        "batch": [events.BATCH, detail(4), detail(8)],
        "no more": [events.NO_BATCH],
        "backward": [BACKWARD],
        "optimizer": [OPTIMIZER],
        "end": [events.LEAVE],
        "batch without gradients": [events.BATCH_WITHOUT_GRADIENTS],
        "eval()": [events.MODEL_EVALUATES, detail(ON)],
        "eval() without gradients": [events.MODEL_EVALUATES, detail(OFF)],
        "train()": [events.MODEL_TRAINS, detail(ON)],
        "data to train on": [events.TRAINING_BATCH],
    }
    written = [word for at, happened in story for word in event(words[happened][0], at, *words[happened][1:])]
    step = StepEvaluator(lambda _: "").evaluate(written, 0, SEEN, 0, end)
    assert step.wall_ns == end
    times: dict[str, int] = {phase: time for phase, time in zip(PHASES, step.phases_ns, strict=True) if time not in (0, UNSEEN)}
    assert sum(times.values()) == end
    return times, step.work.tags, step.work.work[:2]


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


def test_a_step_of_thousands_of_batches() -> None:
    story = []
    for number in range(2000):
        at = 10 * number
        story += [(at, "data"), (at + 1, "batch"), (at + 4, "backward"), (at + 10, "end")]
    times, _, work = told(story, end=20_000)
    assert times == {"data": 2000, "forward": 6000, "backward": 12_000}
    assert work == (8000, 16_000)
