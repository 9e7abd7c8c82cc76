"""Discrete-event model of NCCL jobs: host threads that launch, compute streams and one communication stream per process group.

The semantics, so that they can be disputed:

- A host only launches. Its time passes by launches, by its own work and by waiting for its device (``synchronize``), never by
  waiting for a collective (torch docs, "CUDA semantics": asynchronous execution).
- A kernel starts when it has been launched, its stream is free, and what the stream waits for has ended.
- A collective's kernel starts on each rank by itself: when it has been launched, the compute that was launched before it has
  ended, and the group's stream is free (``ProcessGroupNCCL`` runs each communicator on a stream of its own, which waits for the
  current one).
- In all-reduce, all-gather, reduce-scatter and all-to-all no rank leaves before the last has arrived. Kernels of all ranks end
  together, the transfer after the last start, so a rank waits for its duration minus the least one. In an uneven all-to-all a
  rank leaves when what it sends and receives has been moved.
- A send and its receive end together, the transfer after the later start: messages are large, so the sender waits for the
  receiver. A batch of them is one kernel, which ends with the last of its parts.
- Compute and communication do not slow each other down.

Times are microseconds on one clock; writers add the clocks of the hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

LATENCY_US = 5.0
"""Time from a launch to the earliest start of its kernel."""

Program = Generator["Event", None, None]
"""Program of one rank: yields the events that its device must have reached before it goes on."""


class Event:
    """Point in the time of a device, known or not yet."""

    def __init__(self, at: float | None = None) -> None:
        self.at = at
        self._then: list[Callable[[], None]] = []

    def resolve(self, at: float) -> None:
        """Set the time, and run what waits for it."""
        self.at = at
        for action in self._then:
            action()

    def then(self, action: Callable[[], None]) -> None:
        """Run ``action`` when the time is known."""
        if self.at is None:
            self._then.append(action)
        else:
            action()


@dataclass(slots=True)
class Launch:
    """Kernel as a rank launched it."""

    name: str
    step: int
    stream: int
    autograd: bool
    launched_us: float
    """Time at which the host had launched it."""
    host_us: float
    """Time that the host took for it."""
    start_us: float = 0.0
    end_us: float = 0.0
    grid: int = 1
    op: str = ""
    """Operation of a collective, empty for compute."""
    group: str = ""
    sequence: int = 0
    elements: tuple[int, int] = (0, 0)
    """Elements that a collective reads and writes."""
    splits: tuple[list[int], list[int]] | None = None
    """Elements of an uneven all-to-all by the other rank: sent and received."""
    parts: list[tuple[str, int, int]] = field(default_factory=list)
    """Sends and receives of a batch: operation, the other rank's place in the group, and elements."""


@dataclass(slots=True)
class Note:
    """Annotation of the host thread."""

    name: str
    step: int
    start_us: float
    end_us: float


class Cut(NamedTuple):
    """Begin of a phase of the step: when the host was there, and when the stream that computes is done with all before it."""

    phase: str
    host_us: float
    device_us: float


@dataclass(slots=True)
class _Meeting:
    """Collective, or one message, for which ranks arrive one by one."""

    members: int
    transfer_us: Callable[[int], float]
    """Function from a rank to the time that it takes after the last has arrived."""
    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, Event] = field(default_factory=dict)

    def arrive(self, rank: int, at: float) -> None:
        self.starts[rank] = at
        if len(self.starts) == self.members:
            last = max(self.starts.values())
            for member, end in self.ends.items():
                end.resolve(last + self.transfer_us(member))


