"""The JSON of a Kineto trace, as far as it matters here."""

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
"""Of a raw field that is not there."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class EventArgs(msgspec.Struct, frozen=True, gc=False):
    """The few arguments of an event that mean something here; what communication events say about themselves."""

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
    """Of a rooted collective the root, as its place in the group; else the rank itself."""
    input_shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_TEXT)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=NO_TEXT)

    def detached(self) -> EventArgs:
        """These arguments alone, without a hold on the text around them, of which raw fields are a part."""
        said = {name: getattr(self, name) for name in EventArgs.__struct_fields__}
        return EventArgs(**said | {"input_shapes": self.input_shapes.copy(), "input_types": self.input_types.copy()})


class DetailArgs(EventArgs, frozen=True, gc=False):
    """What else means something to those who look into details."""

    bytes: Number = -1
    """What a copy moves."""
    grid: msgspec.Raw = NO_TEXT
    """Blocks of a kernel, usually a list of three numbers; only compared, never read."""
    graph_node: Number = msgspec.field(name="graph node id", default=-1)
    """Node of the device graph that a kernel or copy is; 0 or missing where it was launched by itself."""
    autograd_sequence: Number = msgspec.field(name="Sequence number", default=-1)
    """Of an operator that autograd saw: the forward operator's number, on its backward, too."""
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=-1)
    """Of a backward operator: the thread of its forward operator. 0 on forward operators."""


class Event(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """An event that takes time; numbers may be missing or strings in damaged files."""

    cat: str | None = None
    name: str | int | float | None = None
    ts: Time = math.nan
    dur: Time = math.nan
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: EventArgs | None = None


class DetailEvent(Event, frozen=True, gc=False, tag_field="ph", tag="X"):
    """The same with more of its arguments."""

    args: DetailArgs | None = None


class Mark(msgspec.Struct, frozen=True, gc=False):
    """An event of any other kind: a flow, an instant, the name of a process. Nothing of it is read."""


_MARKS = [
    msgspec.defstruct(f"Mark_{kind}", [], bases=(Mark,), frozen=True, gc=False, tag_field="ph", tag=kind)
    for kind in (*string.ascii_letters, "(", ")")
    if kind != "X"
]
ANY_EVENT: Any = functools.reduce(operator.or_, _MARKS, Event)
"""The type to decode: ``Event | Mark``. Marks, half of a trace, are passed over without looking at more than their kind."""
ANY_DETAIL_EVENT: Any = functools.reduce(operator.or_, _MARKS, DetailEvent)
"""``DetailEvent | Mark``."""


class Group(msgspec.Struct, frozen=True):
    """A process group."""

    pg_name: str | int | None = None
    ranks: list[_Count] | None = None


class Distributed(msgspec.Struct, frozen=True):
    """Who wrote the trace."""

    rank: _Count | None = None
    world_size: _Count | None = None
    backend: str | None = None
    pg_config: list[Group] | None = None


class Device(msgspec.Struct, frozen=True):
    """An accelerator of the machine."""

    name: str | None = None


class Metadata(msgspec.Struct, frozen=True):
    """What a trace says besides its events."""

    distributed: Distributed = Distributed()
    devices: Sequence[Device] = ()
    host: str | None = None
    base_unix_ns: int = 0


def read_metadata(said: Mapping[str, msgspec.Raw]) -> Metadata:
    """The metadata out of the file's top-level keys, trusting nothing: an odd value is a missing one."""
    base = _optional(said, "baseTimeNanoseconds", int)
    return Metadata(
        distributed=_optional(said, "distributedInfo", Distributed) or Distributed(),
        devices=_optional(said, "deviceProperties", list[Device]) or (),
        host=_optional(said, "host_name", str),
        base_unix_ns=base if base is not None and 0 <= base < 2**62 else 0,
    )


def _optional(said: Mapping[str, msgspec.Raw], key: str, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(said[key], type=kind)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def number(value: Number) -> float:
    """A number that may have been written as a string; NaN where there is none."""
    try:
        return math.nan if value is None else float(value)
    except (ValueError, OverflowError):
        return math.nan


def whole(value: Number) -> int:
    """A whole number that may have been written as a float or string; -1 where there is none."""
    try:
        found = -1 if value is None else int(value)
    except (ValueError, OverflowError):
        return -1
    return found if -1 <= found < 2**62 else -1


def integer(value: Number) -> int | None:
    """A whole number that is not negative, or ``None``."""
    found = whole(value)
    return None if found < 0 else found
