"""Where the time of a step goes, on a clock the test moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankscope.profiler.phases import PhaseClock, in_microseconds
from rankscope.runs.records import PHASES


def test_a_plain_loop_is_split_at_the_events() -> None:
    clock = PhaseClock(0)
    clock.enter("data", 10)  # 10 of logging after the last step
    clock.leave(30)
    clock.enter("backward", 70)
    clock.leave(100)
    clock.enter("optimizer", 105)  # 5 of gradient clipping
    clock.leave(115)
    assert clock.finish(115) == 115
    assert clock.times == {"between_steps": 10, "data": 20, "forward": 40, "backward": 30, "optimizer": 15}


def test_gradient_accumulation_adds_up_and_the_gap_after_a_backward_is_nobodys_forward() -> None:
    clock = PhaseClock(0)
    for start in (0, 100):
        clock.enter("data", start)
        clock.leave(start + 10)
        clock.enter("backward", start + 40)
        clock.leave(start + 90)
    assert clock.finish(190) == 190
    assert clock.times == {"data": 20, "forward": 60, "backward": 100, "between_steps": 10}


def test_without_a_data_loader_the_data_phase_is_unknown_not_zero() -> None:
    clock = PhaseClock(0)
    clock.enter("backward", 10)
    clock.leave(20)
    clock.finish(20)
    record = in_microseconds(clock.times, clock.times)
    assert record.data is None
    assert record.forward == 0.01


def test_waiting_belongs_to_the_phase_it_turns_out_to_be_in() -> None:
    clock = PhaseClock(0)
    clock.enter("data", 0)
    clock.leave(10)
    clock.wait(7)  # nobody knows yet that this is the forward pass
    clock.enter("backward", 30)
    clock.wait(5)
    clock.leave(40)
    clock.finish(40)
    assert clock.blocked == {"forward": 7, "backward": 5}


def test_a_backward_inside_an_optimizers_closure_is_backward() -> None:
    clock = PhaseClock(0)
    clock.enter("optimizer", 0)
    clock.enter("backward", 10)
    clock.leave(50)
    clock.leave(60)
    clock.finish(60)
    assert clock.times == {"optimizer": 20, "backward": 40}


@given(st.lists(st.tuples(st.sampled_from(["data", "backward", "optimizer", "leave"]), st.integers(0, 10**6))))
def test_phases_sum_to_the_wall_time_whatever_happens(events: list[tuple[str, int]]) -> None:
    clock, at, depth = PhaseClock(0), 0, 0
    for event, later in events:
        at += later
        if event != "leave":
            clock.enter(event, at)  # type: ignore[arg-type]
            depth += 1
        elif depth:
            clock.leave(at)
            depth -= 1
    assert clock.finish(at) == at == sum(clock.times.values())
    assert clock.times.keys() <= set(PHASES)


def test_a_phase_that_an_exception_went_through_is_let_go_and_the_ones_around_it_stay() -> None:
    clock = PhaseClock(0)
    clock.enter("optimizer", 0)  # it raised, nobody said
    clock.enter("backward", 10)
    clock.abandon("optimizer")
    assert clock.inside("backward")
    assert not clock.inside("optimizer")
    clock.leave(30)
    assert clock.finish(35) == 35
    assert clock.times == {"optimizer": 10, "backward": 20, "between_steps": 5}
