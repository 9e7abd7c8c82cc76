"""A single-writer, single-reader ring of words in memory that two processes share.

The training thread writes, the helper process reads. The memory survives SIGKILL of the writer. Nothing here blocks: without
room, a step is dropped and counted.

Layout, in the byte order of the machine: a header, then ``CAPACITY`` words. The header has 8-byte words at fixed offsets: magic;
the writer's (head, dropped steps, the recorder's cost, end, cost and number of windows, the last announcement read, when the
graph of the last backward pass was exhausted, and whether the step that is going on will be dropped), the reader's (tail, its
next value while words are given back, and an announcement), and the exit status of the writer's process; the reason for which
the recorder switched itself off; and the names that words refer to.

Positions in the ring count all words ever written. The writer publishes its head at the end of each step, so the reader takes
whole steps. Every word is written with one aligned store, so the other side sees the old value or the new one, never a part of
each. A word is 0 until it is written, and the reader makes it 0 again: it needs no checksum, and it can look at the words of the
step that is going on. The announcement is several words: its generation is 0 while they change and is written last, with a
checksum over all of them.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from contextlib import suppress
from enum import IntEnum
from typing import Final, NamedTuple, Self
from zlib import crc32

from rankscope.profiler.words import words_of_message

CAPACITY: Final = 1 << 17
"""Number of words: 1 MiB, about 10,000 usual steps."""
MASK: Final = CAPACITY - 1
STEP_WORDS: Final = CAPACITY // 4
"""Largest number of words of one step; a step with more is dropped."""
_RESERVE: Final = 2 * STEP_WORDS
"""Room that ``RingWriter.next_step`` asks for: that of one large step, and of the steps until the next call."""
MAX_NAMES: Final = 100
EVENT_NS: Final = 2_000
"""Cost of one word to the training thread: an estimate, because the thread does not measure what it writes. It is checked by
``benchmarks/recorder/overhead.py``: between the events of training all caches are cold, so no loop could measure it here."""

_MAGIC: Final = int.from_bytes(b"RSRING04", "little")
_HEADER_BYTES: Final = 8192
BYTES: Final = _HEADER_BYTES + 8 * CAPACITY
"""Size of the memory."""
_ANNOUNCED: Final = struct.Struct("=QQQQQ")
_REASON: Final = 256
_REASON_BYTES: Final = 1024
_NAMES: Final = 4096
_NAME_BYTES: Final = 40

# Words of the header, by their index: offset / 8. Whole steps have been written up to the position ``HEAD``, and the reader has
# taken them up to ``TAIL``. ``SEEN`` and ``GENERATION`` are equal while ``RingWriter.announcement`` has nothing new to return.
HEAD, _DROPPED, _COST, _END, _WINDOW_COST, _WINDOWS, SEEN, _READY = range(8, 16)
TAIL, _NEXT_TAIL = 16, 17
_SPILLED: Final = 18
_EXIT_STATUS: Final = 20
GENERATION: Final = 24
_NUMBER, _FIRST, _STEPS, _FLAGS, _CHECK = range(25, 30)
_KEEP_TRACE: Final = 1

EXIT_STATUS: Final = struct.Struct("=ii")
"""Exit status of the process (a C ``int``), and 1 if the process will leave it there."""
EXIT_STATUS_OFFSET: Final = 8 * _EXIT_STATUS
NO_EXIT_STATUS: Final = 2**31 - 1
"""The status until ``exit`` was called."""


class EndState(IntEnum):
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
    """Writer of the ring, in the training process. Until ``share`` it writes into memory of its own.

    Callers that cannot afford a method call store their words at ``words[at & MASK]`` themselves, and add to ``at``. They must
    not call anything between reading ``at`` and storing it: a signal handler, which may run at every call, would write there.
    """

    def __init__(self) -> None:
        self._own = memoryview(bytearray(8 * CAPACITY)).cast("Q")
        self._map: mmap.mmap | None = None
        self._names: dict[str, int] = {}
        self.header = memoryview(bytearray(_HEADER_BYTES)).cast("Q")
        self.ready = [self.header[_READY : _READY + 1]]
        """Memory for the time when the graph of the last backward pass was exhausted, in a list because it is replaced."""
        self._ring = self.words = self._own
        """Memory for the words of the current step."""
        self.at = 0
        """Position of the next word."""
        self.limit = STEP_WORDS
        """Position from which ``overflow`` must be called before a word is written."""
        self.spilled = False
        """True if the current step will be dropped."""

    def share(self, handle: int) -> None:
        """Write into the memory of the file ``handle`` from now on. Raises ``OSError``."""
        os.ftruncate(handle, BYTES)
        # Writing to memory that the system cannot give would raise SIGBUS in training, so allocate all of it now.
        os.posix_fallocate(handle, 0, BYTES)
        # Populate the mapping at once: otherwise many steps would cause a page fault.
        self._map = mmap.mmap(handle, BYTES, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        for name, number in self._names.items():
            self._write_name(name, number)
        header, ring = memoryview(self._map)[:_HEADER_BYTES].cast("Q"), memoryview(self._map)[_HEADER_BYTES:].cast("Q")
        header[0] = _MAGIC
        if not self.spilled:
            ring[: self.at] = self._own[: self.at]
            self.words = ring
        self.header, self._ring = header, ring
        self.ready[0] = header[_READY : _READY + 1]

    def put(self, kind: int, payload: bytes) -> bool:
        """Write a message. False: there is no room."""
        words = words_of_message(kind, payload)
        return self.write(*words)

    def write(self, *words: int) -> bool:
        """Write words. False: there is no room in this step."""
        count = len(words)
        if self.at + count > self.limit:
            self.overflow()
            return False
        block = array("Q", words)
        # No call and no loop from here: a signal handler would write there, or leave a gap that the reader cannot pass.
        at = self.at
        start = at & MASK
        fitting = CAPACITY - start
        self.words[start : start + count] = block[:fitting]
        if count > fitting:
            self.words[: count - fitting] = block[fitting:]
        self.at = at + count
        return not self.spilled

    def publish(self) -> None:
        """Let the reader have what was written since the end of the last step."""
        if not self.spilled:
            self.header[HEAD] = self.at

    def overflow(self) -> None:
        """Drop the current step: it has too many words, or the ring has no room. Its words go to memory that is not read."""
        start = self.header[HEAD]
        self.header[_SPILLED] = True
        if not self.spilled:
            for at in range(start, min(self.at, start + CAPACITY)):
                self.words[at & MASK] = 0
        self.words, self.at, self.limit, self.spilled = self._own, start, start + STEP_WORDS, True

    def next_step(self) -> bool:
        """Make room for the next step, or drop it; false if the one that ends was dropped.

        To be called after each step that was dropped, and from time to time: the room suffices for many usual steps.
        """
        header, dropped = self.header, self.spilled
        if dropped:
            header[_DROPPED] += 1
            self.at = header[HEAD]
        else:
            header[HEAD] = self.at
        if self._map is None or self.at + _RESERVE - header[TAIL] <= CAPACITY:
            self.words, self.spilled = self._ring, False
        else:
            self.words, self.spilled = self._own, True
        header[_SPILLED] = self.spilled
        self.limit = self.at + STEP_WORDS
        return not dropped

    def rewind(self) -> None:
        """Forget the words of the current step."""
        self.at = self.header[HEAD]

    def name(self, name: str) -> int | None:
        """Return the number of a name; ``None``: there are too many."""
        number = self._names.get(name)
        if number is None and len(self._names) < MAX_NAMES:
            number = self._names[name] = len(self._names)
            if self._map is not None:
                self._write_name(name, number)
        return number

    def _write_name(self, name: str, number: int) -> None:
        assert self._map is not None
        data = name.encode(errors="replace")[: _NAME_BYTES - 1]
        start = _NAMES + number * _NAME_BYTES
        self._map[start : start + len(data)] = data

    def set_cost(self, nanoseconds: int) -> None:
        """Publish the measured part of the recorder's cost to the training thread so far; see ``EVENT_NS`` for the rest."""
        self.header[_COST] = nanoseconds

    def set_window_cost(self, nanoseconds: int, windows: int) -> None:
        """Publish the part of the cost that is due to profiler windows, and the number of windows."""
        self.header[_WINDOW_COST] = nanoseconds
        self.header[_WINDOWS] = windows

    def announcement(self) -> Announcement | None:
        """Return the helper's announcement, once; ``None`` if there is no new one."""
        header = self.header
        generation = header[GENERATION]
        if generation == header[SEEN] or not generation:
            return None
        number, first, steps, flags, check = header[_NUMBER : _CHECK + 1]
        if header[GENERATION] != generation or check != _check(generation, number, first, steps, flags):
            return None  # it is being written; the next step reads it
        header[SEEN] = generation
        return Announcement(number, first, steps, bool(flags & _KEEP_TRACE))

    def set_end(self, end: EndState) -> None:
        """Record the end of the writer, or withdraw it with ``SILENT``."""
        self.header[_END] = end

    def set_disabled(self, reason: str) -> None:
        """Publish the reason for which the recorder switched itself off."""
        if self._map is not None:
            data = reason.encode(errors="replace")[: _REASON_BYTES - 1]
            self._map[_REASON : _REASON + len(data) + 1] = data + b"\0"

    def close(self) -> None:
        """Unmap the memory."""
        if self._map is not None:
            views = (self.ready[0], self.header, self._ring)
            self.header = memoryview(bytearray(_HEADER_BYTES)).cast("Q")
            self.ready[0] = self.header[_READY : _READY + 1]
            self._ring = self.words = self._own
            for view in views:
                view.release()
            self._map.close()
            self._map = None


