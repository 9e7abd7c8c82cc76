"""Slot of one GPU: its process, its last sample, why it is down, and when to retry."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from rankscope.exporter.fleet.changes import merged
from rankscope.exporter.fleet.children import Child, Children
from rankscope.exporter.fleet.counters import Continuity
from rankscope.exporter.fleet.patience import Patience
from rankscope.exporter.fleet.wire import Failed, FromChild, Opened, Sampled, Spawn
from rankscope.exporter.loop import STALE_AFTER_INTERVALS
from rankscope.exporter.source import DownReason, GpuIdentity, GpuSample, GpuState, Reading, XidEvent

logger = logging.getLogger(__name__)

_WITHOUT_PROCESS: Final = ("missing", "not_in_driver", "no_driver", "released")


class Down(msgspec.Struct, frozen=True):
    """Reason why a GPU is down, since when, and the NVML function that did not return (empty if none)."""

    reason: DownReason
    detail: str
    since_unix_s: float
    call: str = ""


class GpuSlot:
    """Slot of the GPU at one PCI address. ``absent`` is the survey's reason why the GPU cannot be queried; None if it can."""

    def __init__(
        self,
        pci_bus_id: str,
        children: Children,
        *,
        collectors: frozenset[str],
        interval_s: float,
        patience: Patience,
        on_xid: Callable[[GpuIdentity, XidEvent], None],
    ) -> None:
        self.pci_bus_id = pci_bus_id
        self.identity: GpuIdentity | None = None
        self.absent: tuple[DownReason, str] | None = None
        self.child: Child | None = None
        self.down: Down | None = None
        self.restarts = 0
        self.logged_down = False
        self.released_until: float | None = None
        self._children = children
        self._collectors = collectors
        self._interval_s = interval_s
        self._patience = patience
        self._on_xid = on_xid
        self._opened = False
        self._end_explained = False
        self._started_at = 0.0
        self._ever_started = False
        self._failures = 0
        self._retry_at = 0.0
        self._sample: GpuSample | None = None
        self._readings: tuple[Reading, ...] = ()
        self._took_s = 0.0
        self._counters = Continuity()
        self._set_down("starting", "not queried yet")

    @property
    def name(self) -> str:
        """The GPU's uuid if it is known, else its PCI bus id."""
        return self.identity.uuid if self.identity is not None else self.pci_bus_id

    @property
    def wedged(self) -> bool:
        """True if driver calls for this GPU do not return."""
        return self.down is not None and self.down.reason in ("hung", "stuck")

    @property
    def stuck(self) -> bool:
        """True if the GPU's process was killed and does not exit."""
        return self.down is not None and self.down.reason == "stuck"

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

    def state(self, now: float) -> GpuState | None:
        """Return the state to publish; None while the GPU's identity is unknown."""
        if self.identity is None:
            return None
        age_s = now - self._sample.monotonic_s if self._sample is not None else None
        if self.down is None and self.fresh(now):
            return GpuState(self.identity, up=True, sample=self._sample, age_s=age_s, restarts=self.restarts)
        down = self.down
        if down is None:
            assert self._sample is not None
            call = self._present_call()
            detail = f"no new sample; its process is in {call}" if call else "no new sample"
            down = Down("stale", detail, self._sample.unix_s, call)
        return GpuState(
            self.identity,
            up=False,
            age_s=age_s,
            reason=down.reason,
            detail=self._detail(down),
            call=down.call,
            since_unix_s=down.since_unix_s,
            restarts=self.restarts,
        )

    def step(self, now: float) -> bool:
        """Start, check or end the process as due; return True if the state changed. Raises ``NurseryLostError``."""
        before = (self.down, self.child)
        if self.child is not None:
            self._watch(self.child, now)
        elif self.released(now):
            self._set_down("released", "released on request")
        elif self.absent is not None:
            self.released_until = None
            self._set_down(*self.absent)
        elif now >= self._retry_at or self.released_until is not None:
            self.released_until = None
            self._start(now)
        return before != (self.down, self.child)

    def handle(self, message: FromChild, now: float) -> None:
        """Handle a message of the GPU's process."""
        assert self.child is not None
        self.child.heard_at = now
        if isinstance(message, Sampled):
            # Apply it even if the sample is discarded: the next one carries only differences, and an Xid is sent once.
            readings = self._counters.apply(message.sample.readings)
            self._readings = merged(self._readings, readings, message.places)
            self._hand_on_xids(message.sample.identity, message.sample.xids)
        elif isinstance(message, Failed) and self.identity is not None:
            self._hand_on_xids(self.identity, message.xids)
        if self.released_until is not None or self.child.killed_at is not None:
            return  # sent before the process noticed that it has to exit
        if isinstance(message, Opened):
            if self.identity is not None and self.identity.uuid != message.identity.uuid:
                self._counters = Continuity()  # another GPU is in its place
            self.identity, self._opened = message.identity, True
        elif isinstance(message, Sampled):
            self._take(message, now)
        elif isinstance(message, Failed):
            self._fail(message.reason, message.text, now)

    def _take(self, message: Sampled, now: float) -> None:
        sample = message.sample
        self.identity, self._took_s = sample.identity, message.took_s
        self._sample = msgspec.structs.replace(sample, readings=self._readings)
        if now - self._started_at > 2 * self._delay_s():
            self._failures = 0
        self.down = None
        if self.logged_down:
            logger.info("GPU %s answers again", self.identity.uuid, extra={"pci_bus_id": self.pci_bus_id})
            self.logged_down = False

    def _hand_on_xids(self, identity: GpuIdentity, xids: tuple[XidEvent, ...]) -> None:
        for event in xids:
            self._on_xid(identity, event)

    def ended(self, why: str, now: float) -> None:
        """Handle the exit of the GPU's process."""
        self.child = None
        if not self._end_explained:
            self._fail("died", f"its process {why}", now)
        elif self.stuck:
            assert self.down is not None
            self._set_down("hung", "its process was stuck in the driver until now", self.down.call)

    def released(self, now: float) -> bool:
        """Return True while the GPU is released."""
        return self.released_until is not None and now < self.released_until

    def resume(self, now: float) -> None:
        """End a release early."""
        if self.released_until is not None:
            self.released_until = now

    def release(self, until: float) -> None:
        """Release the GPU until the monotonic time ``until``; the next ``step`` ends its process."""
        self.released_until = until
        self._failures = 0
        if not self.stuck:
            self._set_down("released", "released on request")

    def give_up_release(self, now: float) -> None:
        """Cancel a release that failed because this GPU's process or another one does not leave the driver."""
        self.released_until = None
        self.try_again(now)
        if self.down is not None and self.down.reason == "released":
            if self.child is None:
                self._set_down("starting", "not queried yet")
            else:
                self._set_down("stuck", f"its process (pid {self.child.pid}) does not exit on request")

    def try_again(self, now: float) -> None:
        """Retry now, after a change in the driver."""
        self._failures, self._retry_at = 0, now

    def start_afresh(self, now: float) -> None:
        """End a process that holds the library of a replaced driver, and retry now."""
        self.try_again(now)
        if self.child is not None:
            if self.down is None:
                self._set_down("starting", "the driver was exchanged")
            self._end_explained = True
            self._children.hang_up(self.child, now)

    def abandon(self, why: str) -> None:
        """Mark the GPU as down for good, because no process can be started any more."""
        self.child, self._sample = None, None
        # Bypass _set_down: the fleet logs this once for all GPUs.
        self.down = Down("died", why, self.down.since_unix_s if self.down is not None else time.time())

    def _start(self, now: float) -> None:
        try:
            self.child = self._children.spawn(
                lambda number: Spawn(number, self.pci_bus_id, self._collectors, self._interval_s), now
            )
        except OSError as error:
            self._fail("died", f"its process could not be started: {error.strerror}", now)
            return
        if self.down is not None and self.down.reason in _WITHOUT_PROCESS:
            self._set_down("starting", "not queried yet")
        self._opened, self._end_explained, self._started_at = False, False, now
        self._counters.new_process()
        self.restarts += self._ever_started
        self._ever_started = True

    def _watch(self, child: Child, now: float) -> None:
        if child.killed_at is not None:
            if now - child.killed_at > self._patience.die_s and not self.stuck:
                call = self._present_call()
                place = f" in {call}" if call else ""
                self._set_down("stuck", f"its process (pid {child.pid}) was killed{place} and does not exit", call)
        elif child.hung_up_at is not None:
            if now - child.hung_up_at > self._patience.end_s:
                self._children.kill(child, now)
        elif self.released_until is not None:
            self._end_explained = True
            self._children.hang_up(child, now)
        else:
            deadline_s = self._patience.call_s if self._opened else self._patience.open_s
            silence_s = deadline_s + STALE_AFTER_INTERVALS * self._interval_s
            trouble = child.trouble(now, deadline_s=deadline_s, silence_s=silence_s)
            if trouble is not None:
                self._fail("hung", trouble, now, self._present_call())
                self._children.kill(child, now)

    def _detail(self, down: Down) -> str:
        call = self._present_call() if down.reason == "starting" else ""
        return f"its process is in {call}" if call else down.detail

    def _present_call(self) -> str:
        return self.child.board.call() if self.child is not None and self.child.board.began_ns() else ""

    def _delay_s(self) -> float:
        pauses = self._patience.retry_s
        return pauses[min(max(self._failures, 1), len(pauses)) - 1]

    def _fail(self, reason: DownReason, detail: str, now: float, call: str = "") -> None:
        self._end_explained = True
        self._failures += 1
        self._retry_at = now + self._delay_s()
        self._set_down(reason, detail, call)

    def _set_down(self, reason: DownReason, detail: str, call: str = "") -> None:
        """Mark the GPU as down, keep the time since when, and log each reason once."""
        before = self.down
        if before is not None and (before.reason, before.detail) == (reason, detail):
            return
        if before is not None:
            since_unix_s = before.since_unix_s
        else:
            since_unix_s = self._sample.unix_s if self._sample is not None else time.time()
        self.down, self._sample = Down(reason, detail, since_unix_s, call), None
        if reason == "starting" or (before is not None and before.reason == reason):
            return
        self.logged_down = True
        # The handler of the release request has logged it.
        level = logging.DEBUG if reason == "released" else logging.WARNING
        logger.log(level, "GPU %s is down (%s): %s", self.name, reason, detail, extra={"pci_bus_id": self.pci_bus_id})
