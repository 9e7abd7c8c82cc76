"""All events of one Kineto trace, with their arguments, as tracks: one per CPU thread and device stream, arrows between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.perfetto.chrome_json import Thread, TraceWriter, Track
from rankscope.analysis.trace.categories import GPU_ANNOTATION, GPU_COPY, GPU_KERNEL
from rankscope.analysis.trace.events import EventStream
from rankscope.analysis.trace.files import TraceText
from rankscope.analysis.trace.locations import Location
from rankscope.analysis.trace.numbering import process_id
from rankscope.analysis.trace.possible import LATEST_NS, MAX_US
from rankscope.analysis.trace.schema import read_metadata, whole
from rankscope.base.errors import InputError

_ABSENT: Final = msgspec.Raw(b"null")
_ON_DEVICE: Final = frozenset({*GPU_KERNEL, *GPU_COPY})
_SLACK_NS: Final = 1_000_000_000
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,18})")


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


Sizes = tuple[NDArray[np.int64], int, int]
"""Sizes of a trace: lengths of its slices in nanoseconds, number of its instants, number of its flow ends."""

Place = tuple[object, object]
"""(pid, tid) as in the file."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Event with a start and an end, in unix nanoseconds on the clock of its host."""

    start_ns: int
    end_ns: int
    event: RawEvent


@dataclass(frozen=True, slots=True)
class RawTrace:
    """Events of one trace; ``moments`` are instants, ``flows`` are ends of arrows, both with their time."""

    path: Location
    slices: list[Slice] = field(default_factory=list)
    moments: list[tuple[int, RawEvent]] = field(default_factory=list)
    flows: list[tuple[int, RawEvent]] = field(default_factory=list)
    thread_names: dict[Place, str] = field(default_factory=dict)
    other: Counter[str] = field(default_factory=Counter)
    """Kind of events that are not shown (``ph``, or ``damaged``) to their number."""

    def within(self, first_ns: int, past_ns: int) -> RawTrace:
        """Return the part of the trace that overlaps the time from ``first_ns`` to before ``past_ns``."""
        return RawTrace(
            path=self.path,
            slices=[one for one in self.slices if one.end_ns >= first_ns and one.start_ns < past_ns],
            moments=[one for one in self.moments if first_ns <= one[0] < past_ns],
            flows=[one for one in self.flows if first_ns <= one[0] < past_ns],
            thread_names=self.thread_names,
            other=self.other,
        )

    def steps(self) -> dict[int, tuple[int, int]]:
        """Return the first start and last end of each annotated step, on the host or else on the device."""
        found: dict[int, tuple[int, int]] = {}
        for device in (False, True):
            for one in self.slices:
                match = _STEP.fullmatch(str(one.event.name))
                if match is not None and (one.event.cat == "gpu_user_annotation") == device:
                    start, end = found.get(int(match[1]), (one.start_ns, one.end_ns))
                    found[int(match[1])] = (min(start, one.start_ns), max(end, one.end_ns))
            if found:
                break
        return found

    @property
    def host_slices(self) -> int:
        """Number of slices that are not work of a device."""
        return sum((one.event.cat or "").lower() not in _ON_DEVICE for one in self.slices)

    @property
    def sizes(self) -> Sizes:
        """See ``Sizes``."""
        lengths = np.fromiter((one.end_ns - one.start_ns for one in self.slices), np.int64, len(self.slices))
        return lengths, len(self.moments), len(self.flows)

    def extent(self, near: tuple[int, int]) -> tuple[int, int] | None:
        """Return the first start and the time after the last end; ``None`` without a slice.

        Slices that damage moved far from the time ``near``, that of the events that count, are left out.
        """
        slack = max(_SLACK_NS, near[1] - near[0])
        kept = [one for one in self.slices if near[0] - slack <= one.start_ns and one.end_ns <= near[1] + slack]
        return (min(one.start_ns for one in kept), max(one.end_ns for one in kept) + 1) if kept else None

    def with_ends(self, ends: Mapping[int, int]) -> RawTrace:
        """Return the trace with other ends of the device events with these correlation ids."""
        if not ends:
            return self
        slices = [
            replace(one, end_ns=max(one.start_ns, min(one.end_ns, ends.get(_correlation(one.event), one.end_ns))))
            if (one.event.cat or "").lower() in _ON_DEVICE
            else one
            for one in self.slices
        ]
        return replace(self, slices=slices)


