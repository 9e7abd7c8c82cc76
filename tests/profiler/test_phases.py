"""Phases of a step, on a clock that the test moves."""

from __future__ import annotations

from rankscope.profiler.phases import BACKWARD, BETWEEN, DATA, H2D, OPTIMIZER, UNSEEN, PhaseClock
from rankscope.runs.records import PHASES


def seen(times: list[int]) -> dict[str, int]:
    """Return the phases that occurred."""
    return {phase: time for phase, time in zip(PHASES, times, strict=True) if time != UNSEEN}


def waited(clock: PhaseClock) -> dict[str, int]:
    """Return the phases with waiting in them."""
    return {phase: time for phase, time in zip(PHASES, clock.blocked, strict=True) if time}


def test_accumulated_phases_are_summed_and_later_gaps_are_between_steps() -> None:
    clock = PhaseClock(0)
    for start in (0, 100):
        clock.enter(DATA, start)
        clock.leave(start + 10)
        clock.enter(BACKWARD, start + 40)
        clock.leave(start + 90)
    assert clock.finish(190) == 190
    assert seen(clock.times) == {"data": 20, "forward": 60, "backward": 100, "between_steps": 10}


def test_data_phase_is_unknown_not_zero_without_a_data_loader() -> None:
    clock = PhaseClock(0)
    clock.enter(BACKWARD, 10)
    clock.leave(20)
    clock.finish(20)
    assert seen(clock.times) == {"forward": 10, "backward": 10}


def test_wait_is_assigned_to_the_phase_determined_later() -> None:
    clock = PhaseClock(0)
    clock.enter(DATA, 0)
    clock.leave(10)
    clock.wait(7)  # not yet known to be the forward pass
    clock.enter(BACKWARD, 30)
    clock.wait(5)
    clock.leave(40)
    clock.finish(40)
    assert waited(clock) == {"forward": 7, "backward": 5}


def test_backward_inside_an_optimizer_closure_is_backward() -> None:
    clock = PhaseClock(0)
    clock.enter(OPTIMIZER, 0)
    clock.enter(BACKWARD, 10)
    clock.leave(50)
    clock.leave(60)
    clock.finish(60)
    assert seen(clock.times) == {"forward": 10, "optimizer": 10, "backward": 40}


def test_interruption_of_a_gap_does_not_change_the_phase_of_the_gap() -> None:
    clock = PhaseClock(0)
    clock.enter(DATA, 0)
    clock.leave(10)
    clock.enter(H2D, 12)  # 2 and the 30 after it are forward
    clock.leave(20)
    clock.wait(5)
    clock.enter(BETWEEN, 30)  # a checkpoint in the middle of forward
    clock.wait(3)
    clock.leave(70)
    clock.enter(BACKWARD, 90)
    clock.leave(100)
    clock.finish(100)
    assert seen(clock.times) == {"data": 10, "h2d": 8, "forward": 32, "backward": 10, "between_steps": 40}
    assert waited(clock) == {"forward": 5, "between_steps": 3}


def test_time_later_found_to_be_evaluation_is_moved_to_between_steps() -> None:
    # Given a forward pass that is interrupted by an evaluation: batches, waiting, time between
    clock = PhaseClock(0)
    clock.enter(DATA, 0)
    clock.leave(10)
    clock.wait(2)
    since = clock.remember()
    clock.enter(DATA, 20)
    clock.leave(40)
    clock.wait(7)
    clock.enter(DATA, 60)
    clock.leave(70)
    # When the time from 15 to 80 turns out to be an evaluation
    clock.interrupt(since, 15, 80)
    clock.enter(BACKWARD, 100)
    clock.leave(130)
    clock.finish(130)
    assert seen(clock.times) == {"data": 10, "forward": 25, "backward": 30, "between_steps": 65}
    assert waited(clock) == {"forward": 2, "between_steps": 7}


def test_late_end_of_a_phase_of_the_previous_step_is_ignored() -> None:
    clock = PhaseClock(0)
    clock.enter(DATA, 10)  # Ctrl-C went through it
    clock.finish(20)
    clock = PhaseClock(20)
    clock.leave(30)
    clock.enter(BACKWARD, 40)
    clock.leave(50)
    clock.finish(50)
    assert seen(clock.times) == {"forward": 20, "backward": 10}


def test_phase_left_by_an_exception_is_closed_and_outer_phases_stay() -> None:
    clock = PhaseClock(0)
    clock.enter(OPTIMIZER, 0)  # it raised, without a report
    clock.enter(BACKWARD, 10)
    clock.abandon(OPTIMIZER)
    clock.leave(30)
    assert clock.finish(35) == 35
    assert seen(clock.times) == {"forward": 10, "optimizer": 0, "backward": 20, "between_steps": 5}
