"""Schema of the parts of a Kineto trace's JSON that the analysis reads."""

from __future__ import annotations

import functools
import math
import operator
import string
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

_T = TypeVar("_T")
Number = int | float | str | None
Time = float | str | None
NO_TEXT: Final = msgspec.Raw()
"""Value of a raw field that is missing."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class EventArgs(msgspec.Struct, frozen=True, gc=False):
    """Event arguments that the analysis uses, most of them of communication events."""

    stream: Number = -1
    device: Number = -1
    correlation: Number = -1
    collective: str | None = msgspec.field(name="Collective name", default=None)
    in_elements: Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=None)
    dtype: str | None = None
    group_size: Number = msgspec.field(name="Group size", default=None)
    group_name: str | int | None = msgspec.field(name="Process Group Name", default=None)
    group_ranks: str | list[int] | None = msgspec.field(name="Process Group Ranks", default=None)
    in_split: str | list[int] | None = msgspec.field(name="In split size", default=None)
    out_split: str | list[int] | None = msgspec.field(name="Out split size", default=None)
    sequence: Number = msgspec.field(name="Seq", default=None)
    source_rank: Number = msgspec.field(name="Src Rank", default=None)
    destination_rank: Number = msgspec.field(name="Dst Rank", default=None)
    external_id: Number = msgspec.field(name="External id", default=None)
    rank: Number = msgspec.field(name="Rank", default=None)
    """Root of a rooted collective, as its position in the group; for other events the rank itself."""
    input_shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_TEXT)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=NO_TEXT)
    grid: msgspec.Raw = NO_TEXT
    """Grid of a kernel in blocks, usually a list of three numbers; only compared, never decoded."""

    def detached(self) -> EventArgs:
        """Return a copy that does not keep the surrounding text in memory: raw fields refer to that text."""
        fields = {name: getattr(self, name) for name in EventArgs.__struct_fields__}
        return EventArgs(**fields | {name: getattr(self, name).copy() for name in ("input_shapes", "input_types", "grid")})


class DetailArgs(EventArgs, frozen=True, gc=False):
    """Event arguments that the detailed analysis uses in addition."""

    bytes: Number = -1
    """Bytes moved by a copy."""
    graph_node: Number = msgspec.field(name="graph node id", default=-1)
    """Node id of a kernel or copy in a device graph; 0 or missing for work launched without a graph."""
    autograd_sequence: Number = msgspec.field(name="Sequence number", default=-1)
    """Autograd's number of a forward operator; its backward operator has the same number."""
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=-1)
    """Thread of the forward operator of a backward operator; 0 on forward operators."""


