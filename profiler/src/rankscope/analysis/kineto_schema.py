"""The JSON of a Kineto trace, as far as it matters here, and its decoding."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rankscope.analysis.trace_file import repair
from rankscope.runs.errors import InputError

_T = TypeVar("_T")
Number = int | float | str | None


class EventArgs(msgspec.Struct, frozen=True):
    """The few arguments of an event that mean something here; what communication events say about themselves."""

    stream: Number = None
    device: Number = None
    correlation: Number = None
    bytes: Number = None
    """What a copy moves."""
    grid: Any = None
    """Blocks of a kernel, usually a list of three numbers; only compared, never read."""
    graph_node: Number = msgspec.field(name="graph node id", default=None)
    """Node of the device graph that a kernel or copy is; 0 or missing where it was launched by itself."""
    autograd_sequence: Number = msgspec.field(name="Sequence number", default=None)
    """Of an operator that autograd saw: the forward operator's number, on its backward, too."""
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=None)
    """Of a backward operator: the thread of its forward operator. 0 on forward operators."""
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
    input_shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))

    def detached(self) -> EventArgs:
        """The same without a hold on the whole file's text, of which raw fields are a part."""
        shapes, types = self.input_shapes.copy(), self.input_types.copy()
        return msgspec.structs.replace(self, input_shapes=shapes, input_types=types)


class Event(msgspec.Struct, frozen=True):
    """One event of any kind; numbers may be missing or strings in damaged files."""

    ph: str | None = None
    cat: str | None = None
    name: str | int | float | None = None
    ts: Number = None
    dur: Number = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: EventArgs | None = None


class Group(msgspec.Struct, frozen=True):
    """A process group."""

    pg_name: str | int | None = None
    ranks: list[int] | None = None


class Distributed(msgspec.Struct, frozen=True):
    """Who wrote the trace."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    pg_config: list[Group] | None = None


class Device(msgspec.Struct, frozen=True):
    """An accelerator of the machine."""

    name: str | None = None


class TraceFile(msgspec.Struct, frozen=True):
    """The whole file."""

    traceEvents: list[Event]  # noqa: N815  # the format's own spelling
    distributedInfo: Distributed | None = None  # noqa: N815
    deviceProperties: list[Device] | None = None  # noqa: N815
    host_name: str | None = None
    baseTimeNanoseconds: int | None = None  # noqa: N815
    traceName: str | None = None  # noqa: N815


class _RawFile(msgspec.Struct, frozen=True):
    """The same, trusting nothing: one odd value must not cost the whole file."""

    traceEvents: list[msgspec.Raw]  # noqa: N815
    distributedInfo: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815
    deviceProperties: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815
    host_name: msgspec.Raw = msgspec.Raw(b"null")
    baseTimeNanoseconds: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815
    traceName: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815


def decode_trace(path: Path, data: bytes) -> tuple[TraceFile, int]:
    """The file's content and the number of events that could not be decoded. Raises ``InputError``."""
    bare = data.lstrip(b" \t\r\n\xef\xbb\xbf")[:1]
    if bare not in (b"{", b"["):
        raise InputError(path, "not JSON: the file does not start with { or [")
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    try:
        return _decode(path, data, is_list=bare == b"[")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        repaired = b"" if _reason(error) == "truncated" else repair(data)
        if not repaired or repaired == data:
            raise _unreadable(path, error) from error
    try:
        return _decode(path, repaired, is_list=bare == b"[")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(path, error) from error


def _decode(path: Path, data: bytes, *, is_list: bool) -> tuple[TraceFile, int]:
    try:
        return _decode_strictly(data, is_list=is_list)
    except msgspec.ValidationError:
        return _decode_leniently(path, data, is_list=is_list)


def _decode_strictly(data: bytes, *, is_list: bool) -> tuple[TraceFile, int]:
    if is_list:
        return TraceFile(traceEvents=msgspec.json.decode(data, type=list[Event])), 0
    return msgspec.json.decode(data, type=TraceFile), 0


def _decode_leniently(path: Path, data: bytes, *, is_list: bool) -> tuple[TraceFile, int]:
    try:
        raw = (
            _RawFile(traceEvents=msgspec.json.decode(data, type=list[msgspec.Raw]))
            if is_list
            else msgspec.json.decode(data, type=_RawFile)
        )
    except msgspec.ValidationError as error:
        raise InputError(path, "JSON, but not a trace: it has no list of traceEvents") from error
    decoder = msgspec.json.Decoder(Event)
    events: list[Event] = []
    for item in raw.traceEvents:
        try:
            events.append(decoder.decode(item))
        except msgspec.DecodeError:
            continue
    file = TraceFile(
        traceEvents=events,
        distributedInfo=_optional(raw.distributedInfo, Distributed),
        deviceProperties=_optional(raw.deviceProperties, list[Device]),
        host_name=_optional(raw.host_name, str),
        baseTimeNanoseconds=_optional(raw.baseTimeNanoseconds, int),
        traceName=_optional(raw.traceName, str),
    )
    return file, len(raw.traceEvents) - len(events)


def _optional(raw: msgspec.Raw, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested"
    return "truncated" if "truncated" in str(error) else "malformed"


def _unreadable(path: Path, error: Exception) -> InputError:
    match _reason(error):
        case "nested":
            return InputError(path, "not a trace: its JSON is nested absurdly deep")
        case "truncated":
            return InputError(path, "truncated: the JSON ends in the middle; was the process killed while writing it?")
        case _:
            return InputError(path, f"not JSON: {error}")


def number(value: Number) -> float:
    """A number that may have been written as a string; NaN where there is none."""
    try:
        return math.nan if value is None else float(value)
    except ValueError:
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
