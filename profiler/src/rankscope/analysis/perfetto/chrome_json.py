"""Chrome JSON (the Trace Event Format), written event by event.

What Perfetto's importer asks for and the format's description does not say: thread ids are looked up without their process, so
that they are unique in the file; times are not negative; names are strings; a flow is attached to whatever slice is open on its
track at its time, so that it comes after the slices in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rankscope.analysis.json_of import json_of
from rankscope.analysis.perfetto.inert import inert, inert_args
from rankscope.analysis.perfetto.lanes import Lanes
from rankscope.analysis.perfetto.microseconds import HORIZON_NS, us_text

_FIRST_TID: Final = 1_000_001
"""Apart from process ids, which would make a thread the main thread of its process."""
_BLOCK: Final = 1 << 16

_encode = msgspec.json.Encoder().encode

Thread = tuple[int, int]
"""Ids of a process and of a thread of it."""


class TraceWriter:
    """Events as bytes to ``write``. Times are unix nanoseconds; those before ``base_ns``, or 52 days after it, are counted only.

    ``events`` counts what was written, names of tracks not included.
    """

    def __init__(self, write: Callable[[bytes], object], *, base_ns: int) -> None:
        self._write = write
        self._pending = bytearray(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        self._first = True
        self._processes = 0
        self._threads = 0
        self._flows = 0
        self.base_ns = base_ns
        self.first_ns: int | None = None
        """Start of the first slice; with ``last_ns`` what there is to see."""
        self.last_ns = base_ns
        self.events = 0
        self.out_of_time = 0
        self.crowded = 0
        """Slices left out because too many of their track were open at once."""

    def process(self, name: str, *, order: int) -> int:
        """A new process, shown in the order of ``order``; its id."""
        self._processes += 1
        pid = self._processes
        self._describe("process_name", (pid, pid), {"name": inert(name)})
        self._describe("process_sort_index", (pid, pid), {"sort_index": order})
        return pid

    def track(self, pid: int, name: str, *, nest: bool = True) -> Track:
        """A track of a process; tracks are shown in the order in which they get their first slice."""
        return Track(self, pid, name, Lanes(nest=nest), [])

    def thread(self, pid: int, name: str) -> Thread:
        """A new thread of a process."""
        tid = _FIRST_TID + self._threads
        self._threads += 1
        self._describe("thread_name", (pid, tid), {"name": inert(name)})
        self._describe("thread_sort_index", (pid, tid), {"sort_index": self._threads})
        return pid, tid

    def slice(
        self, where: Thread, name: str, start_ns: int, end_ns: int, args: Mapping[str, Any] | None = None, *, kind: str
    ) -> bool:
        """A slice (``ph: X``). Returns whether it was written."""
        duration = msgspec.Raw(us_text(end_ns - start_ns))
        written = self._event("X", where, name, start_ns, kind=kind, args=args, dur=duration)
        if written:
            self.first_ns = start_ns if self.first_ns is None else min(self.first_ns, start_ns)
            self.last_ns = max(self.last_ns, end_ns)
        return written

    def instant(self, where: Thread, name: str, at_ns: int, args: Mapping[str, Any] | None = None, *, kind: str) -> bool:
        """A moment on a track (``ph: i``)."""
        return self._event("i", where, name, at_ns, kind=kind, args=args, s="t")

    def counter(self, pid: int, name: str, unit: str, at_ns: int, value: float) -> bool:
        """A value of a process from now on (``ph: C``); Perfetto calls the track by name and unit."""
        return self._event("C", (pid, pid), name, at_ns, kind="counter", args={unit: value})

    def flow(self, name: str, kind: str, begin: tuple[Thread, int], end: tuple[Thread, int]) -> bool:
        """An arrow from a moment inside a slice to a later one."""
        if not all(self._has(at_ns) for _, at_ns in (begin, end)):
            return False
        self._flows += 1
        self._event("s", begin[0], name, begin[1], kind=kind, id=self._flows)
        return self._event("f", end[0], name, end[1], kind=kind, id=self._flows, bp="e")

    def close(self, about: Mapping[str, Any]) -> None:
        """End the file, with ``about`` as its metadata."""
        self._pending += b'\n],"otherData":' + json_of(about) + b"}\n"
        self._write(bytes(self._pending))
        self._pending.clear()

    def _has(self, at_ns: int) -> bool:
        return 0 <= at_ns - self.base_ns < HORIZON_NS

    def _event(
        self, ph: str, where: Thread, name: str, at_ns: int, *, kind: str, args: Mapping[str, Any] | None = None, **more: Any
    ) -> bool:
        if not self._has(at_ns):
            self.out_of_time += 1
            return False
        event = {"ph": ph, "pid": where[0], "tid": where[1], "ts": msgspec.Raw(us_text(at_ns - self.base_ns)), **more}
        event |= {"name": inert(name), "cat": inert(kind)}
        if args:
            event["args"] = msgspec.Raw(inert_args(dict(args)))
        self.events += 1
        self._put(event)
        return True

    def _describe(self, what: str, where: Thread, args: dict[str, Any]) -> None:
        self._put({"ph": "M", "pid": where[0], "tid": where[1], "ts": 0, "name": what, "args": args})

    def _put(self, event: dict[str, Any]) -> None:
        self._pending += _encode(event) if self._first else b",\n" + _encode(event)
        self._first = False
        if len(self._pending) >= _BLOCK:
            self._write(bytes(self._pending))
            self._pending.clear()


@dataclass(slots=True)
class Track:
    """One track of a process, with as many lanes (threads) as its slices need."""

    writer: TraceWriter
    pid: int
    name: str
    lanes: Lanes
    threads: list[Thread]

    def slice(self, name: str, start_ns: int, end_ns: int, args: Mapping[str, Any] | None = None, *, kind: str) -> Thread | None:
        """A slice; its thread, or ``None`` where it was left out.

        Slices come ordered by start and, where these are the same, with the longest first.
        """
        lane = self.lanes.place(start_ns, end_ns)
        if lane is None:
            self.writer.crowded += 1
            return None
        thread = self._thread(lane)
        return thread if self.writer.slice(thread, name, start_ns, end_ns, args, kind=kind) else None

    def instant(self, name: str, at_ns: int, args: Mapping[str, Any] | None = None, *, kind: str) -> None:
        """A moment on the first lane."""
        self.writer.instant(self._thread(0), name, at_ns, args, kind=kind)

    def _thread(self, lane: int) -> Thread:
        while len(self.threads) <= lane:
            number = len(self.threads) + 1
            self.threads.append(self.writer.thread(self.pid, self.name if number == 1 else f"{self.name} ({number})"))
        return self.threads[lane]