class TraceEvent(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """Event with a duration; in damaged files numbers may be missing or strings."""

    cat: str | None = None
    name: str | int | float | None = None
    ts: Time = math.nan
    dur: Time = math.nan
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: EventArgs | None = None


class DetailEvent(TraceEvent, frozen=True, gc=False, tag_field="ph", tag="X"):
    """Event with the arguments of ``DetailArgs``."""

    args: DetailArgs | None = None


class Mark(msgspec.Struct, frozen=True, gc=False):
    """Event of any other kind, such as a flow, an instant or the name of a process; no field of it is decoded."""


PROCESS_NAME: Final = "process_name"
"""Name of the labels that give the names of processes."""


class Label(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="M"):
    """Metadata of a process or thread, such as its name."""

    name: Any = None
    pid: Any = None
    args: msgspec.Raw = NO_TEXT


class MergedArgs(msgspec.Struct, frozen=True, gc=False):
    """Argument that a tool adds to all events when it merges the traces of several ranks."""

    rank: msgspec.Raw = NO_TEXT


class MergedEvent(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """Event of a merged file: its process, and the rank if it has one."""

    pid: Any = None
    args: MergedArgs | None = None


class _NameArgs(msgspec.Struct):
    name: str | int | float | None = None


def process_name(label: Label) -> str:
    """Return the name that a label gives; empty where it is missing or invalid."""
    try:
        return str(msgspec.json.decode(label.args, type=_NameArgs).name or "")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


_MARKS = [
    msgspec.defstruct(f"Mark_{kind}", [], bases=(Mark,), frozen=True, gc=False, tag_field="ph", tag=kind)
    for kind in (*string.ascii_letters, "(", ")")
    if kind not in {"X", "M"}
]
ANY_EVENT: Any = functools.reduce(operator.or_, _MARKS, TraceEvent | Label)
"""Type to decode, ``Event | Label | Mark``. Marks are half of a trace; only their kind is decoded."""
ANY_DETAIL_EVENT: Any = functools.reduce(operator.or_, _MARKS, DetailEvent | Label)
"""Type to decode for the detailed analysis, ``DetailEvent | Label | Mark``."""

ANY_MERGED_EVENT: Any = functools.reduce(operator.or_, _MARKS, MergedEvent | Label)
"""Type to decode for the processes of a merged file, ``MergedEvent | Label | Mark``."""


class TraceGroup(msgspec.Struct, frozen=True):
    """Process group in ``distributedInfo``."""

    pg_name: str | int | None = None
    ranks: list[_Count] | None = None


class DistributedInfo(msgspec.Struct, frozen=True):
    """Content of ``distributedInfo``: the rank that wrote the trace, and its process groups."""

    rank: _Count | None = None
    world_size: _Count | None = None
    pg_config: list[TraceGroup] | None = None

    def groups(self) -> dict[str, list[int]]:
        """Return the ranks of each process group by its name."""
        named = [group for group in self.pg_config or [] if group.pg_name is not None and group.ranks]
        return {str(group.pg_name): group.ranks or [] for group in named}


class Device(msgspec.Struct, frozen=True):
    """Accelerator of the machine."""

    name: str | None = None


class _OtherData(msgspec.Struct, frozen=True):
    """Content of ``otherData``, which the program that wrote the file chooses."""

    schema: str = ""


class Metadata(msgspec.Struct, frozen=True):
    """Metadata of a trace, besides its events."""

    distributed: DistributedInfo = DistributedInfo()
    devices: Sequence[Device] = ()
    host: str | None = None
    base_unix_ns: int = 0
    schema: str = ""
    """Schema of a file that rankscope wrote."""


def read_metadata(metadata: Mapping[str, msgspec.Raw]) -> Metadata:
    """Return the metadata in the top-level keys of a file; invalid values count as missing."""
    base = _optional(metadata, "baseTimeNanoseconds", int)
    return Metadata(
        distributed=_optional(metadata, "distributedInfo", DistributedInfo) or DistributedInfo(),
        devices=_optional(metadata, "deviceProperties", list[Device]) or (),
        host=_optional(metadata, "host_name", str),
        base_unix_ns=base if base is not None and 0 <= base < 2**62 else 0,
        schema=(_optional(metadata, "otherData", _OtherData) or _OtherData()).schema,
    )


def _optional(metadata: Mapping[str, msgspec.Raw], key: str, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(metadata[key], type=kind)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def number(value: Number) -> float:
    """Convert a number that may be written as a string to float; NaN where it is missing or invalid."""
    try:
        return math.nan if value is None else float(value)
    except (ValueError, OverflowError):
        return math.nan


def rank_of(text: msgspec.Raw) -> int | None:
    """Return the rank in the raw value of an argument; ``None`` where it is missing or invalid."""
    try:
        return msgspec.json.decode(text, type=_Count)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def whole_number(value: Number) -> int:
    """Convert a whole number that may be written as a float or string; -1 where it is missing or invalid."""
    try:
        number = -1 if value is None else int(value)
    except (ValueError, OverflowError):
        return -1
    return number if -1 <= number < 2**62 else -1


def integer(value: Number) -> int | None:
    """Convert to a non-negative whole number; ``None`` where it is missing, invalid or negative."""
    number = whole_number(value)
    return None if number < 0 else number
