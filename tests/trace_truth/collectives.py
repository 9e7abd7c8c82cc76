"""Collectives of one trace: which operation of which group, from when to when, how many bytes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tests.trace_truth.figures import Figures
from tests.trace_truth.reading import COPIES, KERNELS, NOTES, OPERATORS, Event, whole_number
from tests.trace_truth.work import Step, Work, is_inside, steps_of

BYTES = {
    "float": 4,
    "bfloat16": 2,
    "half": 2,
    "double": 8,
    "long": 8,
    "long int": 8,
    "int": 4,
    "unsigned char": 1,
    "signed char": 1,
}
"""Bytes of an element, by the names of the metadata and of recorded shapes."""
SPELLINGS = {
    "allreduce": "all_reduce",
    "allgatherbase": "all_gather_base",
    "reducescatterbase": "reduce_scatter_base",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_allv",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "scatter": "scatter",
    "reduce": "reduce",
    "gather": "gather",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "coalesced": "coalesced",
}

INPUT_IS_MESSAGE = ("all_reduce", "reduce_scatter_base", "all_to_all", "broadcast", "reduce", "send", "recv")


@dataclass
class Collective:
    """Collective as one rank saw it; times are nanoseconds."""

    op: str
    group: str
    ranks: tuple[int, ...] | None
    size: int | None
    sequence: int | None
    dtype: str | None
    bytes: int | None
    enqueued: int
    start: int
    end: int
    on_cpu: bool = False
    peer: int | None = None
    root: int | None = None
    step: int = 0
    index: int = 0

    @property
    def arrived(self) -> int:
        """Arrival: the kernel's start on a device, the call on a CPU."""
        return self.enqueued if self.on_cpu else self.start

    @property
    def inside(self) -> int:
        """Time from the arrival to the end."""
        return self.end - self.arrived


def collectives_of(figures: Figures) -> list[Collective]:
    """Return the collectives, numbered per step and group in the order in which they were enqueued.

    Those whose kernel was cut are left out, and those of kernels without a sequence number in steps that lack such a one or any
    device event: the order of the others is not known.
    """
    steps = steps_of(figures.file)
    timed = [collective for collective in _on_device(figures) if collective.enqueued not in figures.check.cut]
    cut = [collective.enqueued for collective in _on_device(figures) if collective.enqueued in figures.check.cut]
    lacking = {_step(steps, at) for at in figures.check.missing + cut}
    kernels = [
        collective for collective in timed if collective.sequence is not None or _step(steps, collective.enqueued) not in lacking
    ]
    collectives = sorted(kernels + _by_copies(figures) + _on_cpu(figures), key=lambda item: (item.enqueued, item.start))
    numbers: Counter[tuple[int, str]] = Counter()
    for collective in collectives:
        collective.step = _step(steps, collective.enqueued)
        collective.index = numbers[collective.step, collective.group]
        numbers[collective.step, collective.group] += 1
    return collectives


def uncalled(figures: Figures) -> int:
    """Return the number of collectives of CPU workers whose call is not in the trace."""
    return sum(activity.event.category in NOTES for activity in figures.work) - len(_on_cpu(figures))


def _step(steps: list[Step], at: int) -> int:
    """Return the last step that has begun; before the first one, that one."""
    begun = [step for step in steps if step.start <= at]
    return begun[-1].number if begun else steps[0].number if steps else 0


def operation(spelling: str) -> str:
    """Return the one name of an operation."""
    word = spelling.rpartition(":")[2].split(" ")[0]
    return SPELLINGS.get(word.replace("_", "").lower(), word.strip("_").lower())


def _on_device(figures: Figures) -> list[Collective]:
    kernels = [activity for activity in figures.work if activity.kind == "communication" and activity.event.category in KERNELS]
    notes = [event for event in figures.file.some(NOTES) if event.name.startswith("nccl:")]
    note_of = {id(activity): _note(activity, notes) for activity in kernels}
    users = Counter(_user(activity, note_of[id(activity)]) for activity in kernels)
    streams: dict[int, int] = {}
    collectives = []
    for activity in kernels:
        streams.setdefault(activity.event.number("stream"), len(streams))
        note = note_of[id(activity)]
        args = activity.event.args
        spelling = args.get("Collective name") or (note.name if note else None)
        op = operation(spelling) if spelling else _operation_of_kernel(activity.event.name)
        if op == "all_to_allv" and all(len(set(numbers(args.get(f"{side} split size")))) <= 1 for side in ("In", "Out")):
            op = "all_to_all"
        base = _described(figures, args, op, f"stream-{streams[activity.event.number('stream')]}")
        base = replace(base, enqueued=min(activity.launched, activity.start), start=activity.start, end=activity.end)
        if note and not args.get("Collective name"):
            dtype, moved = _shapes(note, op)
            base = replace(base, dtype=dtype, bytes=moved)
        alone = users[_user(activity, note)] == 1
        if not alone:
            base = replace(base, bytes=None)
        parts = _parts(figures, note, notes) if note and alone and not args.get("Collective name") else []
        for part in parts:
            described = _described(figures, part.args, operation(part.args["Collective name"]), base.group)
            collectives.append(replace(described, enqueued=base.enqueued, start=base.start, end=base.end))
        collectives += [] if parts else [base]
    return collectives


