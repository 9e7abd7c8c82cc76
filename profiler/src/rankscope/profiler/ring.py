"""A single-writer, single-reader ring in a memory-mapped file.

The training thread writes, the helper process reads. The file is in local memory, so its content survives SIGKILL of the
writer. Nothing here blocks: a full ring drops the entry and counts it.

Layout, in the byte order of the machine: a header page, then ``slots`` slots of ``slot_bytes``. Header: magic, slot_bytes,
slots; then at fixed offsets 8-byte words: the writer's (head, dropped, the recorder's cost, end, cost and number of windows, the
last announcement read), the reader's (tail, and an announcement); and the reason for which the recorder switched itself off.
A slot: a word with its sequence number + 1, one with the checksum, the length and the kind (32, 16 and 16 bits from the lowest),
and the payload. An entry exists once ``head`` has passed it and its slot holds its sequence number and checksum. The checksum is
Adler-32 of the payload, seeded with the sequence number: between the events of training, CRC-32 takes twice as long, because of
its tables.

Every word is written with one aligned store, so the other side sees the old value or the new one, never a part of each. The
announcement is several words: its generation is 0 while they change and is written last, with a checksum over all of them.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, Self
from zlib import adler32, crc32

SLOT_BYTES: Final = 1024
SLOTS: Final = 4096
PATIENCE_SECONDS: Final = 1.0
"""Longest wait of the reader for a slot that ``head`` has passed but that does not hold its entry: other processors may see
stores late, but never as late as this."""

_MAGIC: Final = b"RSRING03"
_HEADER_BYTES: Final = 4096
_GEOMETRY: Final = struct.Struct("=8sII")
_SLOT: Final = struct.Struct("=QQ")
_SLOT_HEADER: Final = _SLOT.size
_LENGTH: Final = 32
_KIND: Final = 48
_LOW_32: Final = 0xFFFFFFFF
_LOW_16: Final = 0xFFFF
_ANNOUNCED: Final = struct.Struct("=QQQQQ")
_REASON: Final = 256
_REASON_BYTES: Final = 1024

# Words, by their index: offset / 8.
_HEAD, _DROPPED, _COST, _END, _WINDOW_COST, _WINDOWS, _SEEN = range(8, 15)
_TAIL: Final = 16
_GENERATION: Final = 24
_NUMBER, _FIRST, _STEPS, _FLAGS, _CHECK = range(25, 30)
_KEEP_TRACE: Final = 1

COST: Final = _COST
"""Index of the word with the recorder's cost so far, see ``RingWriter.set_cost``."""
NEWS: Final = (_GENERATION, _SEEN)
"""Indices of two words that are equal while ``RingWriter.news`` has nothing new to return."""


class End(IntEnum):
    """End state that the writer recorded."""

    SILENT = 0
    """No end was recorded: the writer is running, or it was killed."""
    EXIT = 1
    CRASH = 2
    INTERRUPTED = 3
    """Ctrl-C ended the script."""


class Announcement(NamedTuple):
    """Profiler window that the helper requests from the training thread."""

    number: int
    """Number of this announcement, assigned by the announcer."""
    first: int
    """First profiled step."""
    steps: int
    keep_trace: bool = False


