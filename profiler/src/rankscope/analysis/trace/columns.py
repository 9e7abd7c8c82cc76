"""Reader of Kineto traces, from the 2021 schema to today: JSON in, columns out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.classify import (
    ANNOTATION,
    CPU_COMMUNICATION,
    CPU_OP,
    GPU_ANNOTATION,
    GPU_COPY,
    GPU_KERNEL,
    LAUNCH,
    PYTHON_FUNCTION,
    activity_of_function,
)
from rankscope.analysis.trace.events import EventStream
from rankscope.analysis.trace.files import TraceText
from rankscope.analysis.trace.locations import Location
from rankscope.analysis.trace.possible import MAX_US
from rankscope.analysis.trace.quality import NOWHERE_NS, Checked, DeviceEvents, HostEvents, check, is_near, places, untimed
from rankscope.analysis.trace.schema import (
    ANY_DETAIL_EVENT,
    ANY_EVENT,
    NO_TEXT,
    DetailArgs,
    DetailEvent,
    Device,
    Event,
    EventArgs,
    Label,
    Number,
    Time,
    number,
    process_name,
    read_metadata,
    whole,
)
from rankscope.analysis.trace.vendors import device_events
from rankscope.base.errors import InputError
from rankscope.runs.records import DeviceKind

KERNEL: Final = 0
COPY: Final = 1
OPERATOR: Final = 2
NOTE: Final = 3
LAUNCHED: Final = 4
DEVICE_NOTE: Final = 5
_FUNCTION: Final = 6
"""Python function: kept as an annotation if it is an activity that interrupts training."""
_UNLABELLED: Final = 7
"""Event without a category: work of a device if its process is a device's."""
LEFT_OUT: Final = 8
"""Event of a device without a believable time, or of no known kind."""

RECORDED: Final = 1
BACKWARD: Final = 2
"""Values of ``Trace.autograd``; 0 for operators that autograd did not record, and for all other events."""

# Each argument occurs in some categories only. Reading it from all events would take as long as all other work together.
_WORKS, _LINKS, _MOVES, _OPERATES = (
    np.isin(np.arange(LEFT_OUT + 1), kinds) for kinds in ((KERNEL, COPY), (KERNEL, COPY, LAUNCHED), (COPY, LAUNCHED), (OPERATOR,))
)
_TOLD_BY: Final[dict[str, tuple[NDArray[np.bool_], int]]] = {
    # column: (mask of the categories that have it, value in rows of the others)
    "stream": (_WORKS, -1),
    "device": (_WORKS, -1),
    "grid": (_WORKS, -1),
    "correlation": (_LINKS, -1),
}
_DETAILS_BY: Final[dict[str, tuple[NDArray[np.bool_], int]]] = {
    "graphed": (_WORKS, 0),
    "bytes": (_MOVES, -1),
    "autograd": (_OPERATES, 0),
}

_CATEGORIES: Final[dict[str, int]] = {
    **dict.fromkeys(GPU_KERNEL, KERNEL),
    **dict.fromkeys(GPU_COPY, COPY),
    **dict.fromkeys(CPU_OP, OPERATOR),
    **dict.fromkeys(ANNOTATION, NOTE),
    **dict.fromkeys(LAUNCH, LAUNCHED),
    **dict.fromkeys(GPU_ANNOTATION, DEVICE_NOTE),
    **dict.fromkeys(PYTHON_FUNCTION, _FUNCTION),
}

_UNKNOWN_VENDOR: Final = re.compile(r"^(?!cpu)\w+_(?:(kernel|memcpy|memset)|runtime|driver)$", re.IGNORECASE)
"""Category of another vendor that spells its categories as CUDA's are: ``musa_runtime``, ``gcu_kernel``."""

_ABSURD_TIME_US: Final = 4e15
"""Latest possible Unix time, in the year 2096; with a base of the same size it still fits 64 bits of nanoseconds."""