def _correlation(event: RawEvent) -> int:
    found = args_of(event).get("correlation")
    return whole(found) if isinstance(found, (int, float, str)) else -1


def read_raw_trace(path: Location, processes: Collection[str] | None = None) -> RawTrace:
    """Read all events of a trace, or those of some processes. Raises ``InputError``, also for a truncated trace."""
    text = TraceText(path)
    stream = EventStream[RawEvent](path, text, RawEvent)
    # The metadata with the time base may follow the events.
    events = [event for part in stream for event in part]
    if torn := text.torn or stream.torn:
        raise InputError(path, f"truncated: {torn}, and all of it is needed")
    base = read_metadata(stream.said).base_unix_ns
    trace = RawTrace(path, other=Counter(damaged=stream.damaged) if stream.damaged else Counter())
    for event in events:
        if processes is None or process_id(event.pid) in processes:
            _sort_in(trace, event, base)
    return trace


def _sort_in(trace: RawTrace, event: RawEvent, base: int) -> None:
    if event.ph == "M":
        if event.name == "thread_name" and (name := args_of(event).get("name")) is not None:
            trace.thread_names[event.pid, event.tid] = str(name)
        return
    at = ns_of(bytes(event.ts))
    if at is None or event.ph not in {"X", "i", "I", "s", "t", "f"}:
        trace.other["damaged" if at is None else str(event.ph)] += 1
    elif event.ph != "X":
        (trace.moments if event.ph in {"i", "I"} else trace.flows).append((at + base, event))
    elif (length := ns_of(bytes(event.dur))) is None or not 0 <= length < MAX_US * 1000:
        trace.other["damaged"] += 1
    else:
        trace.slices.append(Slice(at + base, at + base + length, event))


def ns_of(text: bytes) -> int | None:
    """Return the nanoseconds of a JSON number of microseconds, quoted or not; ``None`` for other text or absurd values.

    Avoids float64: absolute microseconds with decimals have more digits than it keeps.
    """
    text = text.strip(b'"')
    whole, _, fraction = text.partition(b".")
    if whole.isdigit() and len(whole) < 20 and (not fraction or fraction.isdigit()):
        ns = int(whole) * 1000 + int(fraction[:3].ljust(3, b"0"))
        ns += fraction[3:4] >= b"5"
    else:
        try:
            exact = Decimal(text.decode("ascii", "replace")) * 1000
            if not exact.is_finite() or not abs(exact) < LATEST_NS:
                return None
        except InvalidOperation:
            return None
        ns = round(exact)
    return ns if abs(ns) < LATEST_NS else None


def args_of(event: RawEvent) -> dict[str, object]:
    """Return the arguments of an event; empty if it has none or they cannot be decoded."""
    try:
        return msgspec.json.decode(event.args, type=dict[str, object])
    except msgspec.DecodeError:
        return {}


@dataclass(frozen=True, slots=True)
class Threshold:
    """Filter that keeps the events of all raw traces together within a limit."""

    longer_than_ns: int = -1
    """Length that a slice must exceed to be shown."""
    flows: bool = True
    moments: bool = True

    def shows(self, one: Slice) -> bool:
        """Return whether a slice is long enough to be shown."""
        return one.end_ns - one.start_ns > self.longer_than_ns

    def sentences(self, traces: Sequence[Sizes]) -> list[str]:
        """Return sentences on the parts of ``traces`` that are left out."""
        said: list[str] = []
        if not self.flows:
            said.append(f"{sum(one[2] for one in traces):,} ends of arrows of the raw traces")
        if not self.moments:
            said.append(f"{sum(one[1] for one in traces):,} instants of the raw traces")
        if self.longer_than_ns >= 0:
            short = sum(int(np.count_nonzero(one[0] <= self.longer_than_ns)) for one in traces)
            said.append(f"{short:,} slices of the raw traces that take {self.longer_than_ns / 1000:g} µs or less")
        if said:
            said[-1] += "; fewer --steps or --ranks show more of each, --max-events N more of all"
        return said


