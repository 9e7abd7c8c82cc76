"""Step boundaries."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.profiler.rank.wrappers.optimizers import StepBoundary


class Optimizer:
    """Simulated optimizer."""


def closings(boundary: StepBoundary, events: Iterable[Optimizer | str]) -> list[int]:
    """Feed events ("backward", or an optimizer that steps); return the positions after which, or before which, steps closed."""
    closed = []
    for position, event in enumerate(events):
        if isinstance(event, str):
            boundary.backward_seen = boundary.backward_since_close = boundary.backward_since_step = True
            continue
        if boundary.before_optimizer(event):
            closed.append(position)
        if boundary.after_optimizer(event):
            closed.append(position)
    return closed


def test_one_optimizer_ends_a_step_each_time_it_has_stepped() -> None:
    adam = Optimizer()
    assert closings(StepBoundary(), ["backward", adam] * 3) == [1, 3, 5]


def test_gradient_accumulation_is_one_step() -> None:
    adam = Optimizer()
    assert closings(StepBoundary(), ["backward", "backward", "backward", adam] * 2) == [3, 7]


def test_an_optimizer_that_steps_one_group_of_parameters_after_the_other_makes_one_step() -> None:
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