MAX_ROWS: Final = 100_000_000
MAX_COLLECTIVES: Final = 2_000_000
MAX_THREADS: Final = 1_000_000
MAX_NAME_CHARACTERS: Final = 256 * 1024**2
"""Limits above which a trace is refused: no real trace reaches them, but well-compressed data can."""

_ONE_AFTER_THE_OTHER: Final = frozenset({"cuda", "rocm", "xpu"})
"""Kinds of devices of which the events of a stream run one after the other."""
_PROCESS_NAME: Final = "process_name"
_STEP: Final = "ProfilerStep#"
_COMMUNICATION_NOTES: Final = ("nccl:", *CPU_COMMUNICATION)
_SPELLINGS: Final = 1000
_NO_ARGS: Final = DetailArgs()


class Trace(msgspec.Struct, frozen=True):
    """Trace of one rank as columns, with one row per event that can be work, a launch or an annotation, in file order.

    Times are int64 nanoseconds. They are Unix times if the trace has a base or absolute timestamps, as every trace since 2021
    has. Missing integers are -1.
    """

    path: Location
    rank: int | None
    """Rank by the file's metadata."""
    process: str | None
    """Id of the process that most events of the host are of, as the file spells it."""
    world_size: int | None
    backend: str | None
    host: str | None
    device_kind: DeviceKind
    groups: dict[str, list[int]]
    """Ranks of each process group by name, from ``distributedInfo``."""
    names: list[str]
    """Distinct event names; ``name`` is an index into them."""
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    category: NDArray[np.int8]
    name: NDArray[np.int32]
    thread: NDArray[np.int64]
    """CPU thread, numbered in order of appearance."""
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    device: NDArray[np.int16]
    grid: NDArray[np.int32]
    """Launch grid of a kernel: an index into ``grids``, or -1."""
    bytes: NDArray[np.int64]
    """Bytes moved according to a copy or the call that launched it. Empty, like the next two, unless read in detail."""
    graphed: NDArray[np.bool_]
    """True if the event is marked as a node of a device graph."""
    autograd: NDArray[np.int8]
    """``RECORDED`` for an operator called with gradients on, as in forward; ``BACKWARD`` for an operator of a backward pass."""
    metadata: dict[int, EventArgs] = msgspec.field(default_factory=dict)
    """Communication arguments by row, for rows that have them, and for annotations of communication."""
    grids: list[str] = msgspec.field(default_factory=list)
    """Launch grids as the trace spells them."""
    gpu_names: list[str] = msgspec.field(default_factory=list)
    """Names of the host's accelerators that this process saw."""
    events: int = 0
    """Number of events in the file, used or not."""
    damaged: int = 0
    """Number of events left out because their times or types are invalid."""
    torn: str | None = None
    """Reason why the file ends too early, so that later events are missing; ``None`` for a complete file."""
    quality: DataQuality = DataQuality(device_events=0)
    missing: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    """Launch times of the device events that are missing or left out, ascending; those of cut ones are in ``cut``."""
    cut: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    cut_ends: dict[int, int] = msgspec.field(default_factory=dict)
    """End of each device event that was cut, by its correlation id."""
    is_of_cpu: bool = False
    """True if the work is on the CPU: nothing ran on a device, and nothing was launched."""

    @property
    def has_device_work(self) -> bool:
        """True if anything ran on an accelerator."""
        return bool((self.category <= COPY).any())

    @property
    def extent(self) -> tuple[int, int] | None:
        """First start and last end of the rows that are not left out; ``None`` without any."""
        used = self.category != LEFT_OUT
        return (int(self.start[used].min()), int(self.end[used].max())) if used.any() else None

    def rows(self, category: int) -> NDArray[np.intp]:
        """Return the indices of the events of one category."""
        return np.flatnonzero(self.category == category)


