"""Figures of one trace: where its time goes, on which stream, which copies it has, why its device idles."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

from tests.trace_truth.cells import Cells, Grid, middle, quantile
from tests.trace_truth.checking import Check, is_damaged
from tests.trace_truth.reading import COPIES, KERNELS, File, RefusedError
from tests.trace_truth.work import Window, Work, damaged_steps, missing_times, window_of_file, windows_of_steps, work_of

KINDS = ("compute", "communication", "memcpy")
MOST_COPY_BYTES = 2**40


class Figures:
    """All figures of a trace."""

    def __init__(self, file: File, check: Check) -> None:
        self.file, self.check = file, check
        self.work = work_of(file, on_cpu=check.on_cpu)
        if check.problem is None and not any(activity.end > activity.start for activity in self.work):
            raise RefusedError("nothing to analyse")
        self.window = Window(0, 0) if check.problem else window_of_file(self.work)
        self.steps = windows_of_steps(file, check, self.work)
        self.damaged = damaged_steps(file, check, self.work)
        self.problem = self._problem()
        self.lacking = file.torn or self.problem is not None
        """True if the trace lacks a part, so that no figure rests on it."""
        instants = {instant for activity in self.work for instant in (activity.start, activity.end)}
        instants |= {instant for activity in self.work if activity.call for instant in (activity.call.start, activity.call.end)}
        windows = [self.window, *(window for _, window in self.steps)]
        self.grid = Grid(instants | {instant for window in windows for instant in (window.start, window.end)})
        self.kinds = {kind: self._busy([activity for activity in self.work if activity.kind == kind]) for kind in KINDS}

    def _problem(self) -> str | None:
        """Return what makes the trace unusable: one of which no step is whole is."""
        check = self.check
        if check.problem is not None or not check.missing + check.cut:
            return check.problem
        if self.steps:
            return "damaged" if len(self.damaged) == len(self.steps) else None
        missing = missing_times(check, self.work)
        return "damaged" if is_damaged(len(self.on_device()), len(missing), len(check.cut)) else None

    def _busy(self, work: list[Work]) -> Cells:
        return self.grid.union((activity.start, activity.end) for activity in work)

    def on_device(self) -> list[Work]:
        """Return the work on devices."""
        return [activity for activity in self.work if activity.on_device]

    def starts_inside(self, activity: Work) -> bool:
        """Return whether work starts in the window; only work that takes no time can start at its end or outside."""
        return self.window.start <= activity.start < self.window.end

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        file = self.file
        return {
            "rank": file.rank,
            "world_size": file.distributed.get("world_size"),
            "host": host if isinstance(host := file.head.get("host_name"), str) else None,
            "lacking": self.lacking,
            "damaged": file.damaged,
            "quality": self.quality(),
            "start_ns": self.window.start,
            "window": self.window_parts(),
            "steps": {str(step.number): self.partition(window) for step, window in self.steps},
            "own_us": {
                str(step.number): self.own_us(window) for step, window in self.steps if file.work_on_device and window.complete
            },
            "streams": self.streams(),
            "copies": self.copies(),
            "launch": self.launches(),
        }

    def quality(self) -> dict[str, Any]:
        """Return the number of device events and launches, of those that are damaged or missing, and the problem."""
        names = ("device_events", "without_time", "far", "overlong", "launches", "without_kernel")
        counts = {name: getattr(self.check, name) for name in names}
        return counts | {"damaged_steps": 0 if self.check.problem else len(self.damaged), "problem": self.problem}

    def window_parts(self) -> dict[str, float | None]:
        """Return how the window of the file divides, and the hidden share of its communication.

        A file that lacks events shows nothing to be zero, and nothing to be idle.
        """
        parts = self.partition(self.window)
        if self.lacking:
            parts = {name: value or None for name, value in parts.items()} | {"idle_us": None}
        talk, hidden = parts["communication_us"], parts["overlap_us"]
        return parts | {"overlap_ratio": hidden / talk if talk and hidden is not None else None}

    def partition(self, window: Window) -> dict[str, float | None]:
        """Return how a window divides."""
        inside = self.grid.cells(window.start, window.end)
        compute, talk, copies = (self.kinds[kind] & inside for kind in KINDS)
        us = self.grid.us
        return {
            "window_us": us(inside),
            "compute_us": us(compute),
            "communication_us": us(talk),
            "overlap_us": us(compute & talk),
            "exposed_communication_us": us(talk - compute),
            "memcpy_us": us(copies),
            "exposed_memcpy_us": us(copies - compute - talk),
            "idle_us": us(inside - compute - talk - copies),
        }

    def own_us(self, window: Window) -> float:
        """Return the time of a step that is not communication alone."""
        inside = self.grid.cells(window.start, window.end)
        return self.grid.us(inside - (self.kinds["communication"] - self.kinds["compute"]))

    def streams(self) -> list[dict[str, Any]]:
        """Return the time of each stream, the busiest first."""
        by_stream: dict[tuple[int, int], list[Work]] = defaultdict(list)
        for activity in self.on_device():
            if self.starts_inside(activity):
                by_stream[activity.event.number("device"), activity.event.number("stream")].append(activity)
        busy = {stream: self._busy(work) for stream, work in by_stream.items()}
        rows = []
        for (device, stream), work in by_stream.items():
            busy_cells = busy[device, stream]
            others = self.grid.union([])
            for other, cells in busy.items():
                if other[0] == device and other[1] != stream:
                    others |= cells
            by_kind = {
                f"{kind}_us": self.grid.us(self._busy([activity for activity in work if activity.kind == kind])) for kind in KINDS
            }
            rows.append(
                {
                    "device": None if device < 0 else device,
                    "stream": None if stream < 0 else stream,
                    "events": len(work),
                    "busy_us": self.grid.us(busy_cells),
                    "overlapped_us": self.grid.us(busy_cells & others),
                    "exposed_us": self.grid.us(busy_cells - others),
                    **by_kind,
                }
            )
        return sorted(rows, key=lambda row: [-1 if row[name] is None else row[name] for name in ("device", "stream")])

    def copies(self) -> list[dict[str, Any]]:
        """Return the copies by direction, memory and purpose."""
        launched = Counter(id(activity.call) for activity in self.work if activity.call)
        by_kind: dict[tuple[str, str, bool], list[Work]] = defaultdict(list)
        for copy in self.on_device():
            if self.starts_inside(copy) and (copy.event.category in COPIES or copy.kind == "memcpy"):
                named = re.search(r"\(([A-Za-z ]+-> ?[A-Za-z ]+)\)", copy.event.name)
                key = (direction(copy.event.name), named[1] if named else "", copy.kind == "communication")
                by_kind[key].append(copy)
        rows = []
        for (way, memory, collective), work in by_kind.items():
            sizes = {id(activity): _bytes(activity, launched) for activity in work}
            sized = [activity for activity in work if 0 <= sizes[id(activity)] <= MOST_COPY_BYTES]
            moved = sum(sizes[id(activity)] for activity in sized)
            busy, took = self._busy(work), self.grid.us(self._busy(sized))
            rows.append(
                {
                    "direction": way,
                    "memory": memory or None,
                    "collective": collective,
                    "events": len(work),
                    "busy_us": self.grid.us(busy),
                    "exposed_us": self.grid.us(busy - self.kinds["compute"] - self.kinds["communication"]),
                    "bytes": moved if sized else None,
                    "sized_events": len(sized),
                    "bytes_per_second": moved * 1e6 / took if took else None,
                }
            )
        return sorted(rows, key=lambda row: (row["direction"], row["memory"] or "", row["collective"]))

    def launches(self) -> dict[str, Any] | None:
        """Return how work was launched, and why the device was idle; ``None`` where no call is known."""
        events = self.on_device()
        called = [activity for activity in events if activity.call]
        if not called:
            return None
        in_window = [activity for activity in events if self.starts_inside(activity)]
        first: dict[int, Work] = {}
        for call in called:
            first.setdefault(id(call.call), call)
        leaders = [activity for activity in first.values() if activity in in_window]
        numbers = Counter(
            activity.event.number("correlation")
            for activity in events
            if not activity.call and activity.event.category in KERNELS
        )
        numbers.pop(-1, None)
        graphed = [
            activity.event.number("correlation")
            for activity in in_window
            if activity.event.number("graph node id") > 0
            or (activity.call and "GraphLaunch" in activity.call.name)
            or (not activity.call and activity.event.category in KERNELS and numbers[activity.event.number("correlation")] > 1)
        ]
        return {
            "events": len(in_window),
            "linked": sum(activity.call is not None for activity in in_window),
            "calls": len({id(activity.call) for activity in in_window if activity.call}),
            **self.reasons(events),
            "queue_delay": {
                kind: delays for kind in KINDS if (delays := _delays([activity for activity in leaders if activity.kind == kind]))
            },
            "started_early": sum(activity.start < activity.launched for activity in leaders),
            "graph_launches": len(set(graphed)),
            "graph_events": len(graphed),
        }

    def reasons(self, events: list[Work]) -> dict[str, float]:
        """Return the idle time of the window by what the device waited for; the first reason counts."""
        grid = self.grid
        idle = grid.cells(self.window.start, self.window.end) - set().union(*self.kinds.values())
        queued, launching, unknown = (grid.union([]) for _ in range(3))
        for activity in events:
            if activity.call:
                returned = min(activity.call.end, activity.start)
                queued |= grid.cells(returned, activity.start)
                launching |= grid.cells(activity.call.start, returned) if activity.call.start < returned else set()
        starts = {activity.start for activity in events if activity.call}
        strangers = {activity.start for activity in events if not activity.call} - starts
        for gap in grid.gaps(idle):
            if grid.end(gap) in strangers:
                unknown |= gap
        return {
            "idle_queued_us": grid.us(idle & queued),
            "idle_launching_us": grid.us(idle & launching - queued),
            "idle_unknown_us": grid.us(idle & unknown - launching - queued),
            "idle_starved_us": grid.us(idle - unknown - launching - queued),
        }


def direction(name: str) -> str:
    """Return the direction of a copy."""
    words = {
        "host to device": ("HtoD", "HostToDevice"),
        "device to host": ("DtoH", "DeviceToHost"),
        "peer to peer": ("PtoP", "Peer"),
        "device to device": ("DtoD", "DeviceToDevice"),
        "fill": ("Memset", "fill"),
    }
    return next((way for way, spellings in words.items() if any(spelling in name for spelling in spellings)), "unknown")


def _bytes(activity: Work, launched: Counter[int]) -> int:
    """Return what a copy moves: by its own word, else by that of the call that launched nothing else; -1 if unknown."""
    own = activity.event.number("bytes") if activity.event.category in COPIES else -1
    return activity.call.number("bytes") if own < 0 and activity.call and launched[id(activity.call)] == 1 else own


def _delays(leaders: list[Work]) -> dict[str, float] | None:
    delays = [max(0, activity.start - activity.launched) / 1000 for activity in leaders]
    if not delays:
        return None
    return {
        "events": len(delays),
        "median_us": middle(delays),
        "p90_us": quantile(delays, 0.9),
        "longest_us": max(delays),
    }
