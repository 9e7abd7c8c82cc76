"""Messages between the processes of the exporter: MessagePack over Unix socket pairs.

Between daemon and nursery, one datagram is one message. A worker or probe sends frames to the daemon: four bytes of length
(big-endian), then the message. Readings are delta-encoded: all in a worker's first message, then only the changed ones.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import msgspec

from rankscope.exporter.source import DownReason, Driver, GpuIdentity, GpuSample, Reading, XidEvent

LONGEST_FRAME: Final = 16 * 2**20
_LENGTH_BYTES: Final = 4


class Spawn(msgspec.Struct, tag=True, frozen=True):
    """To the nursery, with two descriptors (the child's socket, its call board): start a child that queries one GPU."""

    child: int
    pci_bus_id: str
    collectors: frozenset[str]
    interval_s: float


class SpawnProbe(msgspec.Struct, tag=True, frozen=True):
    """To the nursery, with two descriptors: start a child that reads the driver's versions and GPU count.

    It lists the GPUs unless their count is ``list_unless``, except the indexes ``skip``, at which the driver hung before.
    """

    child: int
    list_unless: int
    skip: tuple[int, ...] = ()


class Kill(msgspec.Struct, tag=True, frozen=True):
    """To the nursery: send SIGKILL to a child."""

    child: int


class Hello(msgspec.Struct, tag=True, frozen=True):
    """From the nursery: it is ready, or ``error`` describes why it cannot start."""

    error: str | None


class Started(msgspec.Struct, tag=True, frozen=True):
    """From the nursery: a child was started."""

    child: int
    pid: int


class Exited(msgspec.Struct, tag=True, frozen=True):
    """From the nursery: a child exited. ``reason`` describes its exit status, its signal, or why it could not be started."""

    child: int
    reason: str


class Opened(msgspec.Struct, tag=True, frozen=True):
    """From a worker: the GPU is open, with this version of the driver; empty if unknown."""

    identity: GpuIdentity
    driver_version: str = ""


class Sampled(msgspec.Struct, tag=True, frozen=True):
    """From a worker: a sample, and the duration of the pass.

    Its readings replace those at the indexes ``indexes`` of the previous sample. If ``indexes`` is None, they are complete.
    """

    sample: GpuSample
    took_s: float
    indexes: list[int] | None = None


class Failed(msgspec.Struct, tag=True, frozen=True):
    """From a worker or probe, as its last message: why it exits.

    ``code`` is NVML's return code, from a probe only. ``xids`` are events that no sample carried.
    """

    reason: DownReason
    text: str
    code: int | None = None
    xids: tuple[XidEvent, ...] = ()


class DriverFound(msgspec.Struct, tag=True, frozen=True):
    """From a probe: the driver answers and counts ``count`` GPUs."""

    driver: Driver
    count: int


class Listed(msgspec.Struct, tag=True, frozen=True):
    """From a probe: the GPU at this index. ``pci_bus_id`` is empty if NVML returned an error for it."""

    index: int
    pci_bus_id: str


class Done(msgspec.Struct, tag=True, frozen=True):
    """From a probe: it has finished."""


ToNursery = Spawn | SpawnProbe | Kill
FromNursery = Hello | Started | Exited
FromChild = Opened | Sampled | Failed | DriverFound | Listed | Done

encode: Final = msgspec.msgpack.Encoder().encode
decode_to_nursery: Final = msgspec.msgpack.Decoder(ToNursery).decode
decode_from_nursery: Final = msgspec.msgpack.Decoder(FromNursery).decode
_decode_from_child: Final = msgspec.msgpack.Decoder(FromChild).decode


def send_frame(connection: socket.socket, message: Any) -> None:
    """Send one frame; blocks until the reader takes it."""
    body = encode(message)
    connection.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


class FrameReader:
    """Decoder of frames from a byte stream."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> list[FromChild]:
        """Add received bytes and return the messages that are complete now.

        Raises:
            ValueError: a frame is longer than ``LONGEST_FRAME``, or (``msgspec.MsgspecError``) a message is invalid.
        """
        self._pending += chunk
        messages: list[FromChild] = []
        while len(self._pending) >= _LENGTH_BYTES:
            length = int.from_bytes(self._pending[:_LENGTH_BYTES], "big")
            if length > LONGEST_FRAME:
                raise ValueError(f"a message of {length} bytes")
            end = _LENGTH_BYTES + length
            if len(self._pending) < end:
                break
            messages.append(_decode_from_child(memoryview(self._pending)[_LENGTH_BYTES:end]))
            del self._pending[:end]
        return messages


class DeltaEncoder:
    """Encoder on the sending side."""

    def __init__(self) -> None:
        self._sent: tuple[Reading, ...] | None = None

    def encode(self, sample: GpuSample, took_s: float) -> Sampled:
        """Return the message to send for this sample. The first one carries all readings, even if there are none."""
        before, readings = self._sent, sample.readings
        self._sent = readings
        if before is None or len(before) != len(readings):
            return Sampled(sample, took_s)
        indexes = [index for index, reading in enumerate(readings) if reading is not before[index] and reading != before[index]]
        return Sampled(msgspec.structs.replace(sample, readings=tuple(readings[index] for index in indexes)), took_s, indexes)


def apply_delta(before: tuple[Reading, ...], changed: tuple[Reading, ...], indexes: list[int] | None) -> tuple[Reading, ...]:
    """Decode on the receiving side: return all readings. Unchanged readings are the same objects as in ``before``."""
    if indexes is None:
        return changed
    readings = list(before)
    for index, reading in zip(indexes, changed, strict=True):
        readings[index] = reading
    return tuple(readings)
