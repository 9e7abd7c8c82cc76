"""The life of a GPU: the table of transitions, and a slot that follows it, without processes."""

from __future__ import annotations

import os
from typing import cast, get_args

import msgspec
import pytest
from tests.exporter.fleet.gpu_child import identity
from tests.exporter.fleet.gpu_story import IDENTITY, Story

from rankscope.exporter.fleet.gpu_life import LEAVING, READING, TRANSITIONS, WITHOUT_PROCESS, Event, State
from rankscope.exporter.fleet.inventory import Inventory
from rankscope.exporter.fleet.nursery import Nursery
from rankscope.exporter.fleet.nvml_fleet import NvmlFleet
from rankscope.exporter.fleet.wire import Failed, Opened
from rankscope.exporter.source import XidEvent
from rankscope.exporter.wall_clock import WallClock


def test_transition_table_reaches_every_state_from_every_state() -> None:
    states: set[State] = set(get_args(State))
    assert set(TRANSITIONS) == set(get_args(Event))
    assert {*WITHOUT_PROCESS, *READING, *LEAVING, "killed", "stuck"} == states
    reached = {state: {to for row in TRANSITIONS.values() for frm, to in row.items() if frm == state} for state in states}
    for state in states:
        seen, ahead = {state}, [state]
        while ahead:
            ahead = [entry for item in ahead for entry in reached[item] if entry not in seen]
            seen |= set(ahead)
        assert seen == states, state
    # a process is started only where there is none, and none is left behind without its exit
    assert {frm for frm, to in TRANSITIONS["started"].items()} <= set(WITHOUT_PROCESS)
    for event, row in TRANSITIONS.items():
        for frm, to in row.items():
            assert (frm in WITHOUT_PROCESS) == (to in WITHOUT_PROCESS) or event in ("started", "exited"), (event, frm)


def test_hung_process_is_killed_then_stuck_then_replaced_after_exit() -> None:
    story = Story()
    story.until_sampling()
    story.process.hang, story.process.board.current = "nvmlX did not return", "nvmlX"

    assert (story.step(), story.reason(), story.process.done) == ("killed", "hung", ["kill"])
    assert story.hear(story.sample(), Failed("lost", "late")) == "killed"
    assert (story.step(), story.reason()) == ("killed", "hung")
    assert (story.step(1), story.reason()) == ("stuck", "stuck")
    assert story.step(600) == "stuck"
    assert len(story.children.started) == 1
    assert (story.exit(), story.reason()) == ("waiting", "hung")
    story.until_sampling()
    published = story.slot.published(story.now)
    assert published is not None
    assert published.restarts == 1


def test_a_reported_failure_stays_the_reason_however_the_process_ends() -> None:
    story = Story()
    story.until_sampling()

    assert story.hear(Failed("lost", "fell off the bus", xids=(XidEvent(1000.0, 79),))) == "exiting"
    assert story.xids == [79]
    assert story.step(5) == "exiting"
    assert (story.step(10), story.reason(), story.process.done) == ("killed", "lost", ["kill"])
    assert (story.exit(), story.reason()) == ("waiting", "lost")
    # and the next attempt comes after its pause
    story.now -= 15
    assert story.step() == "waiting"
    assert story.step(15) == "opening"


@pytest.mark.parametrize("opened", [False, True])
def test_process_that_ends_unexpectedly_has_reason_died(opened: bool) -> None:
    story = Story()
    story.step()
    if opened:
        story.hear(Opened(IDENTITY))
    story.slot.disconnected(story.now)  # its end closes the connection

    assert (story.exit(), story.reason()) == ("waiting", "died")
    assert story.slot.down is not None
    assert "signal 9" in story.slot.down.detail


def test_a_process_that_only_closes_its_connection_is_killed() -> None:
    story = Story()
    story.until_sampling()
    story.slot.disconnected(story.now)

    assert story.step(0.5) == "disconnected"
    assert (story.step(1), story.reason(), story.process.done) == ("killed", "died", ["kill"])


def test_down_time_follows_clock_changes() -> None:
    story = Story()
    story.until_sampling()
    story.now += 60
    story.hear(Failed("lost", "x"))

    def since_unix_s() -> float:
        published = story.slot.published(story.now)
        assert published is not None
        assert published.since_unix_s is not None
        return published.since_unix_s

    ahead_s = 0.0
    story.slot._clock = WallClock(lambda: 1e9 + story.now + ahead_s, lambda: story.now)
    assert since_unix_s() == 1e9 + story.now - 60
    ahead_s = 30 * 86400.0
    assert since_unix_s() == 1e9 + story.now - 60 + ahead_s


