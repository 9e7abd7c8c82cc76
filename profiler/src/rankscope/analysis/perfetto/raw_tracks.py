"""Raw events as tracks: one per CPU thread and device stream, arrows between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rankscope.analysis.perfetto.chrome_json import Thread, TraceWriter, Track
from rankscope.analysis.perfetto.raw_trace import Place, RawEvent, RawTrace, Slice, Threshold, args_of
from rankscope.analysis.trace.classify import GPU_ANNOTATION, GPU_COPY, GPU_KERNEL

_ON_DEVICE: Final = frozenset({*GPU_KERNEL, *GPU_COPY})


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