def threshold(traces: Sequence[Sizes], limit: int) -> Threshold:
    """Return the filter that shows at most ``limit`` events: arrows are left out first, then instants, then short slices."""
    lengths = np.concatenate([np.empty(0, dtype=np.int64), *(one[0] for one in traces)])
    moments, flows = sum(one[1] for one in traces), sum(one[2] for one in traces)
    if len(lengths) + moments + flows <= limit:
        return Threshold()
    if len(lengths) + moments <= limit:
        return Threshold(flows=False)
    if len(lengths) <= limit:
        return Threshold(flows=False, moments=False)
    return Threshold(int(np.partition(lengths, -limit - 1)[-limit - 1]), flows=False, moments=False)


def write_raw(writer: TraceWriter, pid: int, trace: RawTrace, shown: Threshold, correct: Callable[[int], int]) -> None:
    """Write the tracks of ``trace`` in process ``pid``; ``correct`` converts its times to the common clock."""
    tracks: dict[tuple[int, str, Place], list[Slice]] = {}
    for one in trace.slices:
        if shown.shows(one):
            tracks.setdefault(_track_of(one.event), []).append(one)
    at: dict[tuple[Place, int], Thread] = {}
    lanes: dict[Place, Track] = {}
    for (kind, _, place), slices in sorted(tracks.items(), key=lambda item: item[0][:2]):
        track = writer.track(pid, _name(kind, place, trace))
        for one in sorted(slices, key=lambda one: (one.start_ns, -one.end_ns)):
            event = one.event
            start, end = correct(one.start_ns), correct(one.end_ns)
            thread = track.slice(str(event.name), start, end, args_of(event), kind=event.cat or "")
            # An arrow ends at the start of the work, not of an annotation around it. A slice of no length cannot hold one.
            if thread is not None and kind != _NOTES and start < end:
                at[place, one.start_ns] = thread
        lanes.setdefault(place, track)
    if shown.moments:
        for time, event in sorted(trace.moments, key=lambda moment: moment[0]):
            if (found := lanes.get((event.pid, event.tid))) is not None:
                found.instant(str(event.name), correct(time), args_of(event), kind=event.cat or "")
    if shown.flows:
        _write_flows(writer, trace, at, correct)


def _write_flows(
    writer: TraceWriter, trace: RawTrace, at: dict[tuple[Place, int], Thread], correct: Callable[[int], int]
) -> None:
    """Write the arrows of which both ends are at the start of a shown slice."""
    begins: dict[tuple[str, str], tuple[Thread, int]] = {}
    for time, event in trace.flows:
        thread = at.get(((event.pid, event.tid), time))
        if event.ph == "s" and thread is not None:
            begins[str(event.cat), str(event.id)] = (thread, time)
    for time, event in trace.flows:
        begin, thread = begins.get((str(event.cat), str(event.id))), at.get(((event.pid, event.tid), time))
        if event.ph == "f" and begin is not None and thread is not None and begin[1] <= time:
            writer.flow(str(event.name), event.cat or "flow", (begin[0], correct(begin[1])), (thread, correct(time)))


_THREADS: Final = 0
_STREAMS: Final = 1
_NOTES: Final = 2


def _track_of(event: RawEvent) -> tuple[int, str, Place]:
    category = (event.cat or "").lower()
    kind = _STREAMS if category in _ON_DEVICE else _NOTES if category in GPU_ANNOTATION else _THREADS
    return kind, _sorted_as(event.pid) + _sorted_as(event.tid), (event.pid, event.tid)


def _sorted_as(number: object) -> str:
    return f"{number:020d}" if isinstance(number, int) else str(number)


def _name(kind: int, place: Place, trace: RawTrace) -> str:
    pid, tid = place
    if kind == _STREAMS:
        return f"device {pid} stream {tid}"
    if kind == _NOTES:
        return f"device {pid} stream {tid}: annotations"
    return trace.thread_names.get(place) or f"thread {tid} of {pid}"
