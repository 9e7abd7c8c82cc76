"""What the processes of the exporter say to each other, and how: MessagePack over Unix sockets that only they hold.

Between daemon and nursery, one datagram is one message. From a worker or probe to the daemon, frames: four bytes of length, then
the message.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import msgspec

from rankscope.exporter.source import DownReason, Driver, GpuIdentity, GpuSample, XidEvent

LONGEST_FRAME: Final = 16 * 2**20
_LENGTH_BYTES: Final = 4


class Spawn(msgspec.Struct, tag=True, frozen=True):
    """To the nursery, with two descriptors (its socket, its call board): start a child that asks one GPU."""

    child: int
    pci_bus_id: str
    collectors: frozenset[str]
    interval_s: float


class SpawnProbe(msgspec.Struct, tag=True, frozen=True):
    """To the nursery, with two descriptors: start a child that asks for versions and count.

    It lists the GPUs unless their count is ``list_unless``, and leaves the indexes ``skip`` alone: asking for them hung.
    """

    child: int
    list_unless: int
    skip: tuple[int, ...] = ()


class Kill(msgspec.Struct, tag=True, frozen=True):
    """To the nursery: SIGKILL."""

    child: int


class Hello(msgspec.Struct, tag=True, frozen=True):
    """From the nursery: it is ready; or ``error`` is why it never will be, for a person."""

    error: str | None


class Started(msgspec.Struct, tag=True, frozen=True):
    """From the nursery: a child runs."""

    child: int
    pid: int


class Exited(msgspec.Struct, tag=True, frozen=True):
    """From the nursery: a child is gone. ``why`` is for a person: its exit status, its signal, or why it could not be started."""

    child: int
    why: str


class Opened(msgspec.Struct, tag=True, frozen=True):
    """From a worker: it has its GPU."""

    identity: GpuIdentity


class Sampled(msgspec.Struct, tag=True, frozen=True):
    """From a worker: a sample, and how long the pass took.

    Its readings replace those at ``places`` of the sample before; without places they are all there are.
    """

    sample: GpuSample
    took_s: float
    places: list[int] | None = None


class Failed(msgspec.Struct, tag=True, frozen=True):
    """From a worker or probe, its last word. ``code`` is NVML's return code where a probe has one; ``xids`` no sample carried."""

    reason: DownReason
    text: str
    code: int | None = None
    xids: tuple[XidEvent, ...] = ()


class DriverFound(msgspec.Struct, tag=True, frozen=True):
    """From a probe: the driver answers, and counts so many GPUs."""

    driver: Driver
    count: int


class Listed(msgspec.Struct, tag=True, frozen=True):
    """From a probe: the GPU at this index; ``pci_bus_id`` is empty when it did not say."""

    index: int
    pci_bus_id: str


class Done(msgspec.Struct, tag=True, frozen=True):
    """From a probe: that was all."""


ToNursery = Spawn | SpawnProbe | Kill
FromNursery = Hello | Started | Exited
FromChild = Opened | Sampled | Failed | DriverFound | Listed | Done

encode: Final = msgspec.msgpack.Encoder().encode
decode_to_nursery: Final = msgspec.msgpack.Decoder(ToNursery).decode
decode_from_nursery: Final = msgspec.msgpack.Decoder(FromNursery).decode
_decode_from_child: Final = msgspec.msgpack.Decoder(FromChild).decode


def send_frame(connection: socket.socket, message: Any) -> None:
    """Send all of it, waiting as long as the reader takes."""
    body = encode(message)
    connection.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


class FrameReader:
    """Messages out of a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[FromChild]:
        """The messages that are complete now; raises ``ValueError`` for what is none."""
        self._pending += piece
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
