"""The result of ``rankscope hang --format json`` (schema ``rankscope.hang/1``).

An undefined value is ``None`` (JSON ``null``), never 0. Fields are only ever added.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.runs.records import Phase, ProcessState

HANG_SCHEMA: Final = "rankscope.hang/1"

HangKind = Literal["hang", "no_hang", "insufficient_data"]
HangCause = Literal[
    "not_arrived", "lost_device", "not_started", "mismatch", "deadlock", "no_dump", "stuck", "unreachable", "nccl_error"
]
RasWhy = Literal["behind", "mismatch", "left", "unreachable", "dead", "error"]

MOST_LISTED: Final = 1024
"""Maximum number of ranks in one list of the result."""


BEFORE_NS: Final = 1_000_000_000
"""Least time, in nanoseconds, by which a step that ended after the dumps is later: clocks of hosts differ."""


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group."""

    name: str
    description: str | None
    backend: str
    size: int
    ranks: list[int]
    """Global ranks; only the first 1024 of a larger group."""
    ranks_known: bool
    """True if a dump lists the ranks or they follow from the world size; else they are those that were seen to use the group."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A collective, or one side of a point-to-point operation, as a rank enqueued it."""

    op: str
    """``all_reduce``, ``send`` …"""
    group: str
    """Name of the process group."""
    group_description: str | None
    sequence: int
    """Number of the collective in the group, or of the point-to-point operation, which each rank counts for itself."""
    peer: int | None
    """The other rank of a point-to-point operation."""
    state: Literal["scheduled", "started", "completed"]
    """``scheduled``: enqueued. ``started`` is recorded only where torch times the operation."""
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]
    input_dtypes: list[str]
    output_dtypes: list[str]
    enqueued_unix_ns: int | None
    timeout_ms: int | None
    frames: list[str]
    """Stack that enqueued it, innermost frame first; empty if the dump has none."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that has enqueued an operation that does not end."""

    rank: int
    host: str | None
    operation: Operation
    """The oldest operation that does not end."""
    pending: int
    """Number of operations that it has enqueued and that have not ended."""
    waits_for: list[int]
    """Ranks that keep the operation from ending, at most 1024; empty if all ranks came."""
    waited_s: float | None
    """Seconds from the enqueuing of the operation to the dump; ``None`` if one of these times is unknown."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the chain: ``rank`` waits for ``waits_for`` in ``operation``."""

    rank: int
    waits_for: int
    why: Literal["not_arrived", "held_up", "lost_device", "no_dump", "untold"]
    """``not_arrived``: the other rank has not enqueued the operation. ``held_up``: it has, but waits in an older one.
    ``lost_device``: its device is lost. ``no_dump``: it left no dump. ``untold``: its dump does not show whether it came.
    """
    operation: Operation


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is named, with the evidence against it."""

    rank: int
    host: str | None
    cause: HangCause
    certain: bool
    """False if no dump shows whether the rank came, and where ranks may have waited for a moment only: the time of their dumps is
    unknown, or they waited for less than a minute."""
    awaited_in: Operation | None
    """Operation in which the others wait for it, as one of them enqueued it."""
    awaited_by: list[int]
    """Ranks whose oldest operation that does not end is ``awaited_in``."""
    last_sequence: int | None
    """Number of the last collective that the rank enqueued in the group of ``awaited_in``."""
    last: Operation | None
    """The last operation that the rank enqueued in any group, as far as the dump shows."""
    detail: str
    """Evidence in one sentence."""


class MismatchedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a collective whose size differs between the rank that sends it and the rank that expects it."""

    sender: int
    receiver: int
    sent: int
    """Number of elements."""
    expected: int


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that came to the same collective of a group with different operations, sizes or data types."""

    group: str
    group_description: str | None
    sequence: int
    what: Literal["op", "size", "dtype"]
    values: dict[str, list[int]]
    """Ranks by the value with which they came."""
    parts: list[MismatchedPart] = []
    """Parts of an all-to-all, or of another collective with a part for each rank, whose sizes differ; at most 64."""
    sent: int | None = None
    """Number of elements that all ranks send, where the dumps have no parts and it is not ``expected``."""
    expected: int | None = None
    """Number of elements that all ranks expect."""


class RasRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that differs from the others of its communicator."""

    rank: int
    """Rank in the communicator."""
    global_rank: int | None
    """``None``: unknown, where the answer shows no communicator of the whole job and the run does not have the process."""
    host: str | None
    """Address of the node, as NCCL knows it."""
    pid: int | None
    gpu: int | None
    """NVML index."""
    why: RasWhy
    """``behind``: launched fewer collectives than others. ``mismatch``: as many, of other kinds. ``left``: its process answers
    and no longer has the communicator. ``unreachable``: its process does not answer. ``dead``: for more than 60 s. ``error``:
    NCCL reports an error there.
    """
    launched: dict[str, int] | None
    """Launched collectives by kind; in text of NCCL before 2.28.7 only the kinds that differ."""
    error: str | None


