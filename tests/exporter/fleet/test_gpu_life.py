"""The life of a GPU: the table of transitions, and a slot that follows it, without processes."""

from __future__ import annotations

import time
from typing import Any, get_args

import pytest

from rankscope.exporter.fleet.gpu_life import LEAVING, READING, TRANSITIONS, WITHOUT_PROCESS, Event, State
from rankscope.exporter.fleet.gpu_slot import GpuSlot
from rankscope.exporter.fleet.timeouts import FleetTimeouts
from rankscope.exporter.fleet.wire import Failed, Opened, Sampled
from rankscope.exporter.source import DownReason, GpuIdentity, GpuSample, Reading
from rankscope.exporter.wall_clock import WallClock

BUS_ID = "00000000:1a:00.0"
IDENTITY = GpuIdentity("GPU-0", index=0, model="Test GPU", pci_bus_id=BUS_ID)


class Board:
    """A call board of a process that is in ``current``, or in no call."""

    current = ""

    def began_ns(self) -> int:
        return 1 if self.current else 0

    def call(self) -> str:
        return self.current


class Process:
    """A process of a GPU, and what was done to it."""

    def __init__(self) -> None:
        self.board = Board()
        self.heard_at = 0.0
        self.pid = 7
        self.hang: str | None = None
        self.done: list[str] = []

    def trouble(self, _now: float, **_limits: float) -> str | None:
        return self.hang


class Children:
    """Processes that a slot starts and ends."""

    def __init__(self) -> None:
        self.started: list[Process] = []

    def spawn(self, _request: object, _now: float) -> Process:
        self.started.append(Process())
        return self.started[-1]

    def hang_up(self, child: Process, _now: float) -> None:
        child.done.append("hang up")

    def kill(self, child: Process, _now: float) -> None:
        child.done.append("kill")