def read_trace(path: Location, *, detail: bool = True) -> Trace:
    """Read one trace: plain, gzip or Zstandard; an object or a bare list of events.

    Memory holds the columns and one part of the file. Without ``detail``, which takes a fifth of the time, some columns are
    empty. A trace that is cut off or damaged is used as far as possible; see ``torn`` and ``damaged``. Raises ``InputError`` with
    the file and the reason: missing, empty, not JSON, JSON but no trace, hostile, or without any compute.
    """
    text = TraceText(path)
    columns = _Columns(path, detail=detail)
    stream = EventStream[Any](path, text, ANY_DETAIL_EVENT if detail else ANY_EVENT, columns.needs)
    for events in stream:
        columns.add(events)
    trace = columns.trace(stream, torn=text.torn or stream.torn)
    # Kineto writes the device's events last: a torn trace without them looks like a run on the CPU.
    cut_before_device = trace.torn is not None and len(trace.rows(LAUNCHED)) > 0
    if trace.has_device_work or trace.quality.problem or (len(trace.rows(OPERATOR)) and not cut_before_device):
        return trace
    if trace.torn:
        raise InputError(path, f"truncated: {trace.torn}, before anything that could be analysed")
    raise InputError(path, f"nothing to analyse: neither device work nor CPU operators among its {trace.events} events")


def read_whole_trace(path: Location) -> Trace:
    """Read one trace like ``read_trace``, but raise ``InputError`` also if it is torn."""
    trace = read_trace(path)
    if trace.torn:
        raise InputError(path, f"truncated: {trace.torn}, and all of it is needed")
    return trace