class RasCommunicator(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator in which ranks differ."""

    hash: str
    """Its hash, as in NCCL's log."""
    size: int
    whole_job: bool
    furthest: dict[str, int] | None
    """Launched collectives of the ranks that are furthest."""
    waiting: int | None
    """Number of ranks that launched collectives which the ranks behind have not."""
    ranks: list[RasRank]
    """At most 1024."""


class RasReport(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL RAS showed."""

    address: str
    live: bool
    """True if it was asked now; false: the answers were kept in the run."""
    asked_unix_ns: int
    """Time of the last question."""
    answers: int
    """Number of answers that were compared, 1 or 2."""
    interval_s: float | None
    """Time between the two questions."""
    moved: bool | None
    """True if ranks launched collectives in between; ``None``: unknown."""
    nccl_version: str | None
    format: Literal["json", "text"]
    communicators: int
    gpus: int | None
    """Number of GPUs in the job."""
    timeouts: int
    """Number of time-outs between NCCL's processes while they collected the answer."""
    kind: HangKind
    """Result by RAS alone."""
    cause: HangCause | None
    culprits: list[int]
    """Global ranks, ascending; those whose global rank is unknown are in ``differing`` only."""
    certain: bool
    """False for ranks that are behind: RAS counts no sends and receives, in which they may wait for others."""
    summary: str
    differing: list[RasCommunicator]
    """At most 64, those with most waiting ranks first."""


class StandingRank(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank that stands still is doing."""

    rank: int
    host: str | None
    step: int | None
    """The step that is going on; ``None``: not known."""
    phase: Phase
    section: str | None
    """Section of the script; ``checkpoint``: it writes a checkpoint."""
    waiting: bool | None
    """Whether it waits for other ranks; ``None``: not known, as on a device."""
    process: ProcessState | None
    """``stopped``: by a signal. ``disk``: in an uninterruptible wait, typically for a disk or a network filesystem."""
    since_s: float
    """Seconds since the last event of its training thread."""


class ActivityReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of a live run that stand still are doing."""

    read_unix_ns: int
    kind: HangKind
    """Result by the activities alone; it is never certain."""
    cause: HangCause | None
    culprits: list[int]
    unknown: list[int]
    """Ranks that have not ended and of which nothing is known: they go on, or their recorder does not. At most 1024."""
    ranks: list[StandingRank]
    """At most 1024."""
    standing: int
    """Number of all ranks that stand still."""
    summary: str


class HangReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``rankscope hang``."""

    schema: str = HANG_SCHEMA
    kind: HangKind
    cause: HangCause | None
    """Cause of the first culprit; ``stuck``: all ranks came, so a group is named and no rank."""
    culprits: list[int]
    """Culprit ranks, ascending."""
    suspects: list[int]
    """Ranks without a dump that others wait for, at most 1024: they may be late as well, or may have died of the hang."""
    collective: Operation | None
    """Operation to which the culprits did not come, or that does not end."""
    group: ProcessGroup | None
    chain: list[Link]
    """Links from the rank that is furthest from the first culprit to that culprit."""
    waiting: list[Waiting]
    """All ranks that wait, ascending."""
    evidence: list[Culprit]
    mismatches: list[Mismatch]
    summary: str
    """Summary in one sentence."""
    path: str
    ranks: int
    """Ranks with a dump that could be read."""
    world_size: int | None
    """World size as recorded with the run; for dumps alone, the size of the largest known group."""
    attempt: int | None
    """Number of the attempt, if a run was read."""
    coverage: float | None
    """Ranks with a dump as a fraction of the world size."""
    warnings: list[str]
    next: list[str]
    """Commands or actions, most useful first."""
    dumped_unix_ns: int | None = None
    """Time of the first dump of the ranks that wait, or of all ranks; ``None``: there is none, or its time is unknown."""
    ras: RasReport | None = None
    """What NCCL RAS showed; ``None``: it was not asked or did not answer."""
    activity: ActivityReport | None = None
    """What the ranks are doing; ``None``: no rank of the run is known to stand still."""