class RingWriter:
    """Writer of the ring, in the training process. Raises ``OSError`` only from the constructor; nothing blocks."""

    def __init__(self, path: Path, *, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> None:
        assert slot_bytes % 8 == 0, "slots are written as words"
        size = _HEADER_BYTES + slots * slot_bytes
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, size)
            # Writing to a sparse file on a full tmpfs would raise SIGBUS in training, so allocate all pages now.
            os.posix_fallocate(handle, 0, size)
            # Populate the mapping at once: otherwise every fourth step would cause a page fault.
            self._map = mmap.mmap(handle, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        finally:
            os.close(handle)
        self.words = memoryview(self._map)[:_HEADER_BYTES].cast("Q")
        """Words of the header, for callers that cannot afford a method call; see ``NEWS`` and ``COST``."""
        self._slot_words = memoryview(self._map).cast("Q")
        self.room = min(slot_bytes - _SLOT_HEADER, _LOW_16)
        """Size of the largest payload in bytes."""
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._head = 0
        self._dropped = 0
        self._map[: _GEOMETRY.size] = _GEOMETRY.pack(_MAGIC, slot_bytes, slots)

    def put(self, kind: int, payload: bytes) -> bool:
        """Add an entry. Returns False and counts a drop if the ring is full or the payload does not fit a slot."""
        head, words, size = self._head, self._slot_words, len(payload)
        if head - words[_TAIL] >= self._slots or size > self.room:
            self._dropped += 1
            words[_DROPPED] = self._dropped
            return False
        offset = _HEADER_BYTES + (head % self._slots) * self._slot_bytes
        start = offset + _SLOT_HEADER
        self._map[start : start + size] = payload
        # Two stores instead of ``struct``, whose code is cold here.
        at = offset >> 3
        words[at + 1] = adler32(payload, head & _LOW_32) | size << _LENGTH | kind << _KIND
        self._head = words[at] = words[_HEAD] = head + 1
        return True

    def set_cost(self, nanoseconds: int) -> None:
        """Publish the recorder's cost to the training thread so far."""
        self.words[_COST] = nanoseconds

    def set_window_cost(self, nanoseconds: int, windows: int) -> None:
        """Publish the part of the cost that is due to profiler windows, and the number of windows."""
        self.words[_WINDOW_COST] = nanoseconds
        self.words[_WINDOWS] = windows

    def news(self) -> Announcement | None:
        """Return the helper's announcement, once; ``None`` if there is no new one."""
        words = self.words
        generation = words[_GENERATION]
        if generation == words[_SEEN] or not generation:
            return None
        number, first, steps, flags, check = words[_NUMBER : _CHECK + 1]
        if words[_GENERATION] != generation or check != _check(generation, number, first, steps, flags):
            return None  # it is being written; the next step reads it
        words[_SEEN] = generation
        return Announcement(number, first, steps, bool(flags & _KEEP_TRACE))

    def set_end(self, end: End) -> None:
        """Record the end of the writer, or withdraw it with ``SILENT``."""
        self.words[_END] = end

    def set_disabled(self, reason: str) -> None:
        """Publish the reason for which the recorder switched itself off."""
        data = reason.encode(errors="replace")[: _REASON_BYTES - 1]
        self._map[_REASON : _REASON + len(data) + 1] = data + b"\0"

    def close(self) -> None:
        """Unmap the file."""
        self.words.release()
        self._slot_words.release()
        self._map.close()


class RingReader:
    """Reader of the ring, in the helper.

    Raises ``OSError`` if the file cannot be mapped and ``ValueError`` if it is not a ring.
    """

    def __init__(self, path: Path, *, patience_s: float = PATIENCE_SECONDS) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        if len(self._map) < _HEADER_BYTES:
            raise ValueError(f"{path}: not a ring")
        magic, self._slot_bytes, self._slots = _GEOMETRY.unpack_from(self._map)
        if magic != _MAGIC or len(self._map) != _HEADER_BYTES + self._slots * self._slot_bytes:
            raise ValueError(f"{path}: not a ring")
        self._words = memoryview(self._map)[:_HEADER_BYTES].cast("Q")
        self._next = self._words[_TAIL]
        self._patience_s = patience_s
        self._doubted: int | None = None
        self._doubted_since = 0.0
        # A killed predecessor of this helper may have announced a window.
        self._generation = max(self._words[_GENERATION], self._words[_SEEN])
        self.torn = 0
        """Number of published slots without a valid entry; only broken memory should cause this."""

    def read(self, limit: int = SLOTS, *, ended: bool = False, free: bool = True) -> list[tuple[int, bytes]]:
        """Return up to ``limit`` entries, (kind, payload), oldest first. Frees their slots, unless ``free`` is False.

        Reading stops at a slot that does not hold its entry yet. The slot is torn if it still does not after ``patience_s``, or
        if the writer has ``ended``.
        """
        head, tail = self._words[_HEAD], self._next
        entries = []
        for sequence in range(tail, min(head, tail + limit)):
            offset = _HEADER_BYTES + (sequence % self._slots) * self._slot_bytes
            number, about = _SLOT.unpack_from(self._map, offset)
            length = about >> _LENGTH & _LOW_16
            payload = self._map[offset + _SLOT.size : offset + _SLOT.size + length]
            if number == sequence + 1 and about & _LOW_32 == _checksum(sequence, payload):
                entries.append((about >> _KIND, payload))
            elif ended or self._out_of_patience(sequence):
                self.torn += 1
            else:
                break
            tail = sequence + 1
        self._next = tail
        if free:
            self.free()
        return entries

    def free(self, *, keep: int = 0) -> None:
        """Free the slots of the entries read, except the last ``keep``: a replacement of this reader reads those again."""
        self._words[_TAIL] = max(self._words[_TAIL], self._next - keep)

    def _out_of_patience(self, sequence: int) -> bool:
        if self._doubted != sequence:
            self._doubted, self._doubted_since = sequence, time.monotonic()
        return time.monotonic() - self._doubted_since >= self._patience_s

    def announce(self, window: Announcement) -> None:
        """Request a window from the training thread. This overwrites an announcement that is not yet ``heard``."""
        self._generation += 1
        words, flags = self._words, _KEEP_TRACE * window.keep_trace
        words[_GENERATION] = 0
        words[_NUMBER], words[_FIRST], words[_STEPS], words[_FLAGS] = window.number, window.first, window.steps, flags
        words[_CHECK] = _check(self._generation, window.number, window.first, window.steps, flags)
        words[_GENERATION] = self._generation

    @property
    def heard(self) -> bool:
        """True if the training thread has read the last announcement, or there was none."""
        return self._words[_SEEN] == self._words[_GENERATION]

    @property
    def dropped(self) -> int:
        """Number of lost entries: dropped by the writer, or torn."""
        return self._words[_DROPPED] + self.torn

    @property
    def cost_ns(self) -> int:
        """Cost of the recorder to the training thread so far."""
        return self._words[_COST]

    @property
    def window_cost_ns(self) -> int:
        """Part of ``cost_ns`` that is due to profiler windows."""
        return self._words[_WINDOW_COST]

    @property
    def windows(self) -> int:
        """Number of recorded profiler windows."""
        return self._words[_WINDOWS]

    @property
    def end(self) -> End:
        """End state that the writer recorded."""
        with suppress(ValueError):
            return End(self._words[_END])
        return End.SILENT

    @property
    def disabled_reason(self) -> str | None:
        """Reason for which the recorder switched itself off; ``None`` while it is on."""
        text = self._map[_REASON : _REASON + _REASON_BYTES].partition(b"\0")[0]
        return text.decode(errors="replace") or None

    def close(self) -> None:
        """Unmap the file."""
        self._words.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checksum(sequence: int, payload: bytes) -> int:
    return adler32(payload, sequence & _LOW_32)


def _check(*words: int) -> int:
    return crc32(_ANNOUNCED.pack(*words))