class _Columns:
    """Builder of a trace's columns from its relevant events, part by part."""

    def __init__(self, path: Location, *, detail: bool) -> None:
        self._event = DetailEvent if detail else Event
        self._detail = detail
        self._path = path
        self._parts: list[dict[str, NDArray[Any]]] = []
        self._codes = _Codes()
        self._names = _Names()
        self._threads: _Numbers[tuple[object, object]] = _Numbers()
        self._grids = _Names({bytes(NO_TEXT): -1})
        self._processes: dict[object, str] = {}
        self._metadata: dict[int, EventArgs] = {}
        self._rows = 0
        self._damaged = 0

    def needs(self, category: str | None) -> bool:
        """Return whether figures rest on events of a category."""
        return self._codes[category] not in (-1, _FUNCTION)

    def add(self, events: Sequence[Any]) -> None:
        """Append the relevant ones of some events."""
        codes, names, threads, grids, wanted = self._codes, self._names, self._threads, self._grids, self._event
        found = [codes[event.cat] if type(event) is wanted else -1 for event in events]
        category = _numbers(found, np.int8)
        if not self._rows or None in codes:
            # Only events without a category need the names of processes, which are at the begin or the end of the file.
            self._name_processes(event for event in events if type(event) is Label)
        for row in np.flatnonzero(category == _FUNCTION).tolist():
            category[row] = -1 if activity_of_function(str(events[row].name)) is None else NOTE
        matters = category >= 0
        kept: list[Event] = list(compress(events, matters.tolist()))
        category = category[matters]
        start_us = _floats([event.ts for event in kept])
        length_us = _floats([event.dur for event in kept])
        sane = (np.abs(start_us) < _ABSURD_TIME_US) & (length_us >= 0) & (length_us < MAX_US)
        if not sane.all():
            # A device event without a believable time counts as one without any; its launch tells where it belongs.
            nowhere = ~sane & (category <= COPY)
            start_us[nowhere], length_us[nowhere] = NOWHERE_NS / 1000, 0.0
            sane |= nowhere
            self._damaged += int((~sane).sum())
            kept = [kept[row] for row in np.flatnonzero(sane)]
            start_us, length_us, category = start_us[sane], length_us[sane], category[sane]
        start = _nanoseconds(start_us)
        args = [event.args or _NO_ARGS for event in kept]
        works, links = (_telling(args, category, kinds) for kinds in (_WORKS, _LINKS))
        self._parts.append(
            {
                "start": start,
                "end": start + _nanoseconds(length_us),
                "category": category,
                "name": _numbers([names[event.name] for event in kept], np.int32),
                "thread": _numbers([threads[event.pid, event.tid] for event in kept], np.int64),
                "stream": _wholes([one.stream for one in works]),
                "device": _wholes([one.device for one in works]),
                "grid": _numbers([grids[bytes(one.grid)] for one in works], np.int32),
                "correlation": _wholes([one.correlation for one in links]),
            }
            | (self._details(args, category) if self._detail else {})
        )
        self._describe(kept, args, np.flatnonzero(category == NOTE))
        self._rows += len(kept)
        self._check_size()

    def _name_processes(self, labels: Iterable[Label]) -> None:
        for label in labels:
            if label.name == _PROCESS_NAME and len(self._processes) < _SPELLINGS:
                self._processes[label.pid] = process_name(label)

    def _details(self, args: Sequence[Any], category: NDArray[np.int8]) -> dict[str, NDArray[Any]]:
        works, moves, operators = (_telling(args, category, kinds) for kinds in (_WORKS, _MOVES, _OPERATES))
        return {
            "graphed": _wholes([one.graph_node for one in works]) > 0,
            "bytes": _wholes([one.bytes for one in moves]),
            "autograd": _autograd(operators),
        }

    def _describe(self, kept: Sequence[Event], args: Sequence[EventArgs], notes: NDArray[np.intp]) -> None:
        """Keep the communication arguments of events."""
        said = [row for row, one in enumerate(args) if one.collective]
        said += [row for row in notes.tolist() if kept[row].args and str(kept[row].name).startswith(_COMMUNICATION_NOTES)]
        for row in said:
            self._metadata[self._rows + row] = args[row].detached()

    def _check_size(self) -> None:
        """Raise ``InputError`` for a trace that would fill memory; the size of a well-compressed file does not show this."""
        for count, limit, what in (
            (self._rows, MAX_ROWS, "events"),
            (len(self._metadata), MAX_COLLECTIVES, "collectives"),
            (len(self._threads), MAX_THREADS, "threads"),
            (self._names.characters + self._grids.characters, MAX_NAME_CHARACTERS, "characters of different names"),
        ):
            if count > limit:
                raise InputError(self._path, f"too large to analyse: more than {limit} {what}")

    def trace(self, stream: EventStream[Any], torn: str | None) -> Trace:
        """Return the trace of all added events, with the file's metadata."""
        about = read_metadata(stream.said)
        self.add([])  # so that there are columns
        columns = {column: self._joined(column) for column in list(self._parts[0])}
        for column, (kinds, missing) in (_TOLD_BY | (_DETAILS_BY if self._detail else {})).items():
            columns[column] = _placed(kinds[columns["category"]], columns[column], missing)
        if not self._detail:
            columns |= self._details([], columns["category"][:0])
        columns["device"] = np.where(columns["device"] < 2**15, columns["device"], -1).astype(np.int16)
        names = [str(name) for name in self._names]
        calls = {names[at] for at in set(columns["name"][columns["category"] == LAUNCHED].tolist())}
        categories = {str(category) for category, code in self._codes.items() if code >= 0}
        device_kind = "other" if self._label(columns, names) else _device_kind(about.devices, categories, calls)
        checked = _check(columns, names, about.base_unix_ns, device_kind, torn=torn is not None)
        columns["start"] += about.base_unix_ns
        columns["end"] += about.base_unix_ns
        distributed = about.distributed
        return Trace(
            path=self._path,
            rank=distributed.rank,
            process=self._process(columns),
            world_size=distributed.world_size,
            backend=distributed.backend,
            host=about.host,
            device_kind=device_kind if checked.launches_work or (columns["category"] <= COPY).any() else "cpu",
            groups=distributed.groups(),
            names=names,
            metadata=self._metadata,
            grids=[spelling.decode("utf-8", "replace") if isinstance(spelling, bytes) else "" for spelling in self._grids],
            gpu_names=[device.name for device in about.devices if device.name],
            events=stream.events,
            damaged=stream.damaged + self._damaged + checked.host_left_out,
            torn=torn,
            quality=checked.quality,
            missing=checked.missing + about.base_unix_ns,
            cut=checked.cut + about.base_unix_ns,
            cut_ends={correlation: end + about.base_unix_ns for correlation, end in checked.cut_ends.items()},
            is_of_cpu=not checked.launches_work and not (columns["category"] <= COPY).any(),
            **columns,
        )

    def _label(self, columns: Mapping[str, NDArray[Any]], names: Sequence[str]) -> bool:
        """Give the events without a category one, and steps that are told as operators theirs.

        Return whether there is any device event among them.
        """
        category, name = columns["category"], columns["name"]
        if None not in self._codes:
            return False
        step = np.array([spelling.startswith(_STEP) for spelling in names], dtype=bool)
        category[step[name] & (category == OPERATOR)] = NOTE
        unlabelled = np.flatnonzero(category == _UNLABELLED)
        category[unlabelled] = LEFT_OUT
        if not self._processes or not len(unlabelled):
            return False
        numbers: _Numbers[object] = _Numbers()
        process_of = np.array([numbers[pid] for pid, _ in self._threads], dtype=np.int64)
        processes = {numbers[pid]: name for pid, name in self._processes.items()}
        thread = columns["thread"][unlabelled]
        works = device_events(names, name[unlabelled], process_of[thread], processes)
        category[unlabelled[works]] = KERNEL
        columns["stream"][unlabelled[works]] = thread[works]
        return bool(works.any())

    def _process(self, columns: Mapping[str, NDArray[Any]]) -> str | None:
        counts = np.bincount(columns["thread"][(columns["category"] >= OPERATOR) & (columns["category"] <= LAUNCHED)])
        by_process: dict[object, int] = {}
        for (pid, _), count in zip(self._threads, counts.tolist(), strict=False):
            by_process[pid] = by_process.get(pid, 0) + count
        return str(max(by_process, key=lambda pid: by_process[pid])) if any(by_process.values()) else None

    def _joined(self, column: str) -> NDArray[Any]:
        # Columns release their parts one by one, so that memory never holds all data twice.
        return np.concatenate([part.pop(column) for part in self._parts])


