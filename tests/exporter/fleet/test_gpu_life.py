"""The life of a GPU: the table of transitions, and a slot that follows it, without processes."""

from __future__ import annotations

import time
from typing import Any, get_args

import pytest

from rankscope.exporter.fleet.gpu_life import LEAVING, READING, TRANSITIONS, WITHOUT_PROCESS, Event, State
from rankscope.exporter.fleet.gpu_slot import GpuSlot
from rankscope.exporter.fleet.patience import Patience
from rankscope.exporter.fleet.wire import Failed, Opened, Sampled
from rankscope.exporter.source import GpuIdentity, GpuSample

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
            patience=Patience(),
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

    def sample(self) -> Sampled:
        return Sampled(GpuSample(IDENTITY, time.time(), self.now), 0.1)

    def exit(self, why: str = "ended by signal 9") -> State:
        self.slot.exited(why, self.now)
        return self.slot.state

    def why(self) -> str | None:
        return self.slot.down.reason if self.slot.down is not None else None

    def until_sampling(self) -> None:
        assert self.step() == "opening"
        assert self.hear(Opened(IDENTITY), self.sample()) == "sampling"
        assert self.why() is None


def test_the_table_knows_every_state_and_leads_from_each_to_all_others() -> None:
    states: set[State] = set(get_args(State))
    assert set(TRANSITIONS) == set(get_args(Event))
    assert {*WITHOUT_PROCESS, *READING, *LEAVING, "killed", "stuck"} == states
    reached = {state: {to for row in TRANSITIONS.values() for frm, to in row.items() if frm == state} for state in states}
    for state in states:
        seen, ahead = {state}, [state]
        while ahead:
            ahead = [one for known in ahead for one in reached[known] if one not in seen]
            seen |= set(ahead)
        assert seen == states, state
    # a process is started only where there is none, and none is left behind without its exit
    assert {frm for frm, to in TRANSITIONS["started"].items()} <= set(WITHOUT_PROCESS)
    for event, row in TRANSITIONS.items():
        for frm, to in row.items():
            assert (frm in WITHOUT_PROCESS) == (to in WITHOUT_PROCESS) or event in ("started", "exited"), (event, frm)


def test_a_process_that_hangs_is_killed_is_stuck_and_is_replaced_when_it_ends() -> None:
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

    story.slot.release(story.now + 60)
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
    story.slot.release(story.now + 60)

    assert [story.step(1.1) for _ in range(3)] == ["closing", "killed", "stuck"]
    assert (story.process.done, story.why()) == (["hang up", "kill"], "stuck")
    story.slot.give_up_release(story.now)
    assert story.step(600) == "stuck"
    story.exit()
    assert story.step() == "opening"


def test_a_replaced_driver_gets_a_new_process_at_once() -> None:
    story = Story()
    story.until_sampling()

    story.slot.start_afresh(story.now)
    assert (story.slot.state, story.why()) == ("closing", "starting")
    story.exit("ended with status 0")
    assert story.step(0) == "opening"