class Story:
    """A slot with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.resets: list[float] = []
        self.children = Children()
        children: Any = self.children
        self.slot = GpuSlot(
            BUS_ID,
            children,
            collectors=frozenset(),
            interval_s=1,
            timeouts=FleetTimeouts(),
            on_xid=lambda _gpu, _xid: None,
            on_reset=lambda _gpu, opened_s: self.resets.append(opened_s),
        )

    @property
    def process(self) -> Process:
        return self.children.started[-1]

    def step(self, after_s: float = 0.1, absent: Any = None) -> State:
        self.now += after_s
        self.slot.step(self.now, absent)
        return self.slot.state

    def hear(self, *messages: Any) -> State:
        for message in messages:
            self.slot.handle(message, self.now)
        return self.slot.state

    def sample(self, joules: float = 0, watts: float = 0, *, identity: GpuIdentity = IDENTITY) -> Sampled:
        given = (("gpu_energy_joules_total", joules), ("gpu_power_watts", watts))
        readings = tuple(Reading(metric, value) for metric, value in given if value)
        return Sampled(GpuSample(identity, time.time(), self.now, readings), 0.1)

    def exit(self, why: str = "ended by signal 9") -> State:
        self.slot.exited(why, self.now)
        return self.slot.state

    def why(self) -> str | None:
        return self.slot.down.reason if self.slot.down is not None else None

    def until_sampling(self, joules: float = 0, watts: float = 0) -> None:
        assert self.step() == "opening"
        assert self.hear(Opened(IDENTITY), self.sample(joules, watts)) == "sampling"
        assert self.why() is None

    def until_read_again(self, joules: float = 0, watts: float = 0, *, after_s: float = 10) -> None:
        """The next process reads the GPU."""
        self.now += after_s
        if self.slot.child is not None:
            self.exit("ended with status 0")
        self.until_sampling(joules, watts)


def test_the_table_knows_every_state_and_leads_from_each_to_all_others() -> None:
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


def test_a_hung_process_is_killed_is_stuck_and_is_replaced_when_it_ends() -> None:
    story = Story()
    story.until_sampling()
    story.process.hang, story.process.board.current = "nvmlX did not return", "nvmlX"

    assert (story.step(), story.why(), story.process.done) == ("killed", "hung", ["kill"])
    assert story.hear(story.sample(), Failed("lost", "late")) == "killed"
    assert (story.step(), story.why()) == ("killed", "hung")
    assert (story.step(1), story.why()) == ("stuck", "stuck")
    assert story.step(600) == "stuck"
    assert len(story.children.started) == 1
    assert (story.exit(), story.why()) == ("waiting", "hung")
    story.until_sampling()
    published = story.slot.published(story.now)
    assert published is not None
    assert published.restarts == 1


def test_a_reported_failure_stays_the_reason_however_the_process_ends() -> None:
    story = Story()
    story.until_sampling()

    assert story.hear(Failed("lost", "fell off the bus")) == "exiting"
    assert story.step(5) == "exiting"
    assert (story.step(10), story.why(), story.process.done) == ("killed", "lost", ["kill"])
    assert (story.exit(), story.why()) == ("waiting", "lost")
    # and the next attempt comes after its pause
    story.now -= 15
    assert story.step() == "waiting"
    assert story.step(15) == "opening"


@pytest.mark.parametrize("opened", [False, True])
def test_a_process_that_ends_unexpectedly_died(opened: bool) -> None:
    story = Story()
    story.step()
    if opened:
        story.hear(Opened(IDENTITY))
    story.slot.disconnected(story.now)  # its end closes the connection

    assert (story.exit(), story.why()) == ("waiting", "died")
    assert story.slot.down is not None
    assert "signal 9" in story.slot.down.detail


def test_a_process_that_only_closes_its_connection_is_killed() -> None:
    story = Story()
    story.until_sampling()
    story.slot.disconnected(story.now)

    assert story.step(0.5) == "disconnected"
    assert (story.step(1), story.why(), story.process.done) == ("killed", "died", ["kill"])


def test_a_gpu_is_down_since_the_same_moment_however_the_clock_is_set() -> None:
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


def test_a_gpu_is_down_since_the_first_reason() -> None:
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
    assert story.why() == "released"
    story.exit("ended with status 0")
    assert (story.step(), story.why()) == ("released", "released")
    # a GPU that disappears meanwhile stays released, and is missing after that
    assert story.step(30, ("missing", "gone")) == "released"
    assert (story.step(60, ("missing", "gone")), story.why()) == ("absent", "missing")
    assert story.step() == "opening"
    story.hear(Opened(IDENTITY), story.sample())
    assert story.resets == [story.now]


def test_a_process_that_ignores_a_release_is_killed_and_stuck() -> None:
    story = Story()
    story.until_sampling()
    story.slot.release(story.now, 60)

    assert [story.step(1.1) for _ in range(3)] == ["closing", "killed", "stuck"]
    assert (story.process.done, story.why()) == (["hang up", "kill"], "stuck")
    story.slot.give_up_release(story.now)
    assert story.step(600) == "stuck"
    story.exit()
    assert story.step() == "opening"


def test_a_replaced_driver_gets_a_new_process_at_once() -> None:
    story = Story()
    story.until_sampling()

    story.slot.start_afresh(story.now, "590.44.01")
    assert (story.slot.state, story.why()) == ("closing", "starting")
    story.exit("ended with status 0")
    assert story.step(0) == "opening"


@pytest.mark.parametrize("reason", ["missing", "not_in_driver", "no_driver", "library_mismatch"])
@pytest.mark.parametrize(("joules", "resets"), [(1_000_500.0, 0), (300.0, 1), (0.0, 1)])
def test_a_gpu_that_was_only_out_of_sight_was_not_reset(reason: DownReason, joules: float, resets: int) -> None:
    """Else alerts about its Xids would end without a repair."""
    story = Story()
    story.until_sampling(1_000_000, 100)
    story.hear(Failed("nvml_error", "x"))
    story.exit("ended with status 0")
    assert story.step(5, (reason, "so the survey")) == "absent"

    story.until_read_again(joules, 100)

    if joules == 0:  # no counter on this board any more
        story.now += 61
        story.hear(story.sample(0, 100))
    assert len(story.resets) == resets


def test_an_energy_counter_that_is_not_read_at_once_is_awaited() -> None:
    for readings, resets in (((0, 0, 1_000_900), 0), ((0, 300), 1), ((0, 0), 0), ((0,) * 8, 1)):
        story = Story()
        story.until_sampling(1_000_000, 100)
        story.hear(Failed("no_driver", "x"))
        story.until_read_again(readings[0], 100)
        for joules in readings[1:]:
            story.now += 10
            story.hear(story.sample(joules, 100))
        assert len(story.resets) == resets, readings


def test_a_driver_that_tells_another_version_without_a_reload_is_no_reset() -> None:
    for joules, resets in ((1_000_500.0, 0), (300.0, 1)):
        story = Story()
        story.until_sampling(1_000_000, 100)
        story.slot.start_afresh(story.now, "590.44.01")
        story.until_read_again(joules, 100)
        assert len(story.resets) == resets


@pytest.mark.parametrize("joules", [300.0, 0.0])
def test_a_process_restarted_before_the_survey_saw_the_driver_is_kept(joules: float) -> None:
    """Else one reload would be two resets, and the second would end the alert about an Xid in between."""
    story = Story()
    story.step()
    story.hear(Opened(IDENTITY, "580.65.06"), story.sample(1000 * joules, 100))
    story.hear(Failed("nvml_error", "uninitialized"))
    story.exit("ended with status 0")
    story.now += 10
    assert story.step() == "opening"
    story.hear(Opened(IDENTITY, "590.44.01"), story.sample(joules, 100))
    assert len(story.resets) == 1

    story.slot.start_afresh(story.now, "590.44.01")

    assert story.slot.state == "sampling"
    story.hear(story.sample(joules, 100))
    assert len(story.resets) == 1


def test_a_small_energy_counter_disproves_nothing() -> None:
    story = Story()
    story.until_sampling(1000, 100)
    story.hear(Failed("no_driver", "x"))
    story.until_read_again(2000, 100)
    assert len(story.resets) == 1


@pytest.mark.parametrize("release", [False, True])
def test_a_gpu_that_was_lost_or_released_was_reset_whatever_its_energy(release: bool) -> None:
    story = Story()
    story.until_sampling(1_000_000, 100)
    down_s = story.now
    if release:
        story.slot.release(story.now, 5)
        story.step()
        story.exit("ended with status 0")
        story.step()
    else:
        story.hear(Failed("lost", "x"))
    story.until_read_again(1_000_500, 100)
    assert story.resets == [pytest.approx(down_s)]


def test_a_release_that_failed_does_not_hide_that_the_gpu_was_lost() -> None:
    story = Story()
    story.until_sampling()
    story.hear(Failed("lost", "x"))
    story.slot.release(story.now, 60)
    story.slot.give_up_release(story.now)
    story.until_read_again()
    assert len(story.resets) == 1


def test_a_hang_alone_is_no_reset() -> None:
    story = Story()
    story.until_sampling(1_000_000, 100)
    story.process.hang = "x"
    story.step()
    story.until_read_again(1_000_500, 100)
    assert story.resets == []


def test_a_reset_is_dated_by_what_the_gpu_has_used_since() -> None:
    """An error of the job that used it before the exporter did is not repaired."""
    story = Story()
    story.until_sampling(1_000_000, 400)
    story.slot.release(story.now, 600)
    story.step()
    story.exit("ended with status 0")
    released_s = story.now

    story.until_read_again(400 * 500.0, 400, after_s=600)  # 500 s at work
    assert story.resets == [pytest.approx(released_s + 100, abs=1)]

    # each failed attempt to open a lost GPU shows that it was not reset before
    story.hear(Failed("lost", "x"))
    story.exit("ended with status 0")
    story.step(20)
    story.hear(Failed("lost", "x"))
    lost_s = story.now
    story.until_read_again(400 * 500.0, 400, after_s=30)
    assert story.resets[1:] == [pytest.approx(lost_s)]


def test_a_gpu_that_was_moved_while_the_exporter_ran_was_reset() -> None:
    for was_read, resets in ((True, 1), (False, 0)):
        old, new = Story(), Story()
        old.slot.remember(IDENTITY, None)
        if was_read:
            old.until_sampling(100, 100)
        new.step()
        new.hear(Opened(IDENTITY))
        new.slot.move_from(old.slot, new.now)
        new.hear(new.sample())
        assert len(new.resets) == resets
