"""All GPUs of the node: a thread that starts, watches, kills and replaces the processes that query them."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankscope.exporter.fleet.children import Child, Children
from rankscope.exporter.fleet.gpu_slot import GpuSlot
from rankscope.exporter.fleet.inventory import Inventory
from rankscope.exporter.fleet.nursery import Nursery, NurseryLostError
from rankscope.exporter.fleet.pci import SYSFS_PCI, bus_id
from rankscope.exporter.fleet.survey import DriverNews, GpuSurvey
from rankscope.exporter.fleet.timeouts import FleetTimeouts
from rankscope.exporter.fleet.wire import Failed, FromChild, Hello, Opened
from rankscope.exporter.source import FleetState, GpuIdentity, XidEvent

logger = logging.getLogger(__name__)

EXIT_STALE_DRIVER: Final = 5
"""Exit status: the driver's library that this process sees no longer matches the loaded driver; only a restart helps."""
EXIT_FLEET_LOST: Final = 6
"""Exit status: the nursery died, and a process with threads cannot safely fork another one; only a restart helps."""

_LONGEST_TICK_S: Final = 0.5
_GATHER_S: Final = 0.01
_RELEASE_S: Final = 3.0
_STOP_S: Final = 0.5
_ABOUT_THE_NODE: Final = ("no_driver", "library_mismatch", "missing")


