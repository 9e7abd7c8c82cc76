"""Entries that a rank writes into the ring for a step, compact and fast to write, and their conversion to records in the helper.

Entries are MessagePack arrays: no field names, no JSON and no division on the training thread. Both sides come from one
installation, so the order of the fields below is the format. Times are nanoseconds, per phase in the order of ``PHASES``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankscope.profiler.phases import UNSEEN
from rankscope.runs.records import PhaseTimes, StepRecord


class Memory(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Memory use at one moment; see the fields of ``StepRecord``. ``None``: not known, or there is no device."""

    resident_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    allocator_retries: int | None = None


class Usage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Scheduling of the training thread in the steps from ``since`` to the step of the entry that holds this."""

    since: int
    run_queue_ns: int | None
    voluntary_switches: int
    involuntary_switches: int


class StepEntry(msgspec.Struct, array_like=True):
    """One step. ``UNSEEN`` in ``phases_ns`` marks a phase that was not observed."""

    step: int
    start_unix_ns: int
    wall_ns: int
    phases_ns: list[int]
    blocked_ns: list[int] | None
    profiled: bool
    awaits_device: bool
    """True if a ``DeviceEntry`` of this step may follow."""
    cpu_ns: int
    gc_ns: int
    samples: int | None
    tokens: int | None
    input_elements: int | None
    flops: float | None
    memory: Memory | None
    sections_ns: dict[str, int]
    tags: list[str]
    usage: Usage | None = None
    """Read only if at least ``rank.meters.READ_EVERY_NS`` have passed since the last reading."""
    model_elements: int | None = None
    metrics: dict[str, float] = {}


class DeviceEntry(msgspec.Struct, array_like=True):
    """Device times of a step, which are known some steps later. Both ``None``: they will never be known."""

    step: int
    phases_ns: list[int] | None
    blocked_ns: list[int] | None


_encoder = msgspec.msgpack.Encoder()
_steps = msgspec.msgpack.Decoder(StepEntry)
_devices = msgspec.msgpack.Decoder(DeviceEntry)
_NO_MEMORY: Final = Memory()


def pack(entry: StepEntry | DeviceEntry) -> bytes:
    """Pack an entry. Runs on the training thread."""
    return _encoder.encode(entry)


def pack_within(room: int, entry: StepEntry) -> bytes:
    """Pack an entry, without the script's metrics where it would have more than ``room`` bytes."""
    payload = pack(entry)
    if len(payload) > room and entry.metrics:
        payload = pack(msgspec.structs.replace(entry, metrics={}))
    return payload


def unpack_step(payload: bytes) -> StepEntry:
    """Unpack the entry of a step, in the helper. Raises ``msgspec.DecodeError``."""
    return _steps.decode(payload)


def unpack_device(payload: bytes) -> DeviceEntry:
    """Unpack the device times of a step, in the helper. Raises ``msgspec.DecodeError``."""
    return _devices.decode(payload)


def to_record(entry: StepEntry, device: DeviceEntry | None = None, usage: Usage | None = None) -> StepRecord:
    """Return the record of a step, with its device times and its own part of the thread's ``usage`` where they are known."""
    memory = entry.memory or _NO_MEMORY
    return StepRecord(
        step=entry.step,
        start_unix_ns=entry.start_unix_ns,
        wall_us=entry.wall_ns / 1000,
        phases_us=_phases(entry.phases_ns),
        blocked_us=_blocked(entry.blocked_ns, entry.phases_ns),
        cpu_us=entry.cpu_ns / 1000,
        run_queue_us=None if usage is None or usage.run_queue_ns is None else usage.run_queue_ns / 1000,
        voluntary_switches=None if usage is None else usage.voluntary_switches,
        involuntary_switches=None if usage is None else usage.involuntary_switches,
        gc_us=entry.gc_ns / 1000,
        samples=entry.samples,
        tokens=entry.tokens,
        input_elements=entry.input_elements,
        model_elements=entry.model_elements,
        flops=entry.flops,
        device_us=None if device is None or device.phases_ns is None else _phases(device.phases_ns),
        device_blocked_us=None if device is None or device.phases_ns is None else _blocked(device.blocked_ns, device.phases_ns),
        sections_us={name: time / 1000 for name, time in entry.sections_ns.items()} if entry.sections_ns else {},
        allocated_bytes=memory.allocated_bytes,
        reserved_bytes=memory.reserved_bytes,
        peak_allocated_bytes=memory.peak_allocated_bytes,
        allocator_retries=memory.allocator_retries,
        resident_bytes=memory.resident_bytes,
        profiled=entry.profiled,
        tags=entry.tags,
        metrics=entry.metrics,
    )


def _phases(times: list[int]) -> PhaseTimes:
    return _times([None if time == UNSEEN else time / 1000 for time in times])


def _blocked(blocked: list[int] | None, times: list[int]) -> PhaseTimes | None:
    """Return the blocked time of each observed phase: zero without waiting, and never longer than the phase itself."""
    if blocked is None:
        return None
    if not any(blocked):
        return _times([None if time == UNSEEN else 0.0 for time in times])
    pairs = zip(blocked, times, strict=True)
    return _times([None if time == UNSEEN else max(min(wait, time), 0) / 1000 for wait, time in pairs])


def _times(values: list[float | None]) -> PhaseTimes:
    # Explicit keywords instead of a dictionary, because this runs at every step of every rank.
    data, h2d, forward, backward, optimizer, between_steps = values
    return PhaseTimes(data=data, h2d=h2d, forward=forward, backward=backward, optimizer=optimizer, between_steps=between_steps)