class Rank:
    """One rank: its host, its streams, and what it did."""

    def __init__(self, job: NcclJob, rank: int) -> None:
        self.job, self.rank = job, rank
        self.host_us = 0.0
        self.step = 0
        self.cuts: list[Cut] = []
        self.launches: list[Launch] = []
        self.notes: list[Note] = []
        self._compute = 0.0
        self._streams: dict[str, Event] = {}
        self._numbers: dict[str, int] = {}
        self._sequence: Counter[str] = Counter()

    @property
    def autograd(self) -> bool:
        """True in a backward pass."""
        return bool(self.cuts) and self.cuts[-1].phase == "backward"

    def enter(self, phase: str) -> None:
        """Begin a phase of the step."""
        self.cuts.append(Cut(phase, self.host_us, max(self.host_us, self._compute)))

    def host(self, us: float, note: str = "") -> None:
        """Let the host work, under an annotation if it has a name."""
        begin = self.host_us
        self.host_us += us
        if note:
            self.notes.append(Note(note, self.step, begin, self.host_us))

    def kernel(self, name: str, us: float, *, grid: int = 128) -> None:
        """Launch compute."""
        launch = self._launch(name, 7, grid=grid)
        launch.start_us = max(self.host_us + LATENCY_US, self._compute)
        launch.end_us = self._compute = launch.start_us + us * self.job.slowness(self, name)

    def collective(
        self,
        group: str,
        op: str,
        elements: tuple[int, int],
        us: float,
        *,
        splits: tuple[list[int], list[int]] | None = None,
        own_us: Callable[[int], float] | None = None,
    ) -> Event:
        """Launch a collective that takes ``us`` after its last rank has come; return when it ends on this rank.

        ``own_us``: function from a rank to that time where it differs.
        """
        self._sequence[group] += 1
        number = self._sequence[group]
        launch = self._communication(group, f"ncclDevKernel_{op}", elements, op=op, sequence=number)
        launch.splits = splits
        slow = self.job.link(group, self.step)
        meeting = self.job.meeting(
            (group, op, number), len(self.job.groups[group]), own_us if own_us is not None else lambda _rank: us * slow
        )
        return self._join(launch, group, [meeting])

    def exchange(self, group: str, parts: Iterable[tuple[str, int, int]], us: float) -> Event:
        """Launch a batch of sends and receives; return when it ends.

        ``parts``: operation, the other rank's place in the group, and elements of each.
        """
        parts = list(parts)
        launch = self._communication(group, "ncclDevKernel_SendRecv", (0, 0), op="exchange")
        launch.parts = parts
        return self._join(launch, f"{group} p2p", [self._message(group, op, other, us) for op, other, _ in parts])

    def _message(self, group: str, op: str, other: int, us: float) -> _Meeting:
        """Return the meeting of a send or receive with its other side."""
        place = self.job.groups[group].index(self.rank)
        ends = (place, other) if op == "send" else (other, place)
        self._sequence[f"{group} {op} {ends}"] += 1
        key = (group, f"message {ends}", self._sequence[f"{group} {op} {ends}"])
        slow = self.job.link(group, self.step)
        return self.job.meeting(key, 2, lambda _rank: us * slow)

    def transfer(self, group: str, op: str, other: int, elements: int, us: float) -> Event:
        """Launch one send or receive of ``other``, a place in the group; return when it ends. Each pair of ranks has a stream."""
        place = self.job.groups[group].index(self.rank)
        launch = self._communication(f"{group} {sorted((place, other))}", "ncclDevKernel_SendRecv", (elements,) * 2, op=op)
        launch.group, launch.parts = group, [(op, other, elements)]
        meeting = self._message(group, op, other, us)
        return self._join(launch, f"{group} {sorted((place, other))}", [meeting])

    def wait(self, event: Event) -> Program:
        """Let compute that is launched from now on wait for ``event``; the host goes on."""
        if event.at is None:
            yield event
        assert event.at is not None
        self._compute = max(self._compute, event.at)

    def synchronize(self) -> None:
        """Let the host wait for its compute, as by reading a loss."""
        self.host_us = max(self.host_us, self._compute)

    def _launch(self, name: str, stream: int, *, grid: int = 1) -> Launch:
        took = self.job.launch_us(self)
        launch = Launch(name, self.step, stream, self.autograd, self.host_us, took, grid=grid)
        self.host_us += took
        self.launches.append(launch)
        return launch

    def _communication(self, group: str, name: str, elements: tuple[int, int], *, op: str, sequence: int = 0) -> Launch:
        number = self._numbers.setdefault(group, len(self._numbers))
        launch = self._launch(name, 7 if group in self.job.on_current_stream else 20 + number)
        launch.op, launch.group, launch.elements, launch.sequence = op, group, elements, sequence
        return launch

    def _join(self, launch: Launch, stream: str, meetings: Sequence[_Meeting]) -> Event:
        before, done = self._streams.get(stream, Event(0.0)), Event()
        self._streams[stream] = done
        earliest = max(self.host_us + LATENCY_US, self._compute)
        ends = [meeting.ends.setdefault(self.rank, Event()) for meeting in meetings]

        def finish() -> None:
            if done.at is None and all(end.at is not None for end in ends):
                launch.end_us = max(end.at for end in ends if end.at is not None)
                done.resolve(launch.end_us)

        def start() -> None:
            assert before.at is not None
            launch.start_us = max(earliest, before.at)
            for meeting in meetings:
                meeting.arrive(self.rank, launch.start_us)

        for end in ends:
            end.then(finish)
        before.then(start)
        return done


class NcclJob:
    """Simulated job: ``groups`` of ranks by name, and the ``ranks`` with what they did after ``play``."""

    def __init__(self, groups: dict[str, list[int]], *, seed: int = 0, noise: float = 0.01) -> None:
        self.groups = groups
        self.world = 1 + max(max(members) for members in groups.values())
        self.ranks = [Rank(self, rank) for rank in range(self.world)]
        self.rng = np.random.default_rng(seed)
        self.noise = noise
        self.on_current_stream: frozenset[str] = frozenset()
        """Groups whose collectives run on the stream that computes, as synchronous ones do since torch 2.8."""
        self.bias = 1 + self.rng.normal(0, 0.003, self.world)
        self._meetings: dict[tuple[str, str, int], _Meeting] = {}

    def slowness(self, rank: Rank, name: str) -> float:
        """Return the factor by which a kernel takes longer than usual."""
        del name
        return float(self.bias[rank.rank] * (1 + abs(self.rng.normal(0, self.noise))))

    def launch_us(self, rank: Rank) -> float:
        """Return the host's time for one launch."""
        del rank
        return 8.0 + float(self.rng.exponential(1.0))

    def link(self, group: str, step: int) -> float:
        """Return the factor by which transfers of a group take longer than usual."""
        del group, step
        return 1.0

    def meeting(self, key: tuple[str, str, int], members: int, transfer_us: Callable[[int], float]) -> _Meeting:
        """Return the meeting of this key; the first that comes makes it."""
        return self._meetings.setdefault(key, _Meeting(members, transfer_us))

    def play(self, programs: Sequence[Program]) -> None:
        """Run the programs of all ranks. Raises ``RuntimeError`` if they wait for each other for ever."""
        ready = list(range(len(programs)))
        remaining = set(ready)
        while ready:
            number = ready.pop()
            event = next(programs[number], None)
            if event is None:
                remaining.discard(number)
            else:
                event.then(partial(ready.append, number))
        if remaining:
            raise RuntimeError(f"ranks {sorted(remaining)[:8]} wait for ever")
        self._meetings.clear()