class NvmlFleet:
    """``source.Fleet`` that queries each GPU through NVML in a process of its own.

    The callbacks run in the fleet's thread and must return quickly.

    Args:
        nursery: started before the daemon imported or started anything else.
        collectors: names of the catalogue's enabled collectors; the GPUs' processes run those that query GPUs.
        interval_s: seconds between two samples of a GPU.
        inventory: the GPUs seen before.
        expected_gpus: number of GPUs the operator expects (``--expected-gpus``).
        on_xid: called once with each Xid.
        on_reset: called when a GPU answers again after a reset (a release, a reload of the driver, a loss), with the monotonic
            time of the reset.
        on_fatal: called once with an exit status and a reason, if only a restart of the exporter can help.
        exit_when_stale: call ``on_fatal`` when the loaded driver no longer matches its library and no GPU answers.
    """

    simulated = False

    def __init__(
        self,
        nursery: Nursery,
        *,
        collectors: frozenset[str],
        interval_s: float,
        inventory: Inventory,
        expected_gpus: int | None = None,
        on_fatal: Callable[[int, str], None] = lambda _status, _reason: None,
        on_xid: Callable[[GpuIdentity, XidEvent], None] = lambda _gpu, _event: None,
        on_reset: Callable[[GpuIdentity, float], None] = lambda _gpu, _monotonic_s: None,
        exit_when_stale: bool = True,
        pci_root: Path = SYSFS_PCI,
        timeouts: FleetTimeouts | None = None,
    ) -> None:
        self._nursery = nursery
        self._collectors = collectors
        self._interval_s = interval_s
        self._inventory = inventory
        self._expected_gpus = expected_gpus
        self._on_fatal = on_fatal
        self._on_xid = on_xid
        self._on_reset = on_reset
        self._exit_when_stale = exit_when_stale
        self._timeouts = timeouts or FleetTimeouts()
        self._selector = selectors.DefaultSelector()
        self._children = Children(nursery, self._selector)
        self._survey = GpuSurvey(self._children, pci_root=pci_root, timeouts=self._timeouts)
        self._slots: dict[str, GpuSlot] = {}
        self._changed = threading.Condition()
        self._fatal: str | None = None
        self._inventory_updated_s = time.monotonic()
        self._stopping = False
        self._step_at = 0.0
        self._surveyed = False
        self._gpu_count = self._expected_gpus
        self._unanswered_since: float | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        for identity in inventory.identities():
            self._slot(identity.pci_bus_id).remember(identity, inventory.meter(identity.uuid))

    def start(self) -> None:
        """Start the fleet's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End all processes, within two seconds. Those stuck in the driver are left behind."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        self._nursery.close()
        os.close(self._wake)
        self._read_meters()
        self._inventory.close(_STOP_S)

    def wait_for_first_pass(self, timeout_s: float) -> bool:
        """Wait until every GPU has answered or failed once; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(self._first_pass_done, timeout_s)

    def state(self) -> FleetState:
        """Return the state of all GPUs now."""
        now = time.monotonic()
        with self._changed:
            published = [(slot, state) for slot in self._slots.values() if (state := slot.published(now)) is not None]
            gpus = tuple(sorted((state for _, state in published), key=lambda state: (state.identity.index, state.identity.uuid)))
            return FleetState(
                gpus,
                driver=self._survey.driver,
                driver_answers=self._survey.answers,
                driver_problem=self._survey.problem if self._survey.done else None,
                driver_problem_reason=self._survey.problem_reason,
                unidentified_gpus=tuple(
                    unidentified for slot in self._slots.values() if (unidentified := slot.unidentified()) is not None
                ),
                inventory_durable=self._inventory.durable,
                counts=self._counts(),
                unidentified=self._unidentified(len(self._slots) - len(published)),
                stuck=self._survey.stuck(now) + sum(slot.state == "stuck" for slot in self._slots.values()),
                nvswitches=self._survey.nvswitches,
                problem=self._fatal or (None if any(state.up for _, state in published) else self._survey.problem),
            )

    def release(self, gpu: str, *, ttl_s: float) -> None:
        """See ``source.Fleet``. Waits up to three seconds for the processes to exit."""
        with self._changed:
            slots = self._find(gpu)
            for slot in slots:
                slot.release(time.monotonic(), ttl_s)
            self._changed.notify_all()
            os.eventfd_write(self._wake, 1)
            if self._changed.wait_for(
                lambda: (not self._survey.is_probing and all(slot.child is None for slot in slots)) or self._fatal is not None,
                _RELEASE_S,
            ):
                return
            alive = [slot.name for slot in slots if slot.child is not None]
            for slot in slots:
                slot.give_up_release(time.monotonic())
            self._changed.notify_all()
            raise TimeoutError(
                f"{', '.join(alive) or 'the driver as a whole'}: a process is stuck in the driver and does not die"
            )

    def resume(self, gpu: str) -> None:
        """See ``source.Fleet``."""
        with self._changed:
            for slot in self._find(gpu):
                slot.resume(time.monotonic())
            os.eventfd_write(self._wake, 1)

    def _find(self, gpu: str) -> list[GpuSlot]:
        # A missing GPU keeps its old index, which another GPU may have now: prefer GPUs that are up.
        slots = sorted(self._slots.values(), key=lambda slot: slot.down is not None)
        if gpu == "all":
            return slots
        for slot in slots:
            identity = slot.identity
            if slot.pci_bus_id == bus_id(gpu) or (identity is not None and gpu in (identity.uuid, str(identity.index))):
                return [slot]
        raise KeyError(gpu)

    def _first_pass_done(self) -> bool:
        if self._fatal is not None:
            return True
        return self._surveyed and not any(
            slot.down is not None and slot.down.reason == "starting" for slot in self._slots.values()
        )

    def _counts(self) -> dict[str, int]:
        counts = {
            "driver": self._survey.count,
            "pci": self._survey.pci_count,
            "remembered": len(self._inventory),
            "expected": self._expected_gpus,
        }
        return {source: count for source, count in counts.items() if count is not None}

    def _unidentified(self, without_identity: int) -> int:
        shown = self._survey.bus_ids
        known_but_not_shown = sum(slot.identity is not None and slot.pci_bus_id not in shown for slot in self._slots.values())
        return without_identity + max(0, self._survey.without_bus_id - known_but_not_shown)

    # All methods below run in the fleet's thread.

    def _run(self) -> None:
        self._selector.register(self._nursery, selectors.EVENT_READ, self._nursery)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        deadlines = (
            self._timeouts.call_s,
            self._timeouts.open_s,
            self._timeouts.die_s,
            self._timeouts.end_s,
            *self._timeouts.retry_s,
        )
        tick_s = min(_LONGEST_TICK_S, *(seconds / 2 for seconds in deadlines))
        try:
            while not self._stopping:
                ready = self._selector.select(max(0.0, self._step_at - time.monotonic()))
                if any(isinstance(key.data, Child) for key, _ in ready):
                    # All GPUs are sampled at the same moment: wait briefly to handle their messages in one batch.
                    time.sleep(_GATHER_S)
                    ready = self._selector.select(0)
                for key, _ in ready:
                    self._handle_event(key.data)
                now = time.monotonic()
                if now >= self._step_at - (tick_s / 4 if ready else 0):  # saves a wake-up
                    self._step_at = now + tick_s
                    self._step(now)
        except NurseryLostError:
            self._give_up("the process spawner died; restart the exporter")
        except Exception:
            logger.exception("a defect in the fleet's thread")
            self._give_up("the fleet's thread ended by a defect, which is in the log; restart the exporter")
        with self._changed:
            self._children.abandon(time.monotonic())
        self._selector.close()

    def _handle_event(self, source: Nursery | Child | None) -> None:
        now = time.monotonic()
        if source is None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            self._step_at = now
        elif isinstance(source, Nursery):
            for message in source.receive():
                assert not isinstance(message, Hello)  # sent once; Nursery.start has received it
                with self._changed:
                    exited = self._children.handle(message, now)
                    if exited is not None:
                        child, unread = exited
                        for unread_message in unread:
                            self._handle(child, unread_message, now)
                        self._ended(child, now)
        else:
            messages = source.read()  # decoded before the lock is taken
            with self._changed:
                if messages is None:
                    self._children.hang_up(source, now)
                    slot = self._slot_of(source)
                    if slot is not None:
                        slot.disconnected(now)
                    return
                for child_message in messages:
                    self._handle(source, child_message, now)

    def _handle(self, child: Child, message: FromChild, now: float) -> None:
        slot = self._slot_of(child)
        if slot is None:
            self._apply(self._survey.handle(child, message, now), now)
            self._step_at = now
        else:
            before = slot.identity
            slot.handle(message, now)
            if slot.identity is not None and (slot.identity != before or isinstance(message, Opened)):
                self._add_identity(slot, slot.identity, now)
            if isinstance(message, Failed) and message.reason in _ABOUT_THE_NODE:
                self._survey.probe_soon(now)
        self._changed.notify_all()

    def _ended(self, child: Child, now: float) -> None:
        slot = self._slot_of(child)
        exit_reason = child.exit_reason or ""
        if slot is None:
            self._survey.ended(child, exit_reason, now)
        else:
            slot.exited(exit_reason, now)
        self._step_at = now
        self._changed.notify_all()

    def _step(self, now: float) -> None:
        self._nursery.flush()
        with self._changed:
            wedged = frozenset(slot.identity.index for slot in self._slots.values() if slot.wedged and slot.identity is not None)
            released = any(slot.released(now) for slot in self._slots.values())
            changed = self._survey.step(now, skip=wedged, paused=released)
            shown = self._survey.bus_ids
            for shown_id in shown:
                self._slot(shown_id)
            for slot in tuple(self._slots.values()):
                changed = slot.step(now, self._survey.absent(slot.pci_bus_id)) or changed
                if slot.child is None and slot.identity is None and slot.pci_bus_id not in shown:
                    del self._slots[slot.pci_bus_id]
            if now - self._inventory_updated_s >= self._timeouts.survey_s or self._inventory.changed():
                self._update_inventory(now, shown)
            self._inventory.save()
            self._compare_with_expected()
            if self._survey.done and not self._surveyed:
                self._surveyed = changed = True
            if changed:
                self._changed.notify_all()
            # A new exporter could not open GPUs that still answer here, and would open released ones: end only without both.
            if self._survey.stale_since is None or released or any(slot.fresh(now) for slot in self._slots.values()):
                self._unanswered_since = None
            elif self._unanswered_since is None:
                self._unanswered_since = now
            since = self._unanswered_since
        if self._exit_when_stale and since is not None and now - since >= self._timeouts.stale_driver_s:
            self._exit_when_stale = False
            self._on_fatal(EXIT_STALE_DRIVER, f"{self._survey.problem}, and no GPU answers any more")

    def _compare_with_expected(self) -> None:
        """Log each change of the number of GPUs against ``expected_gpus``."""
        counts = self._counts()
        count = counts.get("driver", counts.get("pci"))
        if self._expected_gpus is None or not self._survey.done or count is None or count == self._gpu_count:
            return
        self._gpu_count = count
        if count != self._expected_gpus:
            logger.warning("the node shows %d GPUs instead of the %d of --expected-gpus", count, self._expected_gpus)
        else:
            logger.info("the node shows %d GPUs again, as expected", count)

    def _update_inventory(self, now: float, shown: frozenset[str]) -> None:
        """Drop the identity of GPUs that the inventory forgot, by age or by command. GPUs the node still shows are kept."""
        present = frozenset(
            slot.identity.uuid
            for slot in self._slots.values()
            if slot.identity is not None
            # What the node shows may be older than the driver's answer that the GPU is gone.
            and (slot.down is None or (slot.pci_bus_id in shown and slot.down.reason != "missing"))
        )
        self._inventory.pass_time(now - self._inventory_updated_s, present)
        self._inventory.take_over_changes(present)
        self._read_meters()
        self._inventory_updated_s = now
        uuids = {identity.uuid for identity in self._inventory.identities()}
        for slot in self._slots.values():
            if slot.identity is not None and slot.identity.uuid not in uuids:
                slot.identity = None

    def _read_meters(self) -> None:
        slots = [slot for slot in self._slots.values() if slot.identity is not None and slot.energy_j]
        self._inventory.read_meters({slot.identity.uuid: slot.energy_j for slot in slots if slot.identity is not None})

    def _apply(self, news: DriverNews | None, now: float) -> None:
        driver = self._survey.driver
        for slot in self._slots.values():
            if news == "exchanged" and driver is not None:
                slot.start_afresh(now, driver.driver_version)
            elif news == "returned":
                slot.try_again(now)

    def _add_identity(self, slot: GpuSlot, identity: GpuIdentity, now: float) -> None:
        self._inventory.see(identity)
        for other in self._slots.values():
            if other is not slot and other.identity is not None and other.identity.uuid == identity.uuid:
                slot.move_from(other, now)

    def _slot(self, pci_bus_id: str) -> GpuSlot:
        slot = self._slots.get(pci_bus_id)
        if slot is None:
            slot = self._slots[pci_bus_id] = GpuSlot(
                pci_bus_id,
                self._children,
                collectors=self._collectors,
                interval_s=self._interval_s,
                timeouts=self._timeouts,
                on_xid=self._on_xid,
                on_reset=self._on_reset,
            )
        return slot

    def _slot_of(self, child: Child) -> GpuSlot | None:
        return next((slot for slot in self._slots.values() if slot.child is child), None)

    def _give_up(self, reason: str) -> None:
        with self._changed:
            self._fatal = reason
            for slot in self._slots.values():
                slot.abandon(reason)
            self._changed.notify_all()
        self._on_fatal(EXIT_FLEET_LOST, reason)
