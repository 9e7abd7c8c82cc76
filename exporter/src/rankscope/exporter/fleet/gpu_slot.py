"""Slot of one GPU: its process, its last sample, why it is down, and when to retry."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from rankscope.exporter.fleet.children import Child, Children
from rankscope.exporter.fleet.counters import MonotonicCounters
from rankscope.exporter.fleet.gpu_life import LEAVING, READING, TRANSITIONS, WITHOUT_PROCESS, Event, State
from rankscope.exporter.fleet.inventory import EnergyMeter
from rankscope.exporter.fleet.resets import Resets, energy_of
from rankscope.exporter.fleet.timeouts import FleetTimeouts
from rankscope.exporter.fleet.wire import Failed, FromChild, Opened, Sampled, Spawn, apply_delta
from rankscope.exporter.loop import STALE_AFTER_INTERVALS
from rankscope.exporter.source import DownReason, GpuIdentity, GpuSample, GpuState, Reading, XidEvent
from rankscope.exporter.wall_clock import WallClock

logger = logging.getLogger(__name__)

_NOT_TRIED: Final = ("missing", "not_in_driver", "no_driver", "library_mismatch", "released")
"""Reasons of GPUs without a process that end with the next attempt."""


class GpuDown(msgspec.Struct, frozen=True):
    """Reason why a GPU is down, since when (monotonic), the NVML function that hangs (or empty), and whether it was logged."""

    reason: DownReason
    detail: str
    since_s: float
    call: str = ""
    logged: bool = False


class GpuSlot:
    """Slot of the GPU at one PCI address. ``state`` follows ``gpu_life.TRANSITIONS``; ``down`` is what is published of it."""

    def __init__(
        self,
        pci_bus_id: str,
        children: Children,
        *,
        collectors: frozenset[str],
        interval_s: float,
        timeouts: FleetTimeouts,
        on_xid: Callable[[GpuIdentity, XidEvent], None],
        on_reset: Callable[[GpuIdentity, float], None],
    ) -> None:
        self.pci_bus_id = pci_bus_id
        self.identity: GpuIdentity | None = None
        self.state: State = "waiting"
        self.child: Child | None = None
        self.down: GpuDown | None = None
        self._children = children
        self._collectors = collectors
        self._interval_s = interval_s
        self._timeouts = timeouts
        self._on_xid = on_xid
        self._on_reset = on_reset
        self._resets = Resets()
        self._driver_version = ""
        self._clock = WallClock()
        self._since_s = 0.0
        self._released_until: float | None = None
        self._starts = 0
        self._sampled_s = 0.0
        self._failures = 0
        self._retry_at = 0.0
        self._sample: GpuSample | None = None
        self._readings: tuple[Reading, ...] = ()
        self._took_s = 0.0
        self._counters = MonotonicCounters()
        self._set_down("starting", "not queried yet", time.monotonic())

    def remember(self, identity: GpuIdentity, meter: EnergyMeter | None) -> None:
        """Start with the identity and the energy counter of an earlier exporter."""
        self.identity = identity
        if meter is not None:
            self._resets.remember(meter)

    @property
    def energy_j(self) -> float:
        """Last reading of the driver's energy counter; 0 if unknown."""
        return energy_of(self._readings)

    @property
    def was_sampled(self) -> bool:
        """True if a process of this exporter has read the GPU."""
        return bool(self._readings)

    @property
    def name(self) -> str:
        """The GPU's uuid if it is known, else its PCI bus id."""
        return self.identity.uuid if self.identity is not None else self.pci_bus_id

    @property
    def wedged(self) -> bool:
        """True if driver calls for this GPU do not return."""
        return self.down is not None and self.down.reason in ("hung", "stuck")

    def fresh(self, now: float) -> bool:
        """Return True while the sample may still be shown.

        The limit grows with the duration of a pass, so that GPUs of a slow driver do not flap.
        """
        if self._sample is None:
            return False
        return now - self._sample.monotonic_s <= max(STALE_AFTER_INTERVALS * self._interval_s, 2 * self._took_s)

    def unidentified(self) -> tuple[str, DownReason, str] | None:
        """Return PCI bus id, reason and detail of a GPU whose identity was never read; None if it is known."""
        if self.identity is not None or self.down is None:
            return None
        return self.pci_bus_id, self.down.reason, self._detail(self.down)

    def published(self, now: float) -> GpuState | None:
        """Return the state to publish; None while the GPU's identity is unknown."""
        if self.identity is None:
            return None
        restarts = max(0, self._starts - 1)
        age_s = now - self._sample.monotonic_s if self._sample is not None else None
        if self.down is None and self.fresh(now):
            return GpuState(self.identity, up=True, sample=self._sample, age_s=age_s, restarts=restarts)
        down = self.down
        if down is None:
            assert self._sample is not None
            call = self._present_call()
            detail = f"no new sample; its process is in {call}" if call else "no new sample"
            down = GpuDown("stale", detail, self._sample.monotonic_s, call)
        return GpuState(
            self.identity,
            up=False,
            age_s=age_s,
            reason=down.reason,
            detail=self._detail(down),
            call=down.call,
            since_unix_s=self._clock.unix_s(down.since_s),
            restarts=restarts,
        )

    def step(self, now: float, absent: tuple[DownReason, str] | None) -> bool:
        """Start, check or end the process as due; return True if the state changed. Raises ``NurseryLostError``.

        ``absent`` is the survey's reason why the GPU cannot be queried; None if it can.
        """
        before = (self.down, self.state)
        if self.state in WITHOUT_PROCESS:
            self._step_without_process(now, absent)
        elif self.state in READING and self._released_until is None:
            self._check(now)
        elif self._released_until is not None and self.state in TRANSITIONS["dismissed"]:
            self._apply("dismissed", now)
        elif (limit_s := self._limit_s()) is not None and now - self._since_s > limit_s:
            self._end_overdue(now)
        return before != (self.down, self.state)

    def handle(self, message: FromChild, now: float) -> None:
        """Handle a message of the GPU's process."""
        assert self.child is not None
        self.child.last_message_s = now
        if isinstance(message, Sampled):
            # Apply it even if the sample is discarded: the next one carries only differences, and an Xid is sent once.
            readings = self._counters.apply(message.sample.readings)
            if message.indexes is None:  # the first sample of a process
                self._resets.compare(self._readings, self._sampled_s, readings, message.sample.monotonic_s)
            self._readings = apply_delta(self._readings, readings, message.indexes)
            self._sampled_s = message.sample.monotonic_s
            self._hand_on_xids(message.sample.identity, message.sample.xids)
        elif isinstance(message, Failed) and self.identity is not None:
            self._hand_on_xids(self.identity, message.xids)
        if self._released_until is not None or self.state not in READING:
            return  # sent before the process noticed that it has to exit
        if isinstance(message, Opened):
            if self.identity is not None and self.identity.uuid != message.identity.uuid:
                self._counters, self._readings = MonotonicCounters(), ()  # another GPU is in its place
                self._resets.replaced()
            if message.driver_version and self._driver_version not in ("", message.driver_version):
                self._resets.add("exchanged", now)
            self.identity, self._driver_version = message.identity, message.driver_version or self._driver_version
            self._apply("opened", now)
        elif isinstance(message, Sampled):
            self._take(message, now)
        elif isinstance(message, Failed):
            self._fail(message.reason, message.text, now)
            self._apply("failed", now)

    def disconnected(self, now: float) -> None:
        """Handle the end of the connection to the GPU's process."""
        self._apply("disconnected", now)

    def exited(self, exit_reason: str, now: float) -> None:
        """Handle the exit of the GPU's process."""
        if self.state in (*READING, "disconnected"):
            self._fail("died", f"its process {exit_reason}", now)
        elif self.state == "stuck":
            assert self.down is not None
            self._set_down("hung", "its process was stuck in the driver until now", now, self.down.call)
        self.child = None
        self._apply("exited", now)

    def released(self, now: float) -> bool:
        """Return True while the GPU is released."""
        return self._released_until is not None and now < self._released_until

    def resume(self, now: float) -> None:
        """End a release early."""
        if self._released_until is not None:
            self._released_until = now

    def release(self, now: float, ttl_s: float) -> None:
        """Release the GPU for ``ttl_s``; the next ``step`` ends its process."""
        self._released_until = now + ttl_s
        self._failures = 0
        if self.state != "stuck":
            self._set_down("released", "released on request", now)

    def give_up_release(self, now: float) -> None:
        """Cancel a release that failed because this GPU's process or another one does not leave the driver."""
        self._released_until = None
        self._resets.cancel("released")
        self.try_again(now)
        if self.down is not None and self.down.reason == "released":
            if self.child is None:
                self._apply("resumed", now)
                self._set_down("starting", "not queried yet", now)
            else:
                self._set_down("stuck", f"its process (pid {self.child.pid}) does not exit on request", now)

    def try_again(self, now: float) -> None:
        """Retry now, after a change in the driver."""
        self._failures, self._retry_at = 0, now

    def start_afresh(self, now: float, driver_version: str) -> None:
        """End a process that does not use this version of the driver, the one that is loaded now, and retry now."""
        if driver_version and self._driver_version == driver_version and self.state == "sampling":
            return  # it failed with the old driver and was started anew before the survey saw the new one
        if not self._driver_version:
            self._resets.add("exchanged", now)
        self.try_again(now)
        if self.child is not None:
            if self.down is None:
                self._set_down("starting", "the driver was exchanged", now)
            self._apply("dismissed", now)

    def abandon(self, detail: str) -> None:
        """Mark the GPU as down for good, because no process can be started any more."""
        self.child, self.state, self._sample = None, "waiting", None
        # Bypass _set_down: the fleet logs this once for all GPUs.
        self.down = GpuDown("died", detail, self.down.since_s if self.down is not None else time.monotonic())

    def move_from(self, other: GpuSlot, now: float) -> None:
        """Take over the GPU of another slot, from whose place it was moved."""
        other.identity = None
        if other.was_sampled:  # else it may have been moved before the boot
            self._resets.add("moved", now)
        if other.down is not None and self.down is not None:
            self.down = msgspec.structs.replace(self.down, logged=self.down.logged or other.down.logged)
            other.down = msgspec.structs.replace(other.down, logged=False)

    def _apply(self, event: Event, now: float) -> None:
        """Enter the next state, with what belongs to it."""
        state = TRANSITIONS[event].get(self.state)
        if state is None:
            return
        self.state, self._since_s = state, now
        if state == "closing":
            assert self.child is not None
            self._children.hang_up(self.child, now)
        elif state == "killed":
            assert self.child is not None
            self._children.kill(self.child, now)

    def _step_without_process(self, now: float, absent: tuple[DownReason, str] | None) -> None:
        if self.released(now):
            self._apply("released", now)
            self._set_down("released", "released on request", now)
        elif absent is not None:
            self._released_until = None
            self._apply("absent", now)
            self._set_down(*absent, now)
        else:
            self._apply("present", now)
            if now >= self._retry_at or self._released_until is not None:
                self._released_until = None
                self._apply("resumed", now)
                self._start(now)

    def _start(self, now: float) -> None:
        try:
            self.child = self._children.spawn(
                lambda number: Spawn(number, self.pci_bus_id, self._collectors, self._interval_s), now
            )
        except OSError as error:
            self._fail("died", f"its process could not be started: {error.strerror}", now)
            return
        self._apply("started", now)
        if self.down is not None and self.down.reason in _NOT_TRIED:
            self._set_down("starting", "not queried yet", now)
        self._counters.new_process()
        self._starts += 1

    def _check(self, now: float) -> None:
        """Kill a process that hangs."""
        assert self.child is not None
        deadline_s = self._deadline_s()
        hang_reason = self.child.hang_reason(now, deadline_s=deadline_s, silence_s=self._silence_s(deadline_s))
        if hang_reason is not None:
            self._fail("hung", hang_reason, now, self._present_call())
            self._apply("hung", now)

    def _deadline_s(self) -> float:
        return self._timeouts.open_s if self.state == "opening" else self._timeouts.call_s

    def _silence_s(self, deadline_s: float) -> float:
        return deadline_s + STALE_AFTER_INTERVALS * self._interval_s

    def _limit_s(self) -> float | None:
        """Return the time that the process may be in this state; None if it is unlimited."""
        if self.state == "exiting":
            return self._silence_s(self._timeouts.call_s)
        return self._timeouts.end_s if self.state in LEAVING else self._timeouts.die_s if self.state == "killed" else None

    def _end_overdue(self, now: float) -> None:
        assert self.child is not None
        if self.state == "disconnected":
            self._fail("died", "its process closed its connection and did not exit", now)
        self._apply("overdue", now)
        if self.state == "stuck":
            call = self._present_call()
            place = f" in {call}" if call else ""
            self._set_down("stuck", f"its process (pid {self.child.pid}) was killed{place} and does not exit", now, call)

    def _take(self, message: Sampled, now: float) -> None:
        sample = message.sample
        self.identity, self._took_s = sample.identity, message.took_s
        self._sample = msgspec.structs.replace(sample, readings=self._readings)
        if now - self._since_s > 2 * self._delay_s():
            self._failures = 0
        if self.down is not None and self.down.logged:
            logger.info("GPU %s answers again", self.identity.uuid, extra={"pci_bus_id": self.pci_bus_id})
        self.down = None
        reset_s = self._resets.take(self._readings, self._since_s, sample.monotonic_s)
        if reset_s is not None:
            self._on_reset(self.identity, reset_s)

    def _hand_on_xids(self, identity: GpuIdentity, xids: tuple[XidEvent, ...]) -> None:
        for event in xids:
            self._on_xid(identity, event)

    def _detail(self, down: GpuDown) -> str:
        call = self._present_call() if down.reason == "starting" else ""
        return f"its process is in {call}" if call else down.detail

    def _present_call(self) -> str:
        return self.child.board.call() if self.child is not None and self.child.board.began_ns() else ""

    def _delay_s(self) -> float:
        pauses = self._timeouts.retry_s
        return pauses[min(max(self._failures, 1), len(pauses)) - 1]

    def _fail(self, reason: DownReason, detail: str, now: float, call: str = "") -> None:
        self._failures += 1
        self._retry_at = now + self._delay_s()
        self._resets.add(reason, now)
        self._set_down(reason, detail, now, call)

    def _set_down(self, reason: DownReason, detail: str, now: float, call: str = "") -> None:
        """Mark the GPU as down, keep the time since when, and log each reason once."""
        before = self.down
        if before is not None and (before.reason, before.detail) == (reason, detail):
            return
        since_s = before.since_s if before is not None else self._sample.monotonic_s if self._sample is not None else now
        is_news = reason != "starting" and (before is None or before.reason != reason)
        logged = is_news or (before is not None and before.logged)
        self.down, self._sample = GpuDown(reason, detail, since_s, call, logged), None
        self._resets.add(reason, now)
        if is_news:
            # The handler of the release request has logged it.
            level = logging.DEBUG if reason == "released" else logging.WARNING
            logger.log(level, "GPU %s is down (%s): %s", self.name, reason, detail, extra={"pci_bus_id": self.pci_bus_id})