def test_down_time_starts_with_the_first_failure() -> None:
    story = Story()
    story.until_sampling()
    story.now += 60
    story.hear(Failed("lost", "x"))
    assert story.slot.down is not None
    since_s = story.slot.down.since_s
    story.exit()
    assert story.step(60) == "opening"
    story.hear(Failed("nvml_error", "y"))
    assert story.slot.down.detail == "y"
    assert story.slot.down.since_s == since_s


@pytest.mark.parametrize("before", ["sampling", "exiting", "disconnected", "killed"])
def test_a_release_ends_the_process_from_every_state(before: State) -> None:
    story = Story()
    story.until_sampling()
    if before == "exiting":
        story.hear(Failed("nvml_error", "x"))
    elif before == "disconnected":
        story.slot.disconnected(story.now)
    elif before == "killed":
        story.process.hang = "x"
        story.step()
    assert story.slot.state == before

    story.slot.release(story.now, 60)
    assert story.step() == ("killed" if before == "killed" else "closing")
    assert story.hear(story.sample()) != "sampling"
    assert story.reason() == "released"
    story.exit("ended with status 0")
    assert (story.step(), story.reason()) == ("released", "released")
    # a GPU that disappears meanwhile stays released, and is missing after that
    assert story.step(30, ("missing", "gone")) == "released"
    assert (story.step(60, ("missing", "gone")), story.reason()) == ("absent", "missing")
    assert story.step() == "opening"
    story.hear(Opened(IDENTITY), story.sample())
    assert story.resets == [story.now]


def test_a_process_that_ignores_a_release_is_killed_and_stuck() -> None:
    story = Story()
    story.until_sampling()
    story.slot.release(story.now, 60)

    assert [story.step(1.1) for _ in range(3)] == ["closing", "killed", "stuck"]
    assert (story.process.done, story.reason()) == (["hang up", "kill"], "stuck")
    story.slot.give_up_release(story.now)
    assert story.step(600) == "stuck"
    story.exit()
    assert story.step() == "opening"


def test_a_replaced_driver_gets_a_new_process_at_once() -> None:
    story = Story()
    story.until_sampling()

    story.slot.start_afresh(story.now, "590.44.01")
    assert (story.slot.state, story.reason()) == ("closing", "starting")
    story.exit("ended with status 0")
    assert story.step(0) == "opening"


def test_failed_release_leaves_no_gpu_released() -> None:
    story = Story()
    story.slot.release(story.now, 60)
    assert story.reason() == "released"
    story.slot.give_up_release(story.now)
    assert story.reason() == "starting"
    story.until_sampling()
    story.slot.release(story.now, 60)
    story.slot.give_up_release(story.now)
    assert story.reason() == "stuck"


def test_a_sample_sent_before_a_release_was_noticed_changes_nothing() -> None:
    story = Story()
    story.until_sampling()
    story.slot.release(story.now, 60)

    story.hear(story.sample())

    assert (story.reason(), story.resets) == ("released", [])


def test_resume_skips_the_retry_pause() -> None:
    story = Story()
    story.until_sampling()
    story.hear(Failed("nvml_error", "x"))
    story.exit("ended with status 0")
    story.slot.release(story.now, 60)
    assert story.step() == "released"

    story.slot.resume(story.now)

    assert story.step() == "opening"


def test_a_gpu_that_fails_after_each_start_is_retried_less_often() -> None:
    story = Story()
    assert story.step() == "opening"

    def pause_after_failure(sampled_s: float) -> int:
        story.hear(Opened(IDENTITY), story.sample())
        story.now += sampled_s
        story.hear(story.sample(), Failed("nvml_error", "x"))
        story.exit("ended with status 0")
        failed_s = story.now
        while story.step(1) == "waiting":
            assert story.now < failed_s + 600
        return round(story.now - failed_s)

    assert [pause_after_failure(1) for _ in range(3)] == [5, 10, 20]
    assert pause_after_failure(600) == 5


def test_recovery_of_a_moved_gpu_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    old, new = Story(), Story()
    old.until_sampling()
    old.hear(Failed("lost", "x"))
    new.step()
    new.hear(Opened(IDENTITY))

    new.slot.move_from(old.slot, new.now)
    new.hear(new.sample())

    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "answers again" in caplog.text


def test_an_index_is_that_of_the_gpu_that_is_up() -> None:
    """A missing GPU keeps its old index, which another GPU may have now."""
    inventory, nursery = Inventory(None), cast(Nursery, None)
    for number in range(2):
        inventory.see(msgspec.structs.replace(identity(number), index=0))
    fleet = NvmlFleet(nursery, collectors=frozenset(), interval_s=1, inventory=inventory)
    _missing, present = fleet._slots.values()
    present.down = None

    fleet.release("0", ttl_s=60)

    assert [slot.down.reason for slot in fleet._slots.values() if slot.down is not None] == ["starting", "released"]
    fleet._selector.close()
    os.close(fleet._wake)
