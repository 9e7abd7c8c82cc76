"""Words that a rank writes into its ring: what happened in a step, and when.

Between two events training evicts the recorder's code and objects from the processor's caches, so each one it touches is slow.
The training thread therefore stores one word per event straight into the ring, and the helper process evaluates them.

An event is ``at << SHIFT | MARKED? | kind``: its time in nanoseconds of ``perf_counter_ns``, which all processes of a Linux
machine share, and its kind. ``DETAILS`` says how many words with details follow. No word is 0, so the reader sees which have been
written. Where an event is ``MARKED``, a mark was placed on the device's stream; their times follow in a ``DEVICE`` message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

SHIFT: Final = 6
"""Number of bits below the time."""
MARKED: Final = 32
KIND: Final = 31
"""Mask of the kind."""

# An event whose kind is the number of a phase (0 to 5, see ``phases``) is the beginning of that phase.
LEAVE: Final = 6
"""The phase that began last ends."""
RAISED: Final = 7
"""The step of an optimizer ended by an exception."""
TRAINING_BATCH: Final = 8
"""A batch to train on is about to be requested."""
BATCH_WITHOUT_GRADIENTS: Final = 9
"""A batch is requested while gradients are off."""
BATCH: Final = 10
"""The data phase ends. Details: samples and elements of the batch."""
NO_BATCH: Final = 11
"""The data phase ends without a batch."""
MODEL_INPUT: Final = 12
"""The model is called to train. Detail: elements of its arguments."""
MODEL_EVALUATES: Final = 13
"""``model.eval()``. Detail: whether gradients are on."""
MODEL_TRAINS: Final = 14
"""``model.train()``. Detail: whether gradients are on."""
WAIT: Final = 15
"""A wait for other ranks begins."""
WAITED: Final = 16
"""The wait is over."""
READY: Final = 17
"""Time at which the graph of a backward pass was exhausted: from there to the pass's end the rank waits for others. It is written
when the pass ends, directly before its ``LEAVE`` or ``RETURNED``."""
RETURNED: Final = 18
"""A backward pass inside another is over."""
UNSEEN_WAIT: Final = 19
"""The rank may have waited for others without a sign of how long."""
SECTION: Final = 20
"""A section of the script begins. Detail: its name."""
SECTION_ENDS: Final = 21
"""A section of the script ends. Detail: its name."""
TAG: Final = 22
"""The step gets a tag. Detail: the tag's name."""
METRIC: Final = 23
"""The script reports a number. Details: its name, and the number (two words)."""
WORK: Final = 24
"""The script reports its work. Details: samples, tokens, floating-point operations (two words, or none: two times nothing)."""
COLLECTED: Final = 25
"""Garbage was collected in the step. Details: nanoseconds, number of full collections."""
CHECKPOINT_BEGINS: Final = 26
CHECKPOINT_ENDS: Final = 27
MEMORY: Final = 28
"""Memory at the end of the last step. Details: resident, allocated, reserved, peak of allocated, retries of the allocator."""
USAGE: Final = 29
"""Counters of the training thread at the end of the last step. Details: voluntary and involuntary context switches, nanoseconds
in the run queue, nanoseconds on the processor, and 1 where steps before are not meant: counting begins here."""
END: Final = 30
"""The step ends. Details: number << 8 | flags (below), not encoded as others, and the time at which it began."""
MESSAGE: Final = 31
"""Bytes for the helper. In place of the time: their number << 4 | kind of the message."""

DETAILS: Final = tuple(
    {
        BATCH: 2, MODEL_INPUT: 1, MODEL_EVALUATES: 1, MODEL_TRAINS: 1, SECTION: 1, SECTION_ENDS: 1, TAG: 1, METRIC: 3, WORK: 4,
        COLLECTED: 2, MEMORY: 5, USAGE: 5, END: 2,
    }.get(kind, 0)
    for kind in range(32)
)  # fmt: skip
"""Number of words with details by kind; that of a message depends on its length."""

# Flags of END. The first is always set.
NUMBER: Final = 8
"""Number of bits below the step's number."""
PROFILED: Final = 2
WHOLE_STEP: Final = 4
"""The beginning of the step was seen."""
AWAITS_DEVICE: Final = 8
"""The times of the step's marks may follow."""
SIGNALLED: Final = 16
"""All waits of the device for other ranks were reported."""
WAITING: Final = 5
"""Place of two bits that tell what is known of the rank's waits on the host."""
NOT_KNOWN: Final = 0
"""The host cannot see how long the rank waited for others."""
NOT_AT_ALL: Final = 1
"""There are no other ranks."""
AS_NOTED: Final = 2
"""The waits are among the events."""
IF_NOTED: Final = 3
"""The waits are among the events, if there are any; else nothing is known."""

NOTHING: Final = 1
"""Detail that says that there is no value."""
_WORD_BYTES: Final = 7
"""Bytes of a message in one word; the lowest byte makes it different from 0."""
_DOUBLE: Final = struct.Struct("=d")
_HALVES: Final = struct.Struct("=II")


def detail(value: int | None) -> int:
    """Return the word of a number that is not negative and below 2**62, or of ``None``."""
    return NOTHING if value is None else (value + 1) << 1 | 1


def value_of(word: int) -> int | None:
    """Return the number of a word with details."""
    return None if word == NOTHING else (word >> 1) - 1


def details_of_float(number: float | None) -> tuple[int, int]:
    """Return the two words of a number, or of ``None``."""
    if number is None:
        return NOTHING, NOTHING
    high, low = _HALVES.unpack(_DOUBLE.pack(number))
    return detail(high), detail(low)


def float_of(high: int, low: int) -> float | None:
    """Return the number of two words."""
    if high == NOTHING:
        return None
    (number,) = _DOUBLE.unpack(_HALVES.pack((high >> 1) - 1, (low >> 1) - 1))
    return float(number)


def words_of_message(kind: int, payload: bytes) -> list[int]:
    """Return the words of a message of ``kind``, 0 to 15."""
    size, of = len(payload), int.from_bytes
    words = [of(payload[start : start + _WORD_BYTES], "little") << 8 | 1 for start in range(0, size, _WORD_BYTES)]
    return [(size << 4 | kind) << SHIFT | MESSAGE, *words]


def size_of_message(word: int) -> tuple[int, int, int]:
    """Return (kind, bytes, words that follow) of a message by its first word."""
    about = word >> SHIFT
    size = about >> 4
    return about & 15, size, -(-size // _WORD_BYTES)


def bytes_of_message(size: int, words: Iterable[int]) -> bytes:
    """Return the content of a message."""
    return b"".join((word >> 8).to_bytes(_WORD_BYTES, "little") for word in words)[:size]
