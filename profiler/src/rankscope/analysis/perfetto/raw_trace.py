"""All events of one Kineto trace, with their arguments, as tracks: one per CPU thread and device stream, arrows between them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from typing import Final

import msgspec

from rankscope.analysis.perfetto.chrome_json import Thread, TraceWriter, Track
from rankscope.analysis.trace.categories import COPY, GPU_ANNOTATION, GPU_COPY, GPU_KERNEL, KERNEL, LAUNCHED, CategoryCodes
from rankscope.analysis.trace.event_stream import EventStream
from rankscope.analysis.trace.locations import Location
from rankscope.analysis.trace.numbering import process_id
from rankscope.analysis.trace.possible import LATEST_NS, MAX_US
from rankscope.analysis.trace.schema import read_metadata
from rankscope.analysis.trace.trace_text import TraceText
from rankscope.base.errors import InputError

_ABSENT: Final = msgspec.Raw(b"null")
_ON_DEVICE: Final = frozenset({*GPU_KERNEL, *GPU_COPY})


class RawEvent(msgspec.Struct, frozen=True):
    """Event as it is in the file; times keep all their digits."""

    ph: str | None = None
    cat: str | None = None
    name: str | int | float | None = None
    ts: msgspec.Raw = _ABSENT
    dur: msgspec.Raw = _ABSENT
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    id: int | float | str | None = None
    args: msgspec.Raw = _ABSENT


SourceThread = tuple[object, object]
"""(pid, tid) as in the file."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Event with a start and an end, in unix nanoseconds on the clock of its host."""

    start_ns: int
    end_ns: int
    event: RawEvent


@dataclass(slots=True)
class RawTrace:
    """Events of one trace; ``instants`` and ``flows``, the ends of arrows, are with their time."""

    slices: list[Slice] = field(default_factory=list)
    instants: list[tuple[int, RawEvent]] = field(default_factory=list)
    flows: list[tuple[int, RawEvent]] = field(default_factory=list)
    thread_names: dict[SourceThread, str] = field(default_factory=dict)
    others: int = 0
    """Number of events of kinds that have no track, such as counters."""

    @property
    def size(self) -> int:
        """Number of events."""
        return len(self.slices) + len(self.instants) + len(self.flows)

    def add(self, event: RawEvent, base_ns: int, extent: tuple[int, int], launched_ns: int | None = None) -> None:
        """Add an event that overlaps ``extent``, cut to it; device work counts whole, at the time it was launched.

        Events without a possible time are left out. ``launched_ns``: time of the launch, where it is known.
        """
        if event.ph == "M":
            if event.name == "thread_name" and (name := args_of(event).get("name")) is not None:
                self.thread_names[event.pid, event.tid] = str(name)
            return
        if event.ph not in {"X", "i", "I", "s", "t", "f"}:
            self.others += 1
            return
        length = ns_of(bytes(event.dur)) if event.ph == "X" else 0
        if (at := ns_of(bytes(event.ts))) is None or length is None or not 0 <= length < MAX_US * 1000:
            return
        begin, end = at + base_ns, at + base_ns + length
        if launched_ns is not None and event.ph == "X":
            if extent[0] <= launched_ns < extent[1]:
                self.slices.append(Slice(begin, end, event))
            return
        if event.ph in {"s", "t", "f"}:
            self.flows.append((begin, event))
        elif begin >= extent[1] or max(end, begin + 1) <= extent[0]:
            return
        elif event.ph == "X":
            self.slices.append(Slice(max(begin, extent[0]), min(end, extent[1]), event))
        else:
            self.instants.append((begin, event))


def read_raw_trace(
    path: Location, extent: tuple[int, int], processes: Collection[str] | None = None, *, of_run: bool = False
) -> RawTrace:
    """Read the events of a trace in a time span, of all or some processes; ``of_run``: see ``open_location``.

    Device work is in the span in which it was launched, as it may run after the step that it is of. Raises ``InputError``,
    also for a truncated trace.
    """
    text = TraceText(path, of_run=of_run)
    stream = EventStream[RawEvent](path, text, RawEvent)
    # The metadata with the time base may follow the events.
    events = [event for part in stream for event in part]
    if torn := text.torn or stream.torn:
        raise InputError(path, f"truncated: {torn}, and all of it is needed")
    base_ns = read_metadata(stream.top_level).base_unix_ns
    events = [event for event in events if processes is None or process_id(event.pid) in processes]
    codes = CategoryCodes()
    launches = _launches((event for event in events if codes[event.cat] == LAUNCHED), base_ns)
    trace = RawTrace()
    for event in events:
        works = codes[event.cat] in (KERNEL, COPY)
        trace.add(event, base_ns, extent, launches.get(_correlation(event)) if works else None)
    starts = {(row.event.pid, row.event.tid, row.start_ns) for row in trace.slices}
    trace.flows = [(time, event) for time, event in trace.flows if (event.pid, event.tid, time) in starts]
    return trace


def _launches(calls: Iterable[RawEvent], base_ns: int) -> dict[int | str | None, int]:
    """Return when the work of each correlation id was launched."""
    times = ((_correlation(call), ns_of(bytes(call.ts))) for call in calls)
    return {correlation: at + base_ns for correlation, at in times if correlation is not None and at is not None}


class _Link(msgspec.Struct, frozen=True):
    """Argument that device work shares with the call that launched it."""

    correlation: int | str | None = None


_LINK: Final = msgspec.json.Decoder(_Link)


