"""GPU events during a run (throttling, errors, links), found in the GPUs' samples one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.runs.records import HardwareSample

MOST_EVENTS: Final = 2_000
"""Most events of a run; more cannot be reviewed by a person. Omitted events are counted."""

THROTTLES: Final = {
    "hw_thermal": "held down by heat (hardware)",
    "sw_thermal": "held down by heat (driver)",
    "hw_power_brake": "held down by the host's power supply",
    "hw_slowdown": "slowed down by the hardware",
    "sw_power_cap": "held down by its power limit",
    "sync_boost": "held down by another GPU of its group",
    "applications_clocks": "held to the clocks that were set for applications",
    "display_clocks": "held to the clocks of a display",
}
"""Reasons for a lowered clock, those that matter most first. That a GPU is idle is none."""

COUNTED: Final = {
    "xid_errors": ("xid", "Xid errors, not of programs"),
    "ecc_uncorrected_errors": ("ecc", "uncorrected ECC errors"),
    "nvlink_errors": ("nvlink", "NVLink errors"),
    "pcie_replays": ("pcie_link", "PCIe transfers repeated"),
}
"""Counter to the kind of event that its increase means, and the text for the counted errors."""

LINKS: Final = ("pcie_link_width", "pcie_link_generation", "nvlinks_down")
"""Link fields of ``HardwareSample``."""

KINDS: Final = ("xid", "ecc", "nvlink", "pcie_link", *THROTTLES, "clock_drop")
"""Kinds of events, most important first; if there are too many events, the last kinds are left out."""

_IDLE: Final = 0.1
"""Utilization below which a GPU lowers clock and link to save power, which is no event."""

_DROP: Final = 0.85
"""Fraction of the GPU's usual busy clock below which a clock counts as dropped."""

_USUAL_AFTER: Final = 5
"""Busy samples needed before the usual clock counts as known."""

_MOST_OF_A_KIND: Final = 200
"""Most events of one kind per GPU: a reason that flips with every sample must not displace all other events."""


class HardwareEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of one GPU, from the first sample that shows it to the last."""

    unix_ns: int
    until_unix_ns: int
    """Equal to ``unix_ns`` if only one sample shows the event."""
    host: str
    gpu_uuid: str
    kind: str
    """One of ``KINDS``."""
    detail: str
    """Text for the user."""
    rank: int | None = None
    """First rank that trains on the GPU; ``None``: not known."""
    step: int | None = None
    """Step that the first rank of the host was in or had just finished; ``None``: no step yet, or no rank on the host."""
    until_step: int | None = None
    simulated: bool = False


class HardwareEvents(msgspec.Struct, frozen=True):
    """Events of a run in order of time."""

    events: list[HardwareEvent] = []
    left_out: int = 0
    """Number of events that are not in the list."""
    why_none: str | None = None
    """Reason why events cannot be known; ``None``: there are samples, so an empty list means no events."""


def is_idle(sample: HardwareSample) -> bool:
    """Return whether the GPU is idle, so that it may lower clock and link to save power."""
    unused = sample.utilization_ratio is not None and sample.utilization_ratio < _IDLE
    return unused or "gpu_idle" in (sample.throttle_reasons or ())


@dataclass(slots=True)
class _OpenEvent:
    """An event that may continue."""

    since: int
    until: int
    detail: str
    count: float = 0


@dataclass(slots=True)
class EventFinder:
    """Finder of events in the samples of one GPU, which it takes in order of time."""

    host: str
    gpu_uuid: str
    simulated: bool = False
    _open: dict[str, _OpenEvent] = field(default_factory=dict)
    """Open events by subject: a throttle reason, a counter, a link, or the clock."""
    _done: dict[str, list[HardwareEvent]] = field(default_factory=dict)
    _counters: dict[str, int] = field(default_factory=dict)
    _most: dict[str, int] = field(default_factory=dict)
    _clock: float = 0.0
    _busy: int = 0
    left_out: int = 0
    rises: dict[str, int] = field(default_factory=dict)
    """Total increase per reported counter."""

    def add(self, sample: HardwareSample) -> None:
        """Add a sample that has values."""
        self.simulated = self.simulated or sample.simulated
        now = sample.unix_ns
        if (active := sample.throttle_reasons) is not None:
            for reason, description in THROTTLES.items():
                self._note(reason, now, description if reason in active else None)
        for counter in COUNTED:
            self._count(counter, sample)
        if not is_idle(sample):
            self._link("pcie_link_width", "PCIe link at {} lanes, it had {}", sample)
            self._link("pcie_link_generation", "PCIe link at generation {}, it had {}", sample)
            self._drop(sample)
        if sample.nvlinks_down is not None:
            self._note("nvlinks_down", now, f"{sample.nvlinks_down} NVLinks down" if sample.nvlinks_down else None)

    def events_so_far(self) -> list[HardwareEvent]:
        """Return the events so far, including those that may continue."""
        going_on = (self._event(signal, open_event) for signal, open_event in self._open.items() if _is_one(signal, open_event))
        return [*chain.from_iterable(self._done.values()), *going_on]

    def _note(self, signal: str, now: int, description: str | None) -> None:
        """Open, extend or close the event ``what``. ``description``: how a sample shows it; ``None``: it does not."""
        open_event = self._open.get(signal)
        if description is not None and open_event is None:
            self._open[signal] = _OpenEvent(now, now, description)
        elif description is not None and open_event is not None:
            open_event.until, open_event.detail = now, description
        elif open_event is not None:
            self._close(signal)

    def _count(self, counter: str, sample: HardwareSample) -> None:
        value: int | None = getattr(sample, counter)
        if value is None:
            return
        if counter == "xid_errors":
            value -= sample.xid_errors_of_programs or 0
        before = self._counters.get(counter)
        self._counters[counter] = value
        # A counter that fell was reset and counts from zero.
        rise = 0 if before is None else value - before if value >= before else value
        self.rises[counter] = self.rises.get(counter, 0) + rise
        if rise <= 0:
            if counter in self._open:
                self._close(counter)
            return
        open_event = self._open.setdefault(counter, _OpenEvent(sample.unix_ns, sample.unix_ns, ""))
        open_event.until, open_event.count = sample.unix_ns, open_event.count + rise
        open_event.detail = f"{COUNTED[counter][1]}: {open_event.count:,.0f}"

    def _link(self, name: str, template: str, sample: HardwareSample) -> None:
        value: int | None = getattr(sample, name)
        if value is None:
            return
        most = self._most[name] = max(self._most.get(name, 0), value)
        self._note(name, sample.unix_ns, template.format(value, most) if value < most else None)

    def _drop(self, sample: HardwareSample) -> None:
        """Note a clock drop: two low samples in a row. The usual clock is averaged over the samples that are not low."""
        clock = sample.sm_clock_hertz
        if clock is None:
            return
        if self._busy >= _USUAL_AFTER and clock < _DROP * self._clock:
            description = f"SM clock {clock / 1e6:,.0f} MHz, usual while busy are {self._clock / 1e6:,.0f}"
            self._note("clock", sample.unix_ns, description)
            return
        self._busy += 1
        self._clock += (clock - self._clock) / min(self._busy, 100)
        if "clock" in self._open:
            self._close("clock")

    def _close(self, signal: str) -> None:
        open_event, closed = self._open.pop(signal), self._done.setdefault(signal, [])
        if _is_one(signal, open_event):
            if len(closed) < _MOST_OF_A_KIND:
                closed.append(self._event(signal, open_event))
            else:
                self.left_out += 1

    def _event(self, signal: str, open_event: _OpenEvent) -> HardwareEvent:
        return HardwareEvent(
            unix_ns=open_event.since,
            until_unix_ns=open_event.until,
            host=self.host,
            gpu_uuid=self.gpu_uuid,
            kind=_KIND_OF.get(signal, signal),
            detail=open_event.detail,
            simulated=self.simulated,
        )


def _is_one(signal: str, open_event: _OpenEvent) -> bool:
    """Return whether this is an event: a single sample with a low clock is none."""
    return signal != "clock" or open_event.until > open_event.since


_KIND_OF: Final = {
    **{counter: kind for counter, (kind, _) in COUNTED.items()},
    "pcie_link_width": "pcie_link",
    "pcie_link_generation": "pcie_link",
    "nvlinks_down": "nvlink",
    "clock": "clock_drop",
}


def most_important(all_events: Iterable[HardwareEvent], left_out: int, most: int = MOST_EVENTS) -> HardwareEvents:
    """Return at most ``most`` events in order of time, chosen by importance of kind, then by duration."""
    events = sorted(
        all_events,
        key=lambda event: (KINDS.index(event.kind), event.unix_ns - event.until_unix_ns, event.unix_ns, event.gpu_uuid),
    )
    chosen_events = sorted(events[:most], key=lambda event: (event.unix_ns, event.gpu_uuid, event.kind))
    return HardwareEvents(chosen_events, left_out + len(events) - len(chosen_events))


@dataclass(frozen=True, slots=True)
class StepClock:
    """Start times of a rank's steps, by the clock of its host."""

    steps: NDArray[np.int64]
    starts_ns: NDArray[np.int64]
    """[steps], 0 where there is no record."""

    def step_at(self, unix_ns: int) -> int | None:
        """Return the last step that had begun by ``unix_ns``, ``None`` before the first."""
        begun = (self.starts_ns > 0) & (self.starts_ns <= unix_ns)
        return int(self.steps[int(np.argmax(np.where(begun, self.starts_ns, 0)))]) if begun.any() else None


def on_steps(events: HardwareEvents, clocks: Mapping[str, StepClock]) -> HardwareEvents:
    """Return the events with their steps. ``clocks``: host to the step clock of one of its ranks."""
    return msgspec.structs.replace(events, events=[_on_steps(event, clocks.get(event.host)) for event in events.events])


def _on_steps(event: HardwareEvent, clock: StepClock | None) -> HardwareEvent:
    if clock is None:
        return event
    step, until_step = clock.step_at(event.unix_ns), clock.step_at(event.until_unix_ns)
    return msgspec.structs.replace(event, step=step, until_step=until_step)
