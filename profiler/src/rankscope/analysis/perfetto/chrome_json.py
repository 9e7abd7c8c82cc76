"""Chrome JSON (the Trace Event Format), written event by event; names and arguments come from untrusted files and are bounded.

Requirements of Perfetto's importer beyond the format's description: thread ids are unique in the file, as they are looked up
without their process. Times are not negative. Names are strings. Flows follow the slices in the file, as a flow is attached to
the slice that is open on its track at its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rankscope.analysis.result.text import json_of
from rankscope.base.text import one_line, shortened

HORIZON_NS: Final = 1000 * 2**42
"""50 days. Below it, a float64 of microseconds with three decimals still distinguishes nanoseconds."""
MAX_LANES: Final = 64
"""Maximum slices open at once on one track: more is damage."""
MAX_NAME: Final = 200
"""Maximum characters of a name; those of C++ templates can be very long."""
MAX_TEXT: Final = 1000
"""Maximum characters of an argument."""
MAX_ITEMS: Final = 64
"""Maximum entries of a list or map."""
MAX_DEPTH: Final = 4
MAX_ARGS_BYTES: Final = 8192
"""Maximum size of the encoded arguments of one event."""
_INT64: Final = 2**63

_FIRST_TID: Final = 1_000_001
"""First thread id, above all process ids: a thread whose id is that of its process would be its main thread."""
_BLOCK: Final = 1 << 16

_encode = msgspec.json.Encoder().encode

Thread = tuple[int, int]
"""Process id and thread id."""


class TraceWriter:
    """Writer of events as bytes to ``write``. Times are unix nanoseconds.

    Events before ``base_ns``, or more than 50 days after it, are counted in ``out_of_range`` and not written. ``events`` counts
    the written events, without the names of tracks.
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
        """Start of the first slice; ``last_ns`` is the end of the last one."""
        self.last_ns = base_ns
        self.events = 0
        self.out_of_range = 0
        self.without_lane = 0
        """Number of slices left out because too many were open on their track at once."""

    def process(self, name: str, *, order: int) -> int:
        """Write a new process, sorted by ``order``, and return its id."""
        self._processes += 1
        pid = self._processes
        self._describe("process_name", (pid, pid), {"name": printable(name)})
        self._describe("process_sort_index", (pid, pid), {"sort_index": order})
        return pid

    def track(self, pid: int, name: str, *, nest: bool = True) -> Track:
        """Return a new track of a process; tracks are shown in the order in which they get their first slice."""
        return Track(self, pid, name, SliceLanes(nest=nest), [])

    def thread(self, pid: int, name: str) -> Thread:
        """Write a new thread of a process and return its ids."""
        tid = _FIRST_TID + self._threads
        self._threads += 1
        self._describe("thread_name", (pid, tid), {"name": printable(name)})
        self._describe("thread_sort_index", (pid, tid), {"sort_index": self._threads})
        return pid, tid

    def slice(
        self, where: Thread, name: str, start_ns: int, end_ns: int, args: Mapping[str, Any] | None = None, *, kind: str
    ) -> bool:
        """Write a slice (``ph: X``). Returns whether it was written."""
        duration = msgspec.Raw(us_text(end_ns - start_ns))
        written = self._event("X", where, name, start_ns, kind=kind, args=args, dur=duration)
        if written:
            self.first_ns = start_ns if self.first_ns is None else min(self.first_ns, start_ns)
            self.last_ns = max(self.last_ns, end_ns)
        return written

    def instant(self, where: Thread, name: str, at_ns: int, args: Mapping[str, Any] | None = None, *, kind: str) -> bool:
        """Write an instant on a thread (``ph: i``). Returns whether it was written."""
        return self._event("i", where, name, at_ns, kind=kind, args=args, s="t")

    def counter(self, pid: int, name: str, unit: str, at_ns: int, value: float) -> bool:
        """Write a counter's value from ``at_ns`` on (``ph: C``); Perfetto names the track by name and unit."""
        return self._event("C", (pid, pid), name, at_ns, kind="counter", args={unit: value})

    def flow(self, name: str, kind: str, begin: tuple[Thread, int], end: tuple[Thread, int]) -> bool:
        """Write an arrow from a time inside a slice to a later time inside another (``ph: s`` and ``f``)."""
        if not all(self._has(at_ns) for _, at_ns in (begin, end)):
            return False
        self._flows += 1
        self._event("s", begin[0], name, begin[1], kind=kind, id=self._flows)
        return self._event("f", end[0], name, end[1], kind=kind, id=self._flows, bp="e")

    def close(self, about: Mapping[str, Any]) -> None:
        """Write the end of the file, with ``about`` as its metadata."""
        self._pending += b'\n],"otherData":' + json_of(about) + b"}\n"
        self._write(bytes(self._pending))
        self._pending.clear()

    def _has(self, at_ns: int) -> bool:
        return 0 <= at_ns - self.base_ns < HORIZON_NS

    def _event(
        self, ph: str, where: Thread, name: str, at_ns: int, *, kind: str, args: Mapping[str, Any] | None = None, **more: Any
    ) -> bool:
        if not self._has(at_ns):
            self.out_of_range += 1
            return False
        event = {"ph": ph, "pid": where[0], "tid": where[1], "ts": msgspec.Raw(us_text(at_ns - self.base_ns)), **more}
        event |= {"name": printable(name), "cat": printable(kind)}
        if args:
            event["args"] = msgspec.Raw(encoded_args(dict(args)))
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
    """Track of a process, with as many lanes (threads) as its slices need."""

    writer: TraceWriter
    pid: int
    name: str
    lanes: SliceLanes
    threads: list[Thread]

    def slice(self, name: str, start_ns: int, end_ns: int, args: Mapping[str, Any] | None = None, *, kind: str) -> Thread | None:
        """Write a slice; returns its thread, or ``None`` where the slice was left out.

        Slices must come ordered by start; of those with the same start the longest comes first.
        """
        lane = self.lanes.place(start_ns, end_ns)
        if lane is None:
            self.writer.without_lane += 1
            return None
        thread = self._thread(lane)
        return thread if self.writer.slice(thread, name, start_ns, end_ns, args, kind=kind) else None

    def instant(self, name: str, at_ns: int, args: Mapping[str, Any] | None = None, *, kind: str) -> None:
        """Write an instant on the first lane."""
        self.writer.instant(self._thread(0), name, at_ns, args, kind=kind)

    def _thread(self, lane: int) -> Thread:
        while len(self.threads) <= lane:
            number = len(self.threads) + 1
            self.threads.append(self.writer.thread(self.pid, self.name if number == 1 else f"{self.name} ({number})"))
        return self.threads[lane]