def _correlation(event: RawEvent) -> int | str | None:
    try:
        return _LINK.decode(event.args).correlation
    except msgspec.DecodeError:
        return None


def ns_of(text: bytes) -> int | None:
    """Return the nanoseconds of a JSON number of microseconds, quoted or not; ``None`` for other text or absurd values.

    Avoids float64: absolute microseconds with decimals have more digits than it keeps.
    """
    try:
        exact = Decimal(text.strip(b'"').decode("ascii", "replace")) * 1000
    except DecimalException:
        return None
    return round(exact) if exact.is_finite() and abs(exact) < LATEST_NS else None


def args_of(event: RawEvent) -> dict[str, object]:
    """Return the arguments of an event; empty if it has none or they cannot be decoded."""
    try:
        return msgspec.json.decode(event.args, type=dict[str, object])
    except msgspec.DecodeError:
        return {}


class RawTracks:
    """Writer of the tracks of ``traces`` raw traces, which share at most ``limit`` events."""

    def __init__(self, limit: int, traces: int) -> None:
        self._limit = limit
        self._traces = traces
        self._untracked_events = 0
        self._short = 0
        self._unconnected = 0
        """Number of instants and ends of arrows that are left out."""

    def write(self, writer: TraceWriter, pid: int, trace: RawTrace, correct: Callable[[int], int]) -> None:
        """Write a trace in process ``pid``; ``correct`` converts its times to the common clock.

        Where it has more events than its share of what is left of the limit, only its longest slices are written.
        """
        share = self._limit // self._traces
        self._untracked_events += trace.others
        if trace.size > share:
            longest = heapq.nlargest(share, trace.slices, key=lambda event: event.end_ns - event.start_ns)
            self._short += len(trace.slices) - len(longest)
            self._unconnected += len(trace.instants) + len(trace.flows)
            trace = RawTrace(longest, thread_names=trace.thread_names)
        self._limit -= trace.size
        self._traces -= 1
        _write_trace(writer, pid, trace, correct)

    def sentences(self) -> list[str]:
        """Return sentences on the events that were left out."""
        texts = [f"{self._untracked_events:,} counter events and others without a track"] if self._untracked_events else []
        if self._short or self._unconnected:
            texts.append(
                f"{self._short:,} slices of the raw traces, the shortest, and {self._unconnected:,} instants and ends of arrows;"
                " fewer --steps or --ranks show more of each, --max-events N more of all"
            )
        return texts


def _write_trace(writer: TraceWriter, pid: int, trace: RawTrace, correct: Callable[[int], int]) -> None:
    tracks: dict[tuple[int, str, SourceThread], list[Slice]] = {}
    for row in trace.slices:
        tracks.setdefault(_track_of(row.event), []).append(row)
    threads: dict[tuple[SourceThread, int], Thread] = {}
    lanes: dict[SourceThread, Track] = {}
    for (kind, _, place), slices in sorted(tracks.items(), key=lambda item: item[0][:2]):
        track = writer.track(pid, _name(kind, place, trace))
        for row in sorted(slices, key=lambda row: (row.start_ns, -row.end_ns)):
            event = row.event
            start, end = correct(row.start_ns), correct(row.end_ns)
            thread = track.slice(str(event.name), start, end, args_of(event), kind=event.cat or "")
            # An arrow ends at the start of the work, not of an annotation around it. A slice of no length cannot hold one.
            if thread is not None and kind != _NOTES and start < end:
                threads[place, row.start_ns] = thread
        lanes.setdefault(place, track)
    for time, event in sorted(trace.instants, key=lambda instant: instant[0]):
        if (lane := lanes.get((event.pid, event.tid))) is not None:
            lane.instant(str(event.name), correct(time), args_of(event), kind=event.cat or "")
    _write_flows(writer, trace, threads, correct)


def _write_flows(
    writer: TraceWriter, trace: RawTrace, threads: dict[tuple[SourceThread, int], Thread], correct: Callable[[int], int]
) -> None:
    """Write the arrows of which both ends are at the start of a slice."""
    begins: dict[tuple[str, str], tuple[Thread, int]] = {}
    for time, event in trace.flows:
        thread = threads.get(((event.pid, event.tid), time))
        if event.ph == "s" and thread is not None:
            begins[str(event.cat), str(event.id)] = (thread, time)
    for time, event in trace.flows:
        begin, thread = begins.get((str(event.cat), str(event.id))), threads.get(((event.pid, event.tid), time))
        if event.ph == "f" and begin is not None and thread is not None and begin[1] <= time:
            writer.flow(str(event.name), event.cat or "flow", (begin[0], correct(begin[1])), (thread, correct(time)))


_THREADS: Final = 0
_STREAMS: Final = 1
_NOTES: Final = 2


def _track_of(event: RawEvent) -> tuple[int, str, SourceThread]:
    category = (event.cat or "").lower()
    kind = _STREAMS if category in _ON_DEVICE else _NOTES if category in GPU_ANNOTATION else _THREADS
    return kind, _sorted_as(event.pid) + _sorted_as(event.tid), (event.pid, event.tid)


def _sorted_as(number: object) -> str:
    return f"{number:020d}" if isinstance(number, int) else str(number)


def _name(kind: int, place: SourceThread, trace: RawTrace) -> str:
    pid, tid = place
    if kind == _STREAMS:
        return f"device {pid} stream {tid}"
    if kind == _NOTES:
        return f"device {pid} stream {tid}: annotations"
    return trace.thread_names.get(place) or f"thread {tid} of {pid}"