class RingReader:
    """Reader of the ring, in the helper.

    Raises ``OSError`` if the memory of the file ``handle`` cannot be mapped and ``ValueError`` if it is not a ring.
    """

    def __init__(self, handle: int) -> None:
        if os.fstat(handle).st_size != BYTES:
            raise ValueError("not a ring")
        self._map = mmap.mmap(handle, BYTES)
        self._header = memoryview(self._map)[:_HEADER_BYTES].cast("Q")
        self._words = memoryview(self._map)[_HEADER_BYTES:].cast("Q")
        if self._header[0] != _MAGIC:
            self.close()
            raise ValueError("not a ring")
        # A killed predecessor may have given only a part of some words back.
        self.free(self._header[_NEXT_TAIL])
        self.at = self._header[TAIL]
        """Position of the next word to read."""
        # A killed predecessor of this helper may have announced a window.
        self._generation = max(self._header[GENERATION], self._header[SEEN])
        self.lost = 0
        """Number of steps that were damaged; only broken memory should cause this."""

    def read(self, limit: int = CAPACITY) -> list[int]:
        """Return up to ``limit`` published words, oldest first, and in any case those of a whole entry of the writer.

        A word that another processor does not see yet is 0, and ends what is returned.
        """
        head, start = self._header[HEAD], self.at
        words = self._slice(start, min(head, start + limit, start + CAPACITY))
        with suppress(ValueError):
            words = words[: words.index(0)]
        self.at = start + len(words)
        return words

    def current(self) -> list[int]:
        """Return the words of the step that is going on, as far as they have been written."""
        head = self._header[HEAD]
        words = self._slice(head, head + STEP_WORDS)
        with suppress(ValueError):
            words = words[: words.index(0)]
        return words

    @property
    def ready_ns(self) -> int:
        """Time when the graph of the last backward pass was exhausted, from which on it waits for other ranks. 0: unknown."""
        return self._header[_READY]

    @property
    def spilled(self) -> bool:
        """True if the step that is going on will be dropped, so that ``current`` shows nothing of it."""
        return bool(self._header[_SPILLED])

    def free(self, position: int) -> None:
        """Give the words before ``position`` back to the writer. A replacement of this reader reads those after it again."""
        tail = self._header[TAIL]
        self._header[_NEXT_TAIL] = max(position, tail)
        while tail < position:
            start = tail & MASK
            count = min(position - tail, CAPACITY - start)
            self._words[start : start + count] = memoryview(bytes(8 * count)).cast("Q")
            tail += count
        self._header[TAIL] = tail

    def _slice(self, start: int, end: int) -> list[int]:
        first, last = start & MASK, end & MASK
        if end - start >= CAPACITY or last < first:
            return self._words[first:].tolist() + self._words[:last].tolist()
        return self._words[first:last].tolist()

    def name(self, number: int) -> str:
        """Return the name that has this number; empty: there is none."""
        if not 0 <= number < MAX_NAMES:
            return ""
        start = _NAMES + number * _NAME_BYTES
        return self._map[start : start + _NAME_BYTES].partition(b"\0")[0].decode(errors="ignore")

    def announce(self, window: Announcement) -> None:
        """Request a window from the training thread. This overwrites an announcement that is not yet ``acknowledged``."""
        self._generation += 1
        header, flags = self._header, _KEEP_TRACE * window.keep_trace
        header[GENERATION] = 0
        header[_NUMBER], header[_FIRST], header[_STEPS], header[_FLAGS] = window.number, window.first, window.steps, flags
        header[_CHECK] = _check(self._generation, window.number, window.first, window.steps, flags)
        header[GENERATION] = self._generation

    @property
    def acknowledged(self) -> bool:
        """True if the training thread has read the last announcement, or there was none."""
        return self._header[SEEN] == self._header[GENERATION]

    @property
    def dropped(self) -> int:
        """Number of lost steps: dropped by the writer, or damaged."""
        return self._header[_DROPPED] + self.lost

    @property
    def cost_ns(self) -> int:
        """Cost of the recorder to the training thread so far."""
        return self._header[_COST] + EVENT_NS * self._header[HEAD]

    @property
    def window_cost_ns(self) -> int:
        """Part of ``cost_ns`` that is due to profiler windows."""
        return self._header[_WINDOW_COST]

    @property
    def windows(self) -> int:
        """Number of recorded profiler windows."""
        return self._header[_WINDOWS]

    @property
    def end(self) -> EndState:
        """End state that the writer recorded."""
        with suppress(ValueError):
            return EndState(self._header[_END])
        return EndState.SILENT

    @property
    def exit_status(self) -> int | None:
        """Exit status of the writer's process; ``None`` if it runs, was killed, or cannot tell."""
        status, is_set = EXIT_STATUS.unpack_from(self._map, EXIT_STATUS_OFFSET)
        return int(status) if is_set and status != NO_EXIT_STATUS else None

    @property
    def disabled_reason(self) -> str | None:
        """Reason for which the recorder switched itself off; ``None`` while it is on."""
        text = self._map[_REASON : _REASON + _REASON_BYTES].partition(b"\0")[0]
        return text.decode(errors="replace") or None

    def close(self) -> None:
        """Unmap the memory."""
        self._header.release()
        self._words.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(*words: int) -> int:
    return crc32(_ANNOUNCED.pack(*words))