class SliceLanes:
    """Lanes of one track. With ``nest`` a slice may lie inside another one of its lane, else only after it.

    Perfetto drops a slice that begins inside another one of its thread and ends after it.
    """

    def __init__(self, *, nest: bool) -> None:
        self._nest = nest
        self._open: list[list[int]] = [[]]

    def place(self, start_ns: int, end_ns: int) -> int | None:
        """Place a slice and return the first lane with room; ``None`` if there are too many lanes.

        Slices must come ordered by start; of those with the same start the longest comes first.
        """
        for lane, ends in enumerate(self._open):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or (self._nest and end_ns <= ends[-1]):
                ends.append(end_ns)
                return lane
        if len(self._open) == MAX_LANES:
            return None
        self._open.append([end_ns])
        return len(self._open) - 1


def us_text(ns: int) -> bytes:
    """Return ``ns``, which is not negative, as microseconds with three decimals.

    Perfetto multiplies the float64 of the number by 1000 and truncates, so that six numbers in a thousand lose a nanosecond. A
    slice could then extend beyond its parent, and Perfetto would drop it. These numbers get a fourth decimal: a tenth of a
    nanosecond more or, where float64 cannot tell that apart, four tenths.
    """
    text = b"%d.%03d" % divmod(ns, 1000)
    if int(ns / 1000 * 1000.0) == ns:
        return text
    return text + (b"1" if int(float(text + b"1") * 1000.0) == ns else b"4")


def printable(text: str, limit: int = MAX_NAME) -> str:
    """Return ``text`` without control characters and lone surrogates, cut to ``limit`` characters."""
    return one_line(shortened(text, limit))


def encoded_args(args: dict[str, Any]) -> bytes:
    """Encode the arguments of an event as JSON; above ``MAX_ARGS_BYTES`` they are replaced by a note of their size."""
    data = _encode(_bounded(args, MAX_DEPTH))
    return data if len(data) <= MAX_ARGS_BYTES else _encode({"left out": f"{len(data)} bytes of arguments"})


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return printable(value, MAX_TEXT)
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)[:MAX_NAME]
    if not depth:
        return "…"
    if isinstance(value, dict):
        pairs = list(value.items())
        shown = {printable(str(key)): _bounded(item, depth - 1) for key, item in pairs[:MAX_ITEMS]}
        return shown if len(pairs) <= MAX_ITEMS else {**shown, "…": f"{len(pairs) - MAX_ITEMS} more"}
    items = [_bounded(item, depth - 1) for item in value[:MAX_ITEMS]]
    return items if len(value) <= MAX_ITEMS else [*items, f"… {len(value) - MAX_ITEMS} more"]
