"""Boundaries of steps, and evaluation distinguished from training, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.ring_step import SEEN, event

from rankscope.profiler import events
from rankscope.profiler.events import detail
from rankscope.profiler.phases import BACKWARD, DATA, OPTIMIZER, UNSEEN
from rankscope.profiler.rank.wrappers.optimizers import StepBoundary
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


class Optimizer:
    """Simulated optimizer."""


def closings(boundary: StepBoundary, events: Iterable[Optimizer | str]) -> list[int]:
    """Feed events ("backward", or an optimizer that steps); return the positions after which, or before which, steps closed."""
    closed = []
    for position, source in enumerate(events):
        if isinstance(source, str):
            boundary.backward_seen = boundary.backward_since_close = boundary.backward_since_step = True
            continue
        if boundary.before_optimizer(source):
            closed.append(position)
        if boundary.after_optimizer(source):
            closed.append(position)
    return closed


def test_one_optimizer_ends_a_step_each_time_it_has_stepped() -> None:
    adam = Optimizer()
    assert closings(StepBoundary(), ["backward", adam] * 3) == [1, 3, 5]


def test_gradient_accumulation_is_one_step() -> None:
    adam = Optimizer()
    assert closings(StepBoundary(), ["backward", "backward", "backward", adam] * 2) == [3, 7]


def test_an_optimizer_that_steps_its_groups_in_turn_makes_one_step() -> None:
    adam = Optimizer()
    assert closings(StepBoundary(), ["backward", adam, adam, adam] * 3) == [1, 5, 9]


def test_chained_optimizers_make_one_step_together() -> None:
    muon, adam = Optimizer(), Optimizer()
    # In the first cycle the second optimizer is unknown; from then on the last one ends the step.
    assert closings(StepBoundary(), ["backward", muon, adam] * 3) == [1, 5, 8]


def test_a_gans_step_is_one_cycle_of_its_optimizers() -> None:
    critic, generator = Optimizer(), Optimizer()
    cycle: list[Optimizer | str] = ["backward", critic, "backward", generator]
    assert closings(StepBoundary(), cycle * 3) == [1, 7, 11]


def test_a_critic_that_steps_more_often_ends_steps_before_it_steps_again() -> None:
    critic, generator = Optimizer(), Optimizer()
    boundary = StepBoundary()
    closings(boundary, ["backward", critic, "backward", generator] * 2)
    assert closings(boundary, ["backward", critic, "backward", critic, "backward", critic, "backward", generator]) == [3, 5, 7]


def test_an_optimizer_that_takes_the_place_of_another_goes_on_ending_steps() -> None:
    boundary = StepBoundary()
    for _ in range(3):  # a new optimizer per epoch, the old one deleted
        optimizer = Optimizer()
        assert closings(boundary, ["backward", optimizer] * 2) == [1, 3]
        del optimizer


def test_training_without_backward_passes_has_steps_too() -> None:
    evolution = Optimizer()
    assert closings(StepBoundary(), [evolution, evolution]) == [0, 1]
