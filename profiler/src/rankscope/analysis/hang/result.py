"""The result of ``rankscope hang --format json`` (schema ``rankscope.hang/1``).

What is undefined is ``None`` (JSON ``null``), never 0. Fields are only ever added.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

HANG_SCHEMA: Final = "rankscope.hang/1"

HangKind = Literal["hang", "no_hang", "insufficient_data"]
HangCause = Literal["not_arrived", "lost_device", "not_started", "mismatch", "deadlock", "no_dump", "stuck"]


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group."""

    name: str
    description: str | None
    backend: str
    size: int
    ranks: list[int]
    """Global ranks; of a larger group the first 1024."""
    ranks_known: bool
    """Whether a dump said which they are; else they are those that were seen to use it."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A collective, or one side of point-to-point, as a rank enqueued it."""

    op: str
    """``all_reduce``, ``send`` …"""
    group: str
    """Name of the process group."""
    group_description: str | None
    sequence: int
    """Number in the group: of the collective, or of point-to-point, which each rank counts for itself."""
    peer: int | None
    """Of point-to-point: the other rank."""
    state: Literal["scheduled", "started", "completed"]
    """``scheduled``: enqueued. Whether it has started is recorded only where torch times it."""
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]
    input_dtypes: list[str]
    output_dtypes: list[str]
    enqueued_unix_ns: int | None
    timeout_ms: int | None
    frames: list[str]
    """The stack that enqueued it, innermost first; empty where the dump has none."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that has enqueued something that does not end."""

    rank: int
    host: str | None
    operation: Operation
    """The oldest that does not end."""
    pending: int
    """How many it has enqueued that have not ended."""
    waits_for: list[int]
    """Ranks that keep it from ending, at most 1024; empty: all are there."""
    waited_s: float | None
    """From when it was enqueued until the dump was taken; ``None``: not known when that was."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the chain: ``rank`` waits for ``waits_for`` in ``operation``."""

    rank: int
    waits_for: int
    why: Literal["not_arrived", "held_up", "lost_device", "no_dump", "untold"]
    """The other has not enqueued it; or has, but waits in something older; or its device is lost; or there is no dump of it; or
    its dump does not tell.
    """
    operation: Operation


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is named, and on what evidence."""

    rank: int
    host: str | None
    cause: HangCause
    certain: bool
    """False where there is no dump of it, or one that does not tell, and all the others are there."""
    awaited_in: Operation | None
    """What the others wait for it in, as one of them enqueued it."""
    awaited_by: list[int]
    """Ranks whose oldest operation that does not end is that one."""
    last_sequence: int | None
    """Number of the last collective that it enqueued in that group."""
    last: Operation | None
    """The last thing that it enqueued anywhere, as far as the dump has it."""
    detail: str
    """One sentence."""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that came to the same collective of a group with different things."""

    group: str
    group_description: str | None
    sequence: int
    what: Literal["op", "size", "dtype"]
    values: dict[str, list[int]]
    """What they came with, and which ranks."""


class HangReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``hang`` knows."""

    schema: str = HANG_SCHEMA
    kind: HangKind
    cause: HangCause | None
    """Of the first culprit; ``stuck``: all are there, so a group is named and no rank."""
    culprits: list[int]
    """Ascending."""
    suspects: list[int]
    """Ranks without a dump that others wait for, at most 1024: they may be late, too, or may have died of it."""
    collective: Operation | None
    """What the culprits did not come to, or what does not end."""
    group: ProcessGroup | None
    chain: list[Link]
    """From the rank that is furthest from the first culprit to that."""
    waiting: list[Waiting]
    """All ranks that wait, ascending."""
    evidence: list[Culprit]
    mismatches: list[Mismatch]
    summary: str
    """One sentence for a person."""
    path: str
    ranks: int
    """Ranks with a dump that could be read."""
    world_size: int | None
    """Of a run as it was recorded; of dumps alone, the size of the largest group that is known."""
    attempt: int | None
    """Of a run: the attempt."""
    coverage: float | None
    """Ranks with a dump over those of the world."""
    warnings: list[str]
    next: list[str]
    """Commands or actions, most useful first."""
