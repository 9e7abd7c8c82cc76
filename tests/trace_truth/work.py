"""What the events of a trace are: compute, communication, copies; which call launched them; which step they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from tests.trace_truth.checking import Check, calls_of, is_damaged
from tests.trace_truth.reading import COPIES, DEVICE_NOTES, KERNELS, NOTES, OPERATORS, Event, File

COMMUNICATION_WORDS = ("nccl", "rccl", "ep::internode", "ep::intranode", "cross_device_reduce", "multimem_", "nvshmem", "oneccl")
COPY_WORDS = ("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer")
REQUESTS = ("nccl:", "record_param_comms", "c10d::", "_c10d_functional::", "symm_mem::")
NO_WORK_ON_CPU = ("autograd::engine::", "torch::autograd::", "torch.distributed.", "torch::distributed::", "c10d::", "profiler::")
CPU_LIBRARIES = ("gloo:", "mpi:", "ucc:")


@dataclass(eq=False)
class Work:
    """Event that is work."""

    event: Event
    kind: str
    """``compute``, ``communication`` or ``memcpy``."""
    call: Event | None
    """Call that launched it; ``None`` where the trace has none, and for work on the CPU."""

    @property
    def start(self) -> int:
        """Start in nanoseconds."""
        return self.event.start

    @property
    def end(self) -> int:
        """End in nanoseconds."""
        return self.event.end

    @property
    def on_device(self) -> bool:
        """True if it ran on a device."""
        return self.event.category in KERNELS + COPIES

    @property
    def launched(self) -> int:
        """Start of the call that launched it, else its own start."""
        return self.start if self.call is None else self.call.start


def work_of(file: File, *, on_cpu: bool) -> list[Work]:
    """Return the work of a trace in the order of the starts. ``on_cpu``: operators compute themselves."""
    calls = calls_of(file)
    activities = [Work(event, _kind(event), calls.get(event.number("correlation"))) for event in file.work_on_device]
    requests = [event for event in file.some(NOTES + OPERATORS) if event.name.startswith(REQUESTS)]
    for work in activities:
        between_devices = re.search(r"PtoP|Peer", work.event.name) and work.event.category in COPIES
        if between_devices and work.call is not None and any(is_inside(work.call, request) for request in requests):
            work.kind = "communication"
    activities += [Work(event, "communication", None) for event in file.some(NOTES) if event.name.startswith(CPU_LIBRARIES)]
    if on_cpu:
        computing = (
            operator
            for operator in file.some(OPERATORS)
            if "::" in operator.name and not operator.name.startswith(NO_WORK_ON_CPU)
        )
        activities += [Work(event, "compute", None) for event in computing]
    return sorted(activities, key=lambda work: work.start)


def is_inside(event: Event, frame: Event) -> bool:
    """Return whether an event starts inside another one of its thread."""
    return event.thread == frame.thread and frame.start <= event.start < frame.end


def _kind(event: Event) -> str:
    if event.args.get("Collective name"):
        return "communication"
    if event.category in COPIES or event.name.startswith(COPY_WORDS):
        return "memcpy"
    return "communication" if any(word in event.name.lower() for word in COMMUNICATION_WORDS) else "compute"


@dataclass
class Step:
    """Annotated step on the host."""

    number: int
    start: int
    end: int


def steps_of(file: File) -> list[Step]:
    """Return the annotated steps: those of the thread with most of them, each up to the next."""
    for categories in (NOTES, DEVICE_NOTES):
        notes = [event for event in file.some(categories) if re.fullmatch(r"ProfilerStep#\d+", event.name)]
        if notes:
            break
    threads = [event.thread for event in notes]
    chosen = [event for event in notes if event.thread == max(threads, key=threads.count)]
    steps = [
        Step(int(activity.name.partition("#")[2]), activity.start, activity.end)
        for activity in sorted(chosen, key=lambda note: note.start)
    ]
    for step, following in pairwise(steps):
        if following.number == step.number + 1 or step.end > following.start:
            step.end = following.start
    return steps


@dataclass
class Window:
    """Time that is divided."""

    start: int
    end: int
    complete: bool = True
    """False for a step of a device without work on it, or without a part of it."""


def window_of_file(work: Iterable[Work]) -> Window:
    """Return the time from the first start to the last end of work that takes time."""
    spans = [(activity.start, activity.end) for activity in work if activity.end > activity.start]
    return Window(min(start for start, _ in spans), max(end for _, end in spans))


def damaged_steps(file: File, check: Check, work: Iterable[Work]) -> list[Step]:
    """Return the steps that lack too many events, or have too many that were cut."""

    def count(times: Iterable[int], step: Step) -> int:
        return sum(step.start <= at < step.end for at in times)

    work = list(work)
    present, missing = [activity.launched for activity in work], missing_times(check, work)
    return [step for step in steps_of(file) if is_damaged(count(present, step), count(missing, step), count(check.cut, step))]


def missing_times(check: Check, work: Iterable[Work]) -> list[int]:
    """Return when the events were launched that are missing, or are collectives of unknown length."""
    waits = {activity.launched for activity in work if activity.kind == "communication" and activity.on_device}
    return check.missing + [at for at in check.cut if at in waits]


def windows_of_steps(file: File, check: Check, work: list[Work]) -> list[tuple[Step, Window]]:
    """Return the window of each step.

    On a device it begins with the first work that was launched in the step, and ends where that of the next step begins. Without
    a next step it ends with the last work.
    """
    steps = steps_of(file)
    if not file.work_on_device:
        return [(step, Window(step.start, step.end)) for step in steps]
    damaged = damaged_steps(file, check, work)
    launched = [[activity for activity in work if step.start <= activity.launched < step.end] for step in steps]
    windows = []
    for number, step in enumerate(steps):
        if not launched[number]:
            windows.append((step, Window(step.start, step.end, complete=False)))
            continue
        start, end = min(activity.start for activity in launched[number]), max(activity.end for activity in launched[number])
        if number + 1 < len(steps) and launched[number + 1] and steps[number + 1].number == step.number + 1:
            following = min(activity.start for activity in launched[number + 1])
            end = following if following >= start else end
        windows.append((step, Window(start, end, complete=step not in damaged)))
    return windows
