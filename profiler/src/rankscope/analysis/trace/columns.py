"""Reader of Kineto traces, from the 2021 schema to today: JSON in, columns out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.trace.categories import (
    COPY,
    DETAIL_ARGUMENTS,
    EVENT_ARGUMENTS,
    FUNCTION,
    LAUNCHED,
    LEFT_OUT,
    LINKS,
    MOVES,
    NOTE,
    OPERATES,
    OPERATOR,
    WORKS,
    CategoryCodes,
    device_kind,
    label_events,
    number_streams,
)
from rankscope.analysis.trace.classify import CPU_COMMUNICATION, activity_of_function
from rankscope.analysis.trace.event_stream import EventStream
from rankscope.analysis.trace.event_times import NOWHERE_NS
from rankscope.analysis.trace.locations import Location
from rankscope.analysis.trace.merged import ranks_in_file
from rankscope.analysis.trace.numbering import (
    NameNumbering,
    Numbering,
    are_named,
    args_of,
    array_of,
    floats_of,
    integers_of,
    nanoseconds,
    placed,
    process_id,
    processes_of,
)
from rankscope.analysis.trace.possible import MAX_US
from rankscope.analysis.trace.quality import check_columns
from rankscope.analysis.trace.schema import (
    ANY_DETAIL_EVENT,
    ANY_EVENT,
    NO_TEXT,
    PROCESS_NAME,
    DetailArgs,
    DetailEvent,
    EventArgs,
    Label,
    Metadata,
    TraceEvent,
    process_name,
    read_metadata,
)
from rankscope.analysis.trace.trace_text import TraceText
from rankscope.base.errors import InputError
from rankscope.runs.records import DeviceKind

RECORDED: Final = 1
BACKWARD: Final = 2
"""Values of ``Trace.autograd``; 0 for operators that autograd did not record, and for all other events."""

_ABSURD_TIME_US: Final = 4e15
"""Latest possible Unix time, in the year 2096; with a base of the same size it still fits 64 bits of nanoseconds."""

MAX_ROWS: Final = 100_000_000
MAX_COLLECTIVES: Final = 2_000_000
MAX_THREADS: Final = 1_000_000
MAX_NAME_CHARACTERS: Final = 256 * 1024**2
"""Limits above which a trace is refused: no real trace reaches them, but well-compressed data can."""

_COMMUNICATION_NOTES: Final = ("nccl:", *CPU_COMMUNICATION)
_PROCESSES: Final = 1000
"""Number of processes whose names are kept."""
_OWN_SCHEMA: Final = "rankscope."
_NO_ARGS: Final = DetailArgs()


class Trace(msgspec.Struct, frozen=True):
    """Trace of one rank as columns, with one row per event that can be work, a launch or an annotation, in file order.

    Times are int64 nanoseconds. They are Unix times if the trace has a base or absolute timestamps, as every trace since 2021
    has. Missing integers are -1.
    """

    path: Location
    rank: int | None
    """Rank by the file's metadata, or of the process in a file of several ranks."""
    process: str | None
    """Id of the process that most events of the host are of, or its label in a file of several ranks."""
    processes: frozenset[str] | None
    """Ids of the rank's processes in a file of several ranks; ``None`` for the usual file of one."""
    world_size: int | None
    host: str | None
    device_kind: DeviceKind
    """``cpu`` if the work is on the CPU: nothing ran on a device, and nothing was launched."""
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
    communication_args: dict[int, EventArgs] = msgspec.field(default_factory=dict)
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

    @property
    def has_device_work(self) -> bool:
        """True if anything ran on an accelerator."""
        return bool((self.category <= COPY).any())

    @property
    def extent(self) -> tuple[int, int] | None:
        """First start and last end of the rows that are not left out; ``None`` without any."""
        used = self.category != LEFT_OUT
        return (int(self.start[used].min()), int(self.end[used].max())) if used.any() else None

    def named(self, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
        """Return which events have a ``wanted`` name, [events]."""
        return are_named(self.names, self.name, wanted)

    def rows(self, category: int, prefix: str | tuple[str, ...] = "") -> NDArray[np.intp]:
        """Return the indices of the events of one category, of those whose name begins with a ``prefix``."""
        rows = np.flatnonzero(self.category == category)
        return rows[are_named(self.names, self.name[rows], lambda name: name.startswith(prefix))] if prefix else rows


def read_traces(path: Location, *, detail: bool = True, complete_only: bool = False, of_run: bool = False) -> list[Trace]:
    """Read the traces in a file, ordered by rank: usually one.

    The file is plain, gzip or Zstandard; an object or a bare list of events.

    Memory holds the columns and one part of the file. Without ``detail``, which takes a fifth of the time, some columns are
    empty. A trace that is cut off or damaged is used as far as possible; see ``torn`` and ``damaged``. Raises ``InputError`` with
    the file and the reason: missing, empty, not JSON, JSON but no trace, hostile, without any compute, of several ranks that
    cannot be taken apart, or cut off although it is needed as a ``complete_only``. ``of_run``: see ``open_location``.
    """
    text = TraceText(path, of_run=of_run)
    columns = _TraceBuilder(path, detail=detail)
    stream = EventStream[Any](path, text, ANY_DETAIL_EVENT if detail else ANY_EVENT, columns.needs)
    for events in stream:
        columns.add(events)
    traces = columns.traces(stream, torn=text.torn or stream.torn)
    for trace in traces:
        _check_work(trace)
        if complete_only and trace.torn:
            raise InputError(path, f"truncated: {trace.torn}, and all of it is needed")
    return traces


def read_trace(path: Location, *, detail: bool = True, complete_only: bool = False, of_run: bool = False) -> Trace:
    """Read a file of one rank like ``read_traces``; raise ``InputError`` if it has several."""
    trace, *others = read_traces(path, detail=detail, complete_only=complete_only, of_run=of_run)
    if others:
        raise InputError(path, f"the traces of {len(others) + 1} ranks merged into one file; give the files before merging")
    return trace


def _check_work(trace: Trace) -> None:
    """Raise ``InputError`` for a trace without any work."""
    # Kineto writes the device's events last: a torn trace without them looks like a run on the CPU.
    cut_before_device = trace.torn is not None and len(trace.rows(LAUNCHED)) > 0
    if trace.has_device_work or trace.quality.problem or (len(trace.rows(OPERATOR)) and not cut_before_device):
        return
    if trace.torn:
        raise InputError(trace.path, f"truncated: {trace.torn}, before anything that could be analysed")
    raise InputError(trace.path, f"nothing to analyse: neither device work nor CPU operators among its {trace.events} events")


class _TraceBuilder:
    """Builder of a trace's columns from its relevant events, part by part."""

    def __init__(self, path: Location, *, detail: bool) -> None:
        self._event = DetailEvent if detail else TraceEvent
        self._detail = detail
        self._path = path
        self._parts: list[dict[str, NDArray[Any]]] = []
        self._codes = CategoryCodes()
        self._names = NameNumbering()
        self._threads: Numbering[tuple[object, object]] = Numbering()
        self._grids = NameNumbering({bytes(NO_TEXT): -1})
        self._processes: dict[str, str] = {}
        self._communication_args: dict[int, EventArgs] = {}
        self._rows = 0
        self._damaged = 0

    def needs(self, category: str | None) -> bool:
        """Return whether figures rest on events of a category."""
        return self._codes[category] not in (-1, FUNCTION)

    def add(self, events: Sequence[Any]) -> None:
        """Append the relevant ones of some events."""
        codes, names, threads, grids, wanted = self._codes, self._names, self._threads, self._grids, self._event
        codes_found = [codes[event.cat] if type(event) is wanted else -1 for event in events]
        category = array_of(codes_found, np.int8)
        if not self._rows or None in codes:
            # Only events without a category need the names of processes, which are at the begin or the end of the file.
            self._name_processes(event for event in events if type(event) is Label)
        for row in np.flatnonzero(category == FUNCTION).tolist():
            category[row] = -1 if activity_of_function(str(events[row].name)) is None else NOTE
        is_relevant = category >= 0
        relevant: list[TraceEvent] = list(compress(events, is_relevant.tolist()))
        category = category[is_relevant]
        start_us = floats_of([event.ts for event in relevant])
        length_us = floats_of([event.dur for event in relevant])
        sane = (np.abs(start_us) < _ABSURD_TIME_US) & (length_us >= 0) & (length_us < MAX_US)
        if not sane.all():
            # A device event without a believable time counts as one without any; its launch tells where it belongs.
            nowhere = ~sane & (category <= COPY)
            start_us[nowhere], length_us[nowhere] = NOWHERE_NS / 1000, 0.0
            sane |= nowhere
            self._damaged += int((~sane).sum())
            relevant = [relevant[row] for row in np.flatnonzero(sane)]
            start_us, length_us, category = start_us[sane], length_us[sane], category[sane]
        start = nanoseconds(start_us)
        args = [event.args or _NO_ARGS for event in relevant]
        works, links = (args_of(args, category, kinds) for kinds in (WORKS, LINKS))
        self._parts.append(
            {
                "start": start,
                "end": start + nanoseconds(length_us),
                "category": category,
                "name": array_of([names[event.name] for event in relevant], np.int32),
                "thread": array_of([threads[event.pid, event.tid] for event in relevant], np.int64),
                "stream": integers_of([work.stream for work in works]),
                "device": integers_of([work.device for work in works]),
                "grid": array_of([grids[bytes(work.grid)] for work in works], np.int32),
                "correlation": integers_of([work.correlation for work in links]),
            }
            | (self._details(args, category) if self._detail else {})
        )
        self._describe(relevant, args, np.flatnonzero(category == NOTE))
        self._rows += len(relevant)
        self._check_size()

    def _name_processes(self, labels: Iterable[Label]) -> None:
        for label in labels:
            if label.name == PROCESS_NAME and len(self._processes) < _PROCESSES:
                self._processes[process_id(label.pid)] = process_name(label)

    def _details(self, args: Sequence[Any], category: NDArray[np.int8]) -> dict[str, NDArray[Any]]:
        works, moves, operators = (args_of(args, category, kinds) for kinds in (WORKS, MOVES, OPERATES))
        return {
            "graphed": integers_of([detail.graph_node for detail in works]) > 0,
            "bytes": integers_of([detail.bytes for detail in moves]),
            "autograd": _autograd(operators),
        }

    def _describe(self, events: Sequence[TraceEvent], args: Sequence[EventArgs], notes: NDArray[np.intp]) -> None:
        """Keep the communication arguments of events."""
        described = [row for row, args_of_row in enumerate(args) if args_of_row.collective]
        described += [
            row for row in notes.tolist() if events[row].args and str(events[row].name).startswith(_COMMUNICATION_NOTES)
        ]
        for row in described:
            self._communication_args[self._rows + row] = args[row].detached()

    def _check_size(self) -> None:
        """Raise ``InputError`` for a trace that would fill memory; the size of a well-compressed file does not show this."""
        for count, limit, what in (
            (self._rows, MAX_ROWS, "events"),
            (len(self._communication_args), MAX_COLLECTIVES, "collectives"),
            (len(self._threads), MAX_THREADS, "threads"),
            (self._names.characters + self._grids.characters, MAX_NAME_CHARACTERS, "characters of different names"),
        ):
            if count > limit:
                raise InputError(self._path, f"too large to analyse: more than {limit} {what}")

    def traces(self, stream: EventStream[Any], torn: str | None) -> list[Trace]:
        """Return the traces of all added events, with the file's metadata."""
        metadata = read_metadata(stream.top_level)
        if metadata.schema.startswith(_OWN_SCHEMA):
            raise InputError(self._path, "written by rankscope export, not by a profiler; give the traces it was made of")
        self.add([])  # so that there are columns
        columns = {column: self._joined(column) for column in list(self._parts[0])}
        for column, (kinds, missing) in (EVENT_ARGUMENTS | (DETAIL_ARGUMENTS if self._detail else {})).items():
            columns[column] = placed(kinds[columns["category"]], columns[column], missing)
        columns["device"] = np.where(columns["device"] < 2**15, columns["device"], -1).astype(np.int16)
        names = [str(name) for name in self._names]
        processes = processes_of(self._threads, self._processes)
        kind: DeviceKind | None = "other" if label_events(columns, names, processes) else None
        number_streams(columns)
        read = partial(
            self._trace, metadata=metadata, names=names, kind=kind, torn=torn, events=stream.events, damaged=stream.damaged
        )
        # Before anything is linked: ranks count streams, devices and correlation ids each from the begin.
        ranks = ranks_in_file(
            self._path, columns, names, processes, self._communication_args, world_size=metadata.distributed.world_size
        )
        if not ranks:
            return [read(columns, self._communication_args)]
        traces = []
        for rank in ranks:
            position = np.cumsum(rank.rows) - 1
            of_rank = {int(position[row]): args for row, args in self._communication_args.items() if rank.rows[row]}
            trace = read({column: values[rank.rows] for column, values in columns.items()}, of_rank)
            # The file's metadata are those of one rank; another may have been on another host.
            about_rank = {"rank": rank.rank, "process": rank.process, "processes": rank.processes}
            traces.append(msgspec.structs.replace(trace, **about_rank, host=None))
        return traces

    def _trace(
        self,
        columns: dict[str, NDArray[Any]],
        communication_args: dict[int, EventArgs],
        *,
        metadata: Metadata,
        names: list[str],
        kind: DeviceKind | None,
        torn: str | None,
        events: int,
        damaged: int,
    ) -> Trace:
        """Return the trace of one rank. ``kind``: that of its device, as far as events without a category tell it."""
        if not self._detail:
            columns |= self._details([], columns["category"][:0])
        calls = {names[at] for at in set(columns["name"][columns["category"] == LAUNCHED].tolist())}
        categories = {str(category) for category, code in self._codes.items() if code >= 0}
        kind = kind or device_kind(metadata.devices, categories, calls)
        checked = check_columns(columns, names, metadata.base_unix_ns, kind, torn=torn is not None)
        columns["start"] += metadata.base_unix_ns
        columns["end"] += metadata.base_unix_ns
        distributed = metadata.distributed
        return Trace(
            path=self._path,
            rank=distributed.rank,
            process=self._process(columns),
            processes=None,
            world_size=distributed.world_size,
            host=metadata.host,
            device_kind=kind if checked.launches_work or (columns["category"] <= COPY).any() else "cpu",
            groups=distributed.groups(),
            names=names,
            communication_args=communication_args,
            grids=[spelling.decode("utf-8", "replace") if isinstance(spelling, bytes) else "" for spelling in self._grids],
            gpu_names=[device.name for device in metadata.devices if device.name],
            events=events,
            damaged=damaged + self._damaged + checked.host_left_out,
            torn=torn,
            quality=checked.quality,
            missing=checked.missing + metadata.base_unix_ns,
            cut=checked.cut + metadata.base_unix_ns,
            **columns,
        )

    def _process(self, columns: Mapping[str, NDArray[Any]]) -> str | None:
        counts = np.bincount(columns["thread"][(columns["category"] >= OPERATOR) & (columns["category"] <= LAUNCHED)])
        by_process: dict[object, int] = {}
        for (pid, _), count in zip(self._threads, counts.tolist(), strict=False):
            by_process[pid] = by_process.get(pid, 0) + count
        return str(max(by_process, key=lambda pid: by_process[pid])) if any(by_process.values()) else None

    def _joined(self, column: str) -> NDArray[Any]:
        # Columns release their parts one by one, so that memory never holds all data twice.
        return np.concatenate([part.pop(column) for part in self._parts])


def _autograd(args: Sequence[DetailArgs]) -> NDArray[np.int8]:
    recorded = integers_of([args_of_event.autograd_sequence for args_of_event in args]) >= 0
    backward = integers_of([args_of_event.forward_thread for args_of_event in args]) > 0
    return np.where(recorded, np.where(backward, BACKWARD, RECORDED), 0).astype(np.int8)
