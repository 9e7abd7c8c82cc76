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
MINUTE = 60 * SECOND
ROUNDING = 2_000
"""Overlap on a stream that is no damage, in nanoseconds."""


@dataclass
class Check:
    """Result of the check; times are nanoseconds."""

    device_events: int = 0
    without_time: int = 0
    far: int = 0
    overlong: int = 0
    launches: int = 0
    without_kernel: int = 0
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
        self.device = file.work_on_device
        self.host = file.some(CALLS + OPERATORS + NOTES)
        self.calls = calls_of(file)
        self.found = Check(device_events=len(self.device))

    def run(self) -> Check:
        """Return the result; the file has only the events that count, then."""
        found, fine = self.found, any((one.end - one.start) % 1000 for one in self.device)
        untimed = [one for one in self.device if self._is_untimed(one, fine=fine)]
        far = [one for one in self.device if one not in untimed and self._is_far(one, untimed)]
        kept = [one for one in self.device if one not in untimed and one not in far]
        found.without_time, found.far = len(untimed), len(far)
        ends = self._cut_ends(kept)
        found.overlong = len(ends)
        found.cut = [self._launched(one) for one in ends]
        found.missing = [self._launched(one) for one in untimed + far if self._call(one)]
        if any(self._call(one) is None for one in untimed + far):
            found.missing += [one.start for one in kept]
        for one, end in ends.items():
            one.end = end
        self.file.events = [one for one in self.file.events if one not in untimed and one not in far]
        self._count_launches()
        self._find_problem(kept)
        return found

    def _call(self, one: Event) -> Event | None:
        return self.calls.get(one.number("correlation"))

    def _launched(self, one: Event) -> int:
        call = self._call(one)
        return one.start if call is None else call.start

    def _is_untimed(self, one: Event, *, fine: bool) -> bool:
        """Return whether an event has no time: both 0, 0 on the clock of the device, or no length where others have fractions."""
        start = one.start - self.file.base
        return one.start == one.end and (start == 0 or one.start <= 0 or fine)

    def _is_far(self, one: Event, untimed: list[Event]) -> bool:
        call = self._call(one)
        if call is not None and not -SECOND <= one.start - call.start <= 10 * MINUTE:
            return True
        times = sorted(event.start for event in self.host or [event for event in self.device if event not in untimed])
        places: list[list[int]] = []
        for at in times:
            if places and at - places[-1][-1] <= MINUTE:
                places[-1].append(at)
            else:
                places.append([at])
        return not any(self._is_near(one.start, place) for place in places if 10 * len(place) >= len(times))

    def _is_near(self, at: int, place: list[int]) -> bool:
        """Return whether a time is at most as far from a place as that is long, or a second."""
        begin, last = place[0], place[-1]
        end = max([last, *(min(event.end, last + MINUTE) for event in self.host if begin <= event.start <= last)])
        slack = max(SECOND, end - begin)
        return begin - slack <= at <= end + slack

    def _cut_ends(self, kept: list[Event]) -> dict[Event, int]:
        """Return the events that last too long, and when they end."""
        streams: dict[tuple[int, int], list[Event]] = defaultdict(list)
        for one in kept:
            # Nothing is known of the order of events without a stream.
            stream = one.number("stream")
            streams[(-1, -1) if stream < 0 else (one.number("device"), stream)].append(one)
        over: dict[Event, int] = {}
        for (_, stream), events in streams.items():
            events.sort(key=lambda one: (one.start, one.end))
            for one, following in pairwise(events):
                if stream >= 0 and self._is_over(one, following):
                    over[one] = following.start
        lengths: dict[tuple[str, str], list[int]] = defaultdict(list)
        for one in kept:
            if one not in over:
                lengths[_kernel(one)].append(one.end - one.start)
        ends = {one: min(end, one.start + _usual(lengths[_kernel(one)], end)) for one, end in over.items()}
        return ends | self._endless(kept, [events[-1] for events in streams.values()], ends)

    def _is_over(self, one: Event, following: Event) -> bool:
        number = one.number("correlation")
        if one.end - following.start <= ROUNDING or (number >= 0 and number == following.number("correlation")):
            return False
        call = self._call(following)
        is_early = call is not None and re.search(r"Launch\w*Kernel\w*Ex", call.name)
        return not (is_early and one.end <= following.end + ROUNDING)

    def _endless(self, kept: list[Event], last: list[Event], ends: dict[Event, int]) -> dict[Event, int]:
        """Return the last events of streams that go on for as long again as all the rest."""
        if not kept:
            return {}
        begin, latest = min(one.start for one in kept), max(one.start for one in kept)
        near = [one.end for one in self.host if begin - MINUTE <= one.start <= latest + MINUTE]
        latest = max([latest, *(min(end, latest + MINUTE) for end in near)])
        if latest <= begin:
            return {}
        others = [ends.get(one, one.end) - one.start for one in kept if one not in last]
        longest = max([latest - begin, *others])
        found = {one: one.start + longest for one in last if one.end > latest + longest and one.end - one.start > 2 * longest}
        usual = [one for one in kept if one not in ends and one not in found]
        for one, end in found.items():
            lengths = [other.end - other.start for other in usual if _kernel(other) == _kernel(one)]
            found[one] = min(end, one.start + _usual(lengths, longest))
        return found

    def _count_launches(self) -> None:
        """Count the calls that launch a kernel, and those whose kernel is nowhere in the file."""
        numbers = {one.number("correlation") for one in self.device} - {-1}
        calls = [one for one in self.file.some(CALLS) if _launches_kernel(one.name) and one.number("correlation") >= 0]
        self.found.launches = len(calls)
        if not self.file.torn and (numbers or not self.device):
            lost = [one for one in calls if one.number("correlation") not in numbers]
            self.found.without_kernel = len(lost)
            self.found.missing += [one.start for one in lost]

    def _find_problem(self, kept: list[Event]) -> None:
        found = self.found
        names = [one.name for one in self.file.some(CALLS)]
        gives_work = any(re.search("launch|enqueue|memcpy|memset", name, re.IGNORECASE) for name in names)
        found.on_cpu = not kept and not gives_work
        if kept and 2 * found.without_kernel <= found.launches:
            return
        if self.device and not kept:
            found.problem = "damaged"
        elif gives_work and not self.file.torn:
            captures = found.launches and any("BeginCapture" in name for name in names)
            found.problem = "captured_graph" if captures else "no_activity"


def _kernel(one: Event) -> tuple[str, str]:
    return one.name, str(one.args.get("grid") if one.category in KERNELS + COPIES else None)


def _usual(lengths: list[int], otherwise: int) -> int:
    return int(middle(lengths)) if lengths else otherwise


def _launches_kernel(name: str) -> bool:
    name = name.lower()
    return bool(re.search(r"launch\w*kernel|kernellaunch", name)) and not re.search(r"graph\w*launch", name)