def _described(figures: Figures, args: dict[str, Any], op: str, otherwise: str) -> Collective:
    """Return what the metadata says of a collective; ``otherwise``: its group where they do not name one."""
    name, size = args.get("Process Group Name"), whole_number(args.get("Group size"))
    configured = {str(group["pg_name"]): tuple(group["ranks"]) for group in figures.file.distributed.get("pg_config", [])}
    listed = tuple(numbers(args.get("Process Group Ranks")))
    # A long list is cut.
    ranks = configured.get(str(name)) or (listed if listed and size in (-1, len(listed)) else None)
    counts = [
        count for count in (whole_number(args.get("In msg nelems")), whole_number(args.get("Out msg nelems"))) if count >= 0
    ]
    width = BYTES.get(str(args.get("dtype")).lower())
    peer = whole_number(args.get("Dst Rank" if op == "send" else "Src Rank")) if op in ("send", "recv") else -1
    return Collective(
        op=op,
        group=otherwise if name is None else str(name),
        ranks=ranks,
        size=size if size >= 0 else len(ranks) if ranks else None,
        sequence=whole_number(args["Seq"]) if "Seq" in args else None,
        dtype=args.get("dtype"),
        bytes=max(counts) * width if counts and width else None,
        enqueued=0,
        start=0,
        end=0,
        peer=peer if peer >= 0 else None,
        root=_root(figures, op, whole_number(args.get("External id")), ranks),
    )


def _root(figures: Figures, op: str, call: int, ranks: tuple[int, ...] | None) -> int | None:
    """Return the root of an operation: the call of a kernel has its place in the group."""
    if op not in ("broadcast", "scatter", "reduce", "gather") or not ranks or call < 0:
        return None
    calls = [operator for operator in figures.file.some(OPERATORS) if operator.args.get("Collective name")]
    places = [operator.number("Rank") for operator in calls if operator.number("External id") == call]
    return ranks[places[-1]] if places and 0 <= places[-1] < len(ranks) else None


def numbers(value: Any) -> list[int]:
    """Return the numbers in a list, or in the text of one."""
    return list(value) if isinstance(value, list) else [int(digits) for digits in re.findall(r"\d+", value or "")]


def _note(activity: Work, notes: list[Event]) -> Event | None:
    """Return the annotation inside which a kernel was launched."""
    around = [note for note in notes if activity.call and is_inside(activity.call, note)]
    return around[-1] if around else None


def _user(activity: Work, note: Event | None) -> str:
    """Return what stands for the call of a kernel."""
    if activity.event.args.get("Collective name") and activity.event.number("External id") >= 0:
        return f"call {activity.event.number('External id')}"
    return f"note {id(note)}" if note else f"kernel {id(activity)}"


def _parts(figures: Figures, note: Event, notes: list[Event]) -> list[Event]:
    """Return the sends and receives of a batch: the calls on its thread since the batch before it."""
    if not note.name.startswith("nccl:coalesced"):
        return []
    before = [
        other.start for other in notes if other.name == note.name and other.thread == note.thread and other.start < note.start
    ]
    since = max(before, default=-1)
    calls = [operator for operator in figures.file.some(OPERATORS) if operator.args.get("Collective name") in ("send", "recv")]
    operators = [operator for operator in calls if operator.thread == note.thread and since < operator.start <= note.start]
    return sorted(operators, key=lambda collective: collective.start)


def _operation_of_kernel(name: str) -> str:
    name = name.replace("_all_reduce", "AllReduce").replace("cross_device_reduce", "AllReduce")
    match = re.search(r"AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|AllToAll|dispatch|combine|notify", name)
    return operation(match[0]) if match else "unknown"


def _by_copies(figures: Figures) -> list[Collective]:
    """Return the collectives of copy engines: the copies launched inside one call of a collective are one collective."""
    copies = [activity for activity in figures.work if activity.kind == "communication" and activity.event.category in COPIES]
    requests = [event for event in figures.file.some(OPERATORS) if event.args.get("Collective name")]
    by_request: dict[int, list[Work]] = defaultdict(list)
    for activity in copies:
        request = _note(activity, requests)
        assert request is not None, "the examples have a call with metadata around them"
        by_request[requests.index(request)].append(activity)
    collectives = []
    for number, of_request in by_request.items():
        args = requests[number].args
        base = _described(figures, args, operation(args["Collective name"]), "copy-engine")
        start, end = min(activity.start for activity in of_request), max(activity.end for activity in of_request)
        collectives.append(
            replace(base, enqueued=min(start, *(activity.launched for activity in of_request)), start=start, end=end)
        )
    return collectives


def _on_cpu(figures: Figures) -> list[Collective]:
    """Return the collectives of CPU workers: the k-th that a worker runs of an operation belongs to its k-th call."""
    calls: dict[str, list[Event]] = defaultdict(list)
    for call in sorted(figures.file.some(OPERATORS), key=lambda call: call.start):
        if call.name.startswith("c10d::"):
            calls[operation(call.name)].append(call)
    collectives = []
    for activity in figures.work:
        if activity.event.category not in NOTES:
            continue
        op = operation(activity.event.name)
        waiting = calls[op]
        if not waiting or waiting[0].start > activity.start:
            continue
        dtype, moved = _shapes(activity.event, op)
        collectives.append(
            Collective(op, "cpu", None, None, None, dtype, moved, waiting.pop(0).start, activity.start, activity.end, on_cpu=True)
        )
    return collectives


def _shapes(event: Event, op: str) -> tuple[str | None, int | None]:
    """Return type and bytes of the inputs, where their shapes were recorded and the inputs are the whole message."""
    shapes, types = event.args.get("Input Dims"), event.args.get("Input type")
    if (
        op not in INPUT_IS_MESSAGE
        or not shapes
        or not types
        or len(shapes) != len(types)
        or not all(isinstance(shape, list) for shape in shapes)
    ):
        return None, None
    if any(dtype_name.removeprefix("c10::").lower() not in BYTES for dtype_name in types):
        return None, None
    total = sum(prod(shape) * BYTES[dtype.removeprefix("c10::").lower()] for shape, dtype in zip(shapes, types, strict=True))
    return (types[0] if len(set(types)) == 1 else None), total