def _check(columns: Mapping[str, NDArray[Any]], names: Sequence[str], base_ns: int, kind: DeviceKind, *, torn: bool) -> Checked:
    """Check the times of a trace's events, mark those that are left out, and cut those that last too long.

    Times have no base yet.
    """
    start, end, category = columns["start"], columns["end"], columns["category"]
    device = np.flatnonzero(category <= COPY)
    host = np.flatnonzero((category >= OPERATOR) & (category <= LAUNCHED))
    begin, done, latest = start[host], end[host], int(start.max(initial=0))
    timed = ~untimed(begin, done, base_ns, latest, on_device=False)
    near = places(begin[timed], done[timed])
    timed &= is_near(begin, near)
    left_out = host[~timed]
    category[left_out] = LEFT_OUT
    if len(left_out):
        host, begin, done = host[timed], begin[timed], done[timed]
    calls = np.flatnonzero(category[host] == LAUNCHED)
    # Numbers of streams are below 2**46. The queues of other devices are not known to run one event after the other.
    queue = (columns["stream"][device] << 16) + columns["device"][device].astype(np.int64) + 1
    in_order = (columns["stream"][device] >= 0) & (kind in _ONE_AFTER_THE_OTHER)
    checked = check(
        DeviceEvents(
            start=start[device],
            end=end[device],
            queue=np.where(in_order, queue, -1),
            correlation=columns["correlation"][device],
            kernel=(columns["name"][device].astype(np.int64) << 32) + columns["grid"][device] + 1,
            untimed=untimed(start[device], end[device], base_ns, latest, on_device=True),
        ),
        HostEvents(
            start=begin,
            end=done,
            places=near,
            calls=calls,
            correlation=columns["correlation"][host[calls]],
            names=names,
            name=columns["name"][host[calls]],
        ),
        torn=torn,
    )
    category[device[~checked.keep]] = LEFT_OUT
    end[device] = checked.end
    return msgspec.structs.replace(checked, host_left_out=len(left_out))


