"""Durations of the collectives of a rank in the run directory (``durations-*.jsonl``): columns of many operations in one line.

A line has some 35 bytes for each operation. It is complete by itself, because retention may remove the lines before it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

TRANSFER: Final = 1
"""Flag of a send or receive."""
PART: Final = 2
"""Flag of a part of a batch, whose duration is that of the batch."""
AUTOGRAD: Final = 4
"""Flag of an operation that autograd issued."""


DurationSource = Literal["flight_recorder", "nccl_inspector"]
"""Sources of durations of collectives: torch's Flight Recorder with timing, and the logs of the NCCL Inspector plugin."""

RECORD_IT: Final = "record the job with `rankscope run`"
"""Way to more evidence where a job is not recorded."""


class SourceOfDurations(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a source, and its words in messages."""

    kind: DurationSource
    is_exact: bool
    """True if it has the order of operations of different groups, and shows which of them run beside compute."""
    title: str
    """Its name in a sentence."""
    inputs: str
    """Its files in a sentence."""
    one: str
    """Input of one rank, such as "dump"."""
    many: str
    missing: str
    """Note on ranks without one; ``{found}`` and ``{world_size}`` are filled in."""
    more_steps: str
    """Way to more steps."""
    together: str
    """Way to the same collectives of all ranks."""
    more_order: str
    """Way to the order of operations of different groups."""
    more_evidence: str = RECORD_IT
    """Way to evidence that durations do not hold."""


DURATION_SOURCES: Final[dict[DurationSource, SourceOfDurations]] = {
    source.kind: source
    for source in (
        SourceOfDurations(
            kind="nccl_inspector",
            is_exact=False,
            title="NCCL Inspector",
            inputs="logs of NCCL Inspector",
            one="log",
            many="logs",
            missing="logs of {found} of {world_size} ranks: communicators with a missing rank are left out",
            more_steps="let the job train for more steps",
            together="use NCCL 2.30 or later, or a shorter NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS",
            more_order=f"set NCCL_INSPECTOR_DUMP_VERBOSE=1, or {RECORD_IT}",
        ),
        SourceOfDurations(
            kind="flight_recorder",
            is_exact=True,
            title="the Flight Recorder",
            inputs="Flight Recorder dumps",
            one="dump",
            many="dumps",
            missing="dumps of {found} of {world_size} ranks: groups with a missing rank are left out",
            more_steps="set TORCH_FR_BUFFER_SIZE to several times the operations of a step",
            together="dump all ranks at about the same time",
            more_order=RECORD_IT,
        ),
    )
}
"""The sources, in the order in which files are taken for theirs."""


class DurationGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Process group of the operations of a ``DurationBlock``."""

    name: str
    """Name as the source has it: that of torch, or the communicator of NCCL."""
    label: str | None = None
    """Name of the communicator for people, where NCCL knows one."""
    place: int | None = None
    """Place of the rank in the communicator."""
    size: int | None = None
    """Number of ranks in the communicator."""
    ranks: list[int] | None = None
    """Members, where the source lists them."""


class DurationBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Operations of one rank with their durations on the device (``durations-*.jsonl``), as columns of the same length."""

    source: DurationSource
    start_unix_ns: int
    """Time that the columns ``issued_us`` and ``ended_us`` count from."""
    end_unix_ns: int
    """Latest of these times."""
    groups: list[DurationGroup] = []
    ops: list[str] = []
    """Names of operations, as the source spells them."""
    group: list[int] = []
    """Index in ``groups``."""
    op: list[int] = []
    """Index in ``ops``."""
    number: list[int] = []
    """Number of the operation in its group, from NCCL Inspector among those of its kind there."""
    size: list[int] = []
    """Elements of the input, from NCCL Inspector bytes."""
    issued_us: list[int | None] = []
    """Time at which the host enqueued it."""
    ended_us: list[int | None] = []
    duration_us: list[float | None] = []
    """Duration on the device."""
    flags: list[int] = []
    """1: send or receive. 2: part of a batch, whose duration is that of the batch. 4: issued by autograd."""
    bytes: list[int | None] = []
    """Bytes of all inputs and outputs of an all-to-all; an empty column where there is none."""
    lost: int = 0
    """Number of operations before these that were overwritten or could not be read in time."""
    damaged: int = 0
    """Number of records of the source that could not be used."""
    missing: str | None = None
    """Reason why there are no durations from now on; such a block has no operations."""

    @property
    def is_consistent(self) -> bool:
        """True if all columns have the same length and the indices exist: the file may have been written by another user."""
        length = len(self.group)
        columns = (self.op, self.number, self.size, self.issued_us, self.ended_us, self.duration_us, self.flags)
        return (
            all(len(column) == length for column in columns)
            and len(self.bytes) in (0, length)
            and all(0 <= at < len(self.groups) for at in self.group)
            and all(0 <= at < len(self.ops) for at in self.op)
        )
