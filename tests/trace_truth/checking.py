"""Check of the device events of a trace: which of them count, how long they last, and what is missing."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.trace_truth.cells import middle
from tests.trace_truth.reading import CALLS, COPIES, KERNELS, NOTES, OPERATORS, Event, File, RefusedError, read

SECOND = 10**9
MILLISECOND = 10**6
MINUTE = 60 * SECOND
HOST = CALLS + OPERATORS + NOTES
ROUNDING = 2_000
"""Overlap on a stream that is no damage, in nanoseconds."""
SHORT = 20_000
"""Usual length of a kernel from which rounding to whole microseconds makes none of 0, in nanoseconds."""


@dataclass
class Check:
    """Result of the check; times are nanoseconds."""

    device_events: int = 0
    without_time: int = 0
    far: int = 0
    overlong: int = 0
    launches: int = 0
    without_kernel: int = 0
    captured: int = 0
    missing: list[int] = field(default_factory=list)
    """Launch times of the device events that are missing or left out."""
    cut: list[int] = field(default_factory=list)
    """Launch times of the device events that were cut."""
    on_cpu: bool = False
    """True if nothing ran on a device, and nothing was launched."""
    problem: str | None = None
    """Why the trace does not show what the device did."""


def read_checked(path: Path) -> tuple[File, Check]:
    """Read a trace, and leave out or cut its damaged device events. Raises ``RefusedError``."""
    file = read(path)
    check = _Checking(file).run()
    if check.problem is None and not file.work_on_device and (not file.some(OPERATORS) or (file.torn and file.some(CALLS))):
        raise RefusedError("truncated" if file.torn else "nothing to analyse")
    return file, check


def calls_of(file: File) -> dict[int, Event]:
    """Return the call of each correlation: the first of the file."""
    calls: dict[int, Event] = {}
    for call in file.some(CALLS):
        calls.setdefault(call.number("correlation"), call)
    calls.pop(-1, None)
    return calls


def is_damaged(present: int, missing: int, cut: int) -> bool:
    """Return whether more than a fiftieth of some events is missing, or more than a fifth is cut."""
    return 50 * missing > missing + present or 5 * cut > present


class _Checking:
    def __init__(self, file: File) -> None:
        self.file = file
        self.latest = max((event.start - file.base for event in file.events if event.possible), default=0)
        self._leave_out_of_host()
        self.device = file.work_on_device
        self.host = file.some(HOST)
        self.calls = calls_of(file)
        self.result = Check(device_events=len(self.device))

    def _leave_out_of_host(self) -> None:
        """Leave out the host's events without a time, and those far from the others: they count as damaged."""
        timed = [event for event in self.file.some(HOST) if not self._is_untimed(event)]
        near = _places(timed, 100)
        usual = [event for event in timed if _is_near(event.start, near) or _is_near(event.end, near)]
        odd = [event for event in self.file.some(HOST) if event not in usual]
        self.file.events = [event for event in self.file.events if event not in odd]
        self.file.damaged += len(odd)

    def run(self) -> Check:
        """Return the result; the file has only the events that count, then."""
        counts, fine = self.result, any((event.end - event.start) % 1000 for event in self.device)
        untimed = [event for event in self.device if self._is_untimed(event) or self._has_no_length(event, fine=fine)]
        near = _places(self.host, 100) if self.host else _places([event for event in self.device if event not in untimed], 4)
        far = [event for event in self.device if event not in untimed and self._is_far(event, near)]
        far += self._late_on_idle_device([event for event in self.device if event not in untimed + far], near)
        kept = [event for event in self.device if event not in untimed and event not in far]
        counts.without_time, counts.far = len(untimed), len(far)
        ends = self._cut_ends(kept)
        counts.overlong = len(ends)
        counts.cut = [self._launched(event) for event in ends]
        about = [self._launched_about(event) for event in untimed + far]
        counts.missing = [at for at in about if at is not None]
        if None in about:
            counts.missing += [event.start for event in kept]
        for overrun, end in ends.items():
            overrun.end = end
        self.file.events = [event for event in self.file.events if event not in untimed and event not in far]
        self._count_launches()
        self._find_problem(kept)
        return counts

    def _call(self, event: Event) -> Event | None:
        return self.calls.get(event.number("correlation"))

    def _launched(self, event: Event) -> int:
        call = self._call(event)
        return event.start if call is None else call.start

    def _launched_about(self, launched: Event) -> int | None:
        """Return when an event was launched: where its call is missing, when that with the number before was; numbers ascend."""
        number, call = launched.number("correlation"), self._call(launched)
        if call is not None:
            return call.start
        calls = sorted((event for event in self.file.some(CALLS)), key=lambda event: event.number("correlation"))
        calls = [event for event in calls if event.number("correlation") >= 0]
        if number < 0 or not calls:
            return None
        if number > calls[-1].number("correlation"):
            return max(event.end for event in self.host) + 1
        before = [event.start for event in calls if event.number("correlation") < number]
        return before[-1] if before else min(event.start for event in self.host) - 1

    def _is_untimed(self, event: Event) -> bool:
        """Return whether an event has no time: none in the file, or both 0 in the file, or on the clock of the device."""
        at_zero = event.start == self.file.base and self.latest > SECOND
        return not event.possible or (event.start == event.end and (at_zero or (event.start <= 0 < self.file.base)))

    def _has_no_length(self, event: Event, *, fine: bool) -> bool:
        """Return whether a kernel takes no time, and rounding to whole microseconds does not explain that."""
        if event.start != event.end or event.category not in KERNELS:
            return False
        others = [
            other.end - other.start for other in self.device if _kernel(other) == _kernel(event) and other.start != other.end
        ]
        return fine or _usual(others, 0) >= SHORT

    def _is_far(self, event: Event, near: list[tuple[int, int]]) -> bool:
        call = self._call(event)
        return not _is_near(event.start, near) if call is None else not -SECOND <= event.start - call.start <= 10 * MINUTE

    def _late_on_idle_device(self, events: list[Event], near: list[tuple[int, int]]) -> list[Event]:
        """Return which events, far from all that the host did, were launched, but not begun, while the device did nothing."""
        late: list[Event] = []
        since = done = None
        for event in sorted(events, key=lambda item: item.start):
            if since is None or done is None or event.start > done + SECOND:
                since = event.start
            done = max(event.end, event.end if done is None else done)
            call = self._call(event)
            if call is not None and not _is_near(event.start, near) and call.end < since - SECOND:
                late.append(event)
        return late

    def _cut_ends(self, kept: list[Event]) -> dict[Event, int]:
        """Return the events that last too long, and when they end."""
        streams: dict[tuple[int, int], list[Event]] = defaultdict(list)
        for item in kept:
            # Nothing is known of the order of events without a stream.
            stream = item.number("stream")
            streams[(-1, -1) if stream < 0 else (item.number("device"), stream)].append(item)
        over: dict[Event, int] = {}
        last: list[Event] = []
        for (_, stream), events in streams.items():
            launches = _launches(sorted(events, key=lambda item: (item.start, item.end)))
            last += launches[-1]
            for launched, (following, *_) in pairwise(launches):
                over |= {event: following.start for event in launched if stream >= 0 and self._is_over(event, following)}
        lengths: dict[tuple[str, str], list[int]] = defaultdict(list)
        for item in kept:
            if item not in over:
                lengths[_kernel(item)].append(item.end - item.start)
        ends = {event: min(end, event.start + _usual(lengths[_kernel(event)], end)) for event, end in over.items()}
        return ends | self._endless(kept, last, ends)

    def _is_over(self, event: Event, following: Event) -> bool:
        if event.end - following.start <= max(ROUNDING, (event.end - event.start) / 100):
            return False
        call = self._call(following)
        is_early = call is not None and re.search(r"Launch\w*Kernel\w*Ex", call.name)
        return not (is_early and event.end <= following.end + ROUNDING)

    def _endless(self, kept: list[Event], last: list[Event], ends: dict[Event, int]) -> dict[Event, int]:
        """Return the last events of streams that go on for as long again as all the rest."""
        if not kept:
            return {}
        begin, latest = min(event.start for event in kept), max(event.start for event in kept)
        near = [event.end for event in self.host if begin - MINUTE <= event.start <= latest + MINUTE]
        latest = max([latest, *(min(end, latest + MINUTE) for end in near)])
        if latest <= begin:
            return {}
        others = [ends.get(event, event.end) - event.start for event in kept if event not in last]
        longest = max([latest - begin, *others])
        endless = {
            event: event.start + longest
            for event in last
            if event.end > latest + max(longest, SECOND // 10) and event.end - event.start > 2 * longest
        }
        usual = [event for event in kept if event not in ends and event not in endless]
        for item, end in endless.items():
            lengths = [other.end - other.start for other in usual if _kernel(other) == _kernel(item)]
            endless[item] = min(end, item.start + _usual(lengths, longest))
        return endless

    def _count_launches(self) -> None:
        """Count the calls that launch a kernel, and those whose kernel is nowhere in the file."""
        numbers = {event.number("correlation") for event in self.device} - {-1}
        tells = not self.file.torn and (numbers or not self.device)
        graphs = tells and all(self._call(event) is not None for event in self.device)
        calls = [
            event
            for event in self.file.some(CALLS)
            if event.number("correlation") >= 0
            and (
                _launches_kernel(event.name)
                or (graphs and _launches_graph(event.name) and event.number("correlation") not in numbers)
            )
        ]
        captured = [event for event in calls if tells and event.number("correlation") not in numbers and self._is_captured(event)]
        self.result.captured = len(captured)
        for launch in _nested([event for event in calls if event not in captured]):
            fine = [event for event in launch if event.number("correlation") in numbers or not tells]
            self.result.launches += len(fine) or 1
            if not fine:
                self.result.without_kernel += 1
                self.result.missing.append(launch[0].start)

    def _is_captured(self, event: Event) -> bool:
        """Return whether a call comes after the begin of a capture, or before the end of one, with no other bound between."""
        bounds = sorted((call.start, call.name) for call in self.file.some(CALLS) if re.search("(Begin|End)Capture", call.name))
        before = [name for start, name in bounds if start <= event.start]
        after = [name for start, name in bounds if start > event.start]
        return any("BeginCapture" in name for name in before[-1:]) or any("EndCapture" in name for name in after[:1])

    def _find_problem(self, kept: list[Event]) -> None:
        counts = self.result
        names = [event.name for event in self.file.some(CALLS)]
        gives_work = any(re.search("launch|enqueue|memcpy|memset", name, re.IGNORECASE) for name in names)
        counts.on_cpu = not kept and not gives_work
        is_capture = counts.captured > 9 * sum(item.category in KERNELS for item in kept)
        if kept and 2 * counts.without_kernel <= counts.launches and not is_capture:
            counts.problem = "damaged" if self._clocks_disagree(kept) else None
            return
        if self.device and not kept:
            counts.problem = "damaged"
        elif gives_work and not self.file.torn:
            counts.problem = "captured_graph" if is_capture and counts.captured > counts.without_kernel else "no_activity"

    def _clocks_disagree(self, kept: list[Event]) -> bool:
        """Return whether more than a fiftieth of the launched events is before its launch, or in another order than that."""
        launched = [(event, call.start) for event in kept if (call := self._call(event)) is not None]
        early = [event for event, at in launched if at - event.start > MILLISECOND]
        streams: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for event, at in launched:
            if event.number("stream") >= 0:
                streams[event.number("device"), event.number("stream")].append((event.start, at))
        disordered = sum(_disordered([at for _, at in sorted(events)]) for events in streams.values())
        return any(count > 1 and 50 * count > len(launched) for count in (len(early), disordered))


def _disordered(launches: list[int]) -> int:
    """Return how many launches must be left out for the others to ascend, where any is a millisecond before the last one."""
    if all(last - following <= MILLISECOND for last, following in pairwise(launches)):
        return 0
    longest: list[int] = []
    for place, at in enumerate(launches):
        longest.append(
            1 + max((length for length, before in zip(longest, launches[:place], strict=True) if before <= at), default=0)
        )
    return len(launches) - max(longest)


def _nested(calls: list[Event]) -> list[list[Event]]:
    """Return the calls of each launch: those that a thread makes inside another are part of it."""
    launches: list[list[Event]] = []
    thread, until = None, 0
    for call in sorted(calls, key=lambda event: (str(event.thread), event.start, -event.end)):
        is_inside = call.thread == thread and launches[-1][0].start < call.start < until
        until = max(call.end, until if call.thread == thread else call.end)
        thread = call.thread
        if is_inside:
            launches[-1].append(call)
        else:
            launches.append([call])
    return launches


def _places(events: list[Event], part: int) -> list[tuple[int, int]]:
    """Return where several events are, and this part of those at the largest place, with the time they take around them."""
    places: list[list[Event]] = []
    for event in sorted(events, key=lambda item: item.start):
        if places and event.start - places[-1][-1].start <= MINUTE:
            places[-1].append(event)
        else:
            places.append([event])
    spans = []
    largest = max(map(len, places), default=0)
    for place in places:
        begin, end = place[0].start, max(min(event.end, event.start + MINUTE) for event in place)
        slack = max(SECOND, end - begin)
        if part * len(place) >= largest and (len(place) > 1 or largest == 1):
            spans.append((begin - slack, end + slack))
    return spans


def _is_near(at: int, places: list[tuple[int, int]]) -> bool:
    return any(first <= at <= last for first, last in places)


def _launches(events: list[Event]) -> list[list[Event]]:
    """Return the events that one call launched together, as a graph does, in their order on a stream."""
    launches: list[list[Event]] = []
    for event in events:
        number = event.number("correlation")
        if launches and number >= 0 and number == launches[-1][-1].number("correlation"):
            launches[-1].append(event)
        else:
            launches.append([event])
    return launches


def _kernel(event: Event) -> tuple[str, str]:
    return event.name, str(event.args.get("grid") if event.category in KERNELS + COPIES else None)


def _usual(lengths: list[int], otherwise: int) -> int:
    return int(middle(lengths)) if lengths else otherwise


def _launches_kernel(name: str) -> bool:
    name = name.lower()
    return bool(re.search(r"launch\w*kernel|kernellaunch", name)) and not _launches_graph(name)


def _launches_graph(name: str) -> bool:
    return bool(re.search(r"graph\w*launch", name.lower()))
