"""A slot of a GPU that a test drives without processes, and with a clock that the test sets."""

from __future__ import annotations

import time
from typing import Any

from rankscope.exporter.fleet.gpu_life import State
from rankscope.exporter.fleet.gpu_slot import GpuSlot
from rankscope.exporter.fleet.timeouts import FleetTimeouts
from rankscope.exporter.fleet.wire import Opened, Sampled
from rankscope.exporter.source import GpuIdentity, GpuSample, Reading

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
        self.last_message_s = 0.0
        self.pid = 7
        self.hang: str | None = None
        self.done: list[str] = []

    def hang_reason(self, _now: float, **_limits: float) -> str | None:
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
        self.xids: list[int] = []
        self.children = Children()
        children: Any = self.children
        self.slot = GpuSlot(
            BUS_ID,
            children,
            collectors=frozenset(),
            interval_s=1,
            timeouts=FleetTimeouts(),
            on_xid=lambda _gpu, event: self.xids.append(event.xid),
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
        values = (("gpu_energy_joules_total", joules), ("gpu_power_watts", watts))
        readings = tuple(Reading(metric, value) for metric, value in values if value)
        return Sampled(GpuSample(identity, time.time(), self.now, readings), 0.1)

    def exit(self, exit_reason: str = "ended by signal 9") -> State:
        self.slot.exited(exit_reason, self.now)
        return self.slot.state

    def reason(self) -> str | None:
        return self.slot.down.reason if self.slot.down is not None else None

    def until_sampling(self, joules: float = 0, watts: float = 0) -> None:
        assert self.step() == "opening"
        assert self.hear(Opened(IDENTITY), self.sample(joules, watts)) == "sampling"
        assert self.reason() is None

    def until_read_again(self, joules: float = 0, watts: float = 0, *, after_s: float = 10) -> None:
        """The next process reads the GPU."""
        self.now += after_s
        if self.slot.child is not None:
            self.exit("ended with status 0")
        self.until_sampling(joules, watts)
