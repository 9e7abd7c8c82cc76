"""A single-writer, single-reader ring in a memory-mapped file.

The training thread writes, the helper process reads. The file lies on local memory, so what was written survives SIGKILL of
the writer. Nothing here blocks: a full ring drops the entry and counts it.

Layout, little endian: a header page, then ``slots`` slots of ``slot_bytes``. Header: magic, slot_bytes, slots; then at fixed
offsets the writer's words (head, dropped, cost, end, reason) and the reader's (tail). A slot: sequence number + 1, CRC-32 of
sequence and payload, length, kind, payload. An entry exists once ``head`` has passed it; the sequence and the checksum guard
against a slot that was only partly written.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, Self

SLOT_BYTES: Final = 1024
SLOTS: Final = 4096

_MAGIC: Final = b"RSRING01"
_HEADER_BYTES: Final = 4096
_GEOMETRY: Final = struct.Struct("<8sII")
_WORD: Final = struct.Struct("<Q")
_SLOT: Final = struct.Struct("<QIHH")
_HEAD, _DROPPED, _COST, _END = 64, 72, 80, 88
_TAIL: Final = 128
_REASON: Final = 256
_REASON_BYTES: Final = 1024


class End(IntEnum):
    """How the writer said it ended."""

    SILENT = 0
    """It has not said anything: it runs, or it was killed."""
    EXIT = 1
    CRASH = 2


class RingWriter:
    """The training process's side. Raises ``OSError`` only from the constructor; ``put`` never blocks."""

    def __init__(self, path: Path, *, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> None:
        size = _HEADER_BYTES + slots * slot_bytes
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, size)
            # Pages of a sparse file on a full tmpfs would raise SIGBUS in training: have them now or not at all.
            os.posix_fallocate(handle, 0, size)
            self._map = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._head = 0
        self._dropped = 0
        self._map[: _GEOMETRY.size] = _GEOMETRY.pack(_MAGIC, slot_bytes, slots)

    def put(self, kind: int, payload: bytes) -> bool:
        """Add an entry. Returns False, and counts, when the ring is full or the payload does not fit a slot."""
        (tail,) = _WORD.unpack_from(self._map, _TAIL)
        if self._head - tail >= self._slots or len(payload) > self._slot_bytes - _SLOT.size:
            self._dropped += 1
            _WORD.pack_into(self._map, _DROPPED, self._dropped)
            return False
        offset = _HEADER_BYTES + (self._head % self._slots) * self._slot_bytes
        start = offset + _SLOT.size
        self._map[start : start + len(payload)] = payload
        _SLOT.pack_into(self._map, offset, self._head + 1, _checksum(self._head, payload), len(payload), kind)
        self._head += 1
        _WORD.pack_into(self._map, _HEAD, self._head)
        return True

    def set_cost(self, nanoseconds: int) -> None:
        """Publish what the recorder has cost the training thread so far."""
        _WORD.pack_into(self._map, _COST, nanoseconds)

    def set_end(self, end: End) -> None:
        """Say goodbye, or take it back with ``SILENT``."""
        _WORD.pack_into(self._map, _END, end)

    def set_disabled(self, reason: str) -> None:
        """Publish why the recorder switched itself off."""
        data = reason.encode(errors="replace")[: _REASON_BYTES - 1]
        self._map[_REASON : _REASON + len(data) + 1] = data + b"\0"

    def close(self) -> None:
        """Unmap."""
        self._map.close()


class RingReader:
    """The helper's side.

    Raises ``OSError`` when the file cannot be mapped and ``ValueError`` when it is not a ring.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        if len(self._map) < _HEADER_BYTES:
            raise ValueError(f"{path}: not a ring")
        magic, self._slot_bytes, self._slots = _GEOMETRY.unpack_from(self._map)
        if magic != _MAGIC or len(self._map) != _HEADER_BYTES + self._slots * self._slot_bytes:
            raise ValueError(f"{path}: not a ring")
        self.torn = 0
        """Slots that were published but did not hold what was written; never seen short of broken memory."""

    def read(self, limit: int = SLOTS) -> list[tuple[int, bytes]]:
        """Take up to ``limit`` entries, (kind, payload), oldest first, and free their slots."""
        head, tail = self._word(_HEAD), self._word(_TAIL)
        entries = []
        for sequence in range(tail, min(head, tail + limit)):
            offset = _HEADER_BYTES + (sequence % self._slots) * self._slot_bytes
            number, checksum, length, kind = _SLOT.unpack_from(self._map, offset)
            payload = self._map[offset + _SLOT.size : offset + _SLOT.size + length]
            if number == sequence + 1 and checksum == _checksum(sequence, payload):
                entries.append((kind, payload))
            else:
                self.torn += 1
            tail = sequence + 1
        _WORD.pack_into(self._map, _TAIL, tail)
        return entries

    @property
    def dropped(self) -> int:
        """Entries that found the ring full."""
        return self._word(_DROPPED) + self.torn

    @property
    def cost_ns(self) -> int:
        """What the recorder has cost the training thread so far."""
        return self._word(_COST)

    @property
    def end(self) -> End:
        """How the writer said it ended."""
        with suppress(ValueError):
            return End(self._word(_END))
        return End.SILENT

    @property
    def disabled_reason(self) -> str | None:
        """Why the recorder switched itself off, or ``None`` while it is on."""
        text = self._map[_REASON : _REASON + _REASON_BYTES].partition(b"\0")[0]
        return text.decode(errors="replace") or None

    def _word(self, offset: int) -> int:
        value: int = _WORD.unpack_from(self._map, offset)[0]
        return value

    def close(self) -> None:
        """Unmap."""
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checksum(sequence: int, payload: bytes) -> int:
    return zlib.crc32(payload, sequence & 0xFFFFFFFF)