class _Codes(dict[str | None, int]):
    """Category codes by their spelling in the file; -1 for irrelevant categories."""

    def __missing__(self, category: str | None) -> int:
        code = _UNLABELLED if category is None else _CATEGORIES.get(category.lower(), -1)
        if code < 0 and (found := _UNKNOWN_VENDOR.search(category or "")):
            code = {"kernel": KERNEL, "memcpy": COPY, "memset": COPY}.get(found[1] or "", LAUNCHED)
        if len(self) < _SPELLINGS:
            self[category] = code
        return code


_K = TypeVar("_K")
_N = TypeVar("_N", bound=np.generic)
_T = TypeVar("_T")


class _Numbers(dict[_K, int]):
    """Numbers of keys, in the order in which they are first seen."""

    def __missing__(self, key: _K) -> int:
        self[key] = number = len(self)
        return number


class _Names(_Numbers[str | float | bytes | None]):
    """Numbers of names, which may be of any length; counts their characters."""

    characters = 0

    def __missing__(self, key: str | float | bytes | None) -> int:
        self.characters += len(str(key))
        return super().__missing__(key)


def _numbers(values: Sequence[float | str | None], kind: type[_N]) -> NDArray[_N]:
    # Twice as fast as np.array, which first inspects the type of every value.
    return np.fromiter(values, kind, len(values))


def _floats(values: list[Time]) -> NDArray[np.float64]:
    """Return the values as floats, NaN where there is none."""
    try:
        return _numbers(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        return np.array([number(value) for value in values], dtype=np.float64)


def _wholes(values: list[Number]) -> NDArray[np.int64]:
    """Return the values as integers, -1 where there is none."""
    try:
        found = _numbers(values, np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([whole(value) for value in values], dtype=np.int64)
    return np.where((found < -1) | (found >= 2**62), -1, found)


def _telling(args: Sequence[_T], category: NDArray[np.int8], kinds: NDArray[np.bool_]) -> list[_T]:
    """Return the arguments of the events whose category is in the mask ``kinds``."""
    return list(compress(args, kinds[category].tolist()))


def _placed(rows: NDArray[np.bool_], values: NDArray[_N], missing: int) -> NDArray[_N]:
    """Return a column with ``values`` where the mask ``rows`` is true, and ``missing`` elsewhere."""
    column = np.full(len(rows), missing, dtype=values.dtype)
    column[rows] = values
    return column


def _autograd(args: Sequence[DetailArgs]) -> NDArray[np.int8]:
    recorded = _wholes([one.autograd_sequence for one in args]) >= 0
    backward = _wholes([one.forward_thread for one in args]) > 0
    return np.where(recorded, np.where(backward, BACKWARD, RECORDED), 0).astype(np.int8)


def _nanoseconds(us: NDArray[np.float64]) -> NDArray[np.int64]:
    # Whole and fraction separately: 1.7e15 us (Unix time) times 1000 exceeds what a float64 holds exactly.
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _device_kind(devices: Sequence[Device], categories: Collection[str], calls: Iterable[str]) -> DeviceKind:
    """Return the kind of the device, from device names, event categories and names of runtime calls."""
    said = " ".join(device.name or "" for device in devices).lower()
    if "amd" in said or "instinct" in said or any(call.startswith("hip") for call in calls):
        return "rocm"
    if any(category.startswith("xpu_") for category in categories):
        return "xpu"
    if any(category.startswith(("mtia_", "privateuse1_")) for category in categories):
        return "other"
    return "cuda"
