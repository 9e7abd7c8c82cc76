"""Kineto traces, from the 2021 schema to today: JSON in, columns out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.classify import ANNOTATION, CPU_COMMUNICATION, CPU_OP, GPU_ANNOTATION, GPU_COPY, GPU_KERNEL, LAUNCH
from rankscope.analysis.kineto_schema import Distributed, Event, EventArgs, TraceFile, decode_trace, number, whole
from rankscope.analysis.trace_file import read_trace_bytes
from rankscope.runs.errors import InputError
from rankscope.runs.records import DeviceKind

KERNEL: Final = 0
COPY: Final = 1
OPERATOR: Final = 2
NOTE: Final = 3
LAUNCHED: Final = 4
DEVICE_NOTE: Final = 5

RECORDED: Final = 1
BACKWARD: Final = 2
"""Values of ``Trace.autograd``; 0 is an operator that autograd did not see, and everything that is no operator."""

_CATEGORIES: Final[dict[str, int]] = {
    **dict.fromkeys(GPU_KERNEL, KERNEL),
    **dict.fromkeys(GPU_COPY, COPY),
    **dict.fromkeys(CPU_OP, OPERATOR),
    **dict.fromkeys(ANNOTATION, NOTE),
    **dict.fromkeys(LAUNCH, LAUNCHED),
    **dict.fromkeys(GPU_ANNOTATION, DEVICE_NOTE),
}

_ABSURD_US: Final = 366 * 86_400 * 1e6
"""A duration of more than a year is damage, not an event."""


_ABSURD_TIME_US: Final = 4e15
"""Unix time until the year 2096; with a base of the same size it still fits 64 bits of nanoseconds."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace as columns, one row per event that can be work, a launch or an annotation, in file order.

    Times are int64 nanoseconds: unix time where the trace has a base or absolute timestamps, which is every trace since 2021.
    Missing integers are -1.
    """

    path: Path
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    device_kind: DeviceKind
    groups: dict[str, tuple[int, ...]]
    """Process-group name to its ranks, from ``distributedInfo``."""
    names: list[str]
    """The distinct event names; ``name`` is an index into it."""
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    category: NDArray[np.int8]
    name: NDArray[np.int32]
    thread: NDArray[np.int64]
    """CPU thread, numbered in order of appearance."""
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    device: NDArray[np.int16]
    bytes: NDArray[np.int64]
    """What a copy, or the call that asked for it, says it moves."""
    grid: NDArray[np.int32]
    """Launch grid of a kernel, numbered in order of appearance."""
    graphed: NDArray[np.bool_]
    """Whether the event says that it is a node of a device graph."""
    autograd: NDArray[np.int8]
    """``RECORDED``: an operator called with gradients on, as forward is. ``BACKWARD``: an operator of a backward pass."""
    metadata: dict[int, EventArgs] = field(default_factory=dict)
    """Row to communication arguments, for rows that have them, and for annotations of communication."""
    gpu_names: list[str] = field(default_factory=list)
    """Names of the host's accelerators, as far as this process saw them."""
    events: int = 0
    """Events in the file, used or not."""
    damaged: int = 0
    """Events left out because their times or types make no sense."""

    @property
    def has_device_work(self) -> bool:
        """Whether anything ran on an accelerator."""
        return bool((self.category <= COPY).any())

    def rows(self, category: int) -> NDArray[np.intp]:
        """Indices of the events of one category."""
        return np.flatnonzero(self.category == category)


def read_trace(path: Path) -> Trace:
    """Read one trace, plain or gzip, an object or a bare list of events.

    Raises ``InputError`` naming the file and what is wrong with it: missing, empty, truncated, not JSON, JSON but no trace,
    or a trace in which nothing computes.
    """
    file, damaged = decode_trace(path, read_trace_bytes(path))
    trace = _columns(path, file, damaged)
    if not trace.has_device_work and not len(trace.rows(OPERATOR)):
        raise InputError(path, f"nothing to analyse: neither device work nor CPU operators among its {trace.events} events")
    return trace


def _columns(path: Path, file: TraceFile, damaged: int) -> Trace:
    kept: list[Event] = []
    codes: list[int] = []
    for event in file.traceEvents:
        if event.ph == "X" and event.cat is not None and (code := _CATEGORIES.get(event.cat.lower())) is not None:
            kept.append(event)
            codes.append(code)
    start_us = np.array([number(event.ts) for event in kept], dtype=np.float64)
    length_us = np.array([number(event.dur) for event in kept], dtype=np.float64)
    sane = np.isfinite(start_us) & (np.abs(start_us) < _ABSURD_TIME_US) & (length_us >= 0) & (length_us < _ABSURD_US)
    if not sane.all():
        damaged += int((~sane).sum())
        rows = np.flatnonzero(sane)
        kept = [kept[row] for row in rows]
        codes = [codes[row] for row in rows]
        start_us, length_us = start_us[sane], length_us[sane]
    base = file.baseTimeNanoseconds or 0
    if not 0 <= base < 2**62:
        base = 0
    start = _nanoseconds(start_us) + base
    names: dict[str, int] = {}
    threads: dict[tuple[object, object], int] = {}
    grids: dict[str, int] = {}
    distributed = file.distributedInfo or Distributed()
    return Trace(
        path=path,
        rank=distributed.rank if distributed.rank is not None else _rank_in_name(path.name),
        world_size=distributed.world_size,
        backend=distributed.backend,
        host=file.host_name,
        device_kind=_device_kind(file, codes, kept),
        groups=_groups(distributed),
        name=np.array([names.setdefault(str(event.name), len(names)) for event in kept], dtype=np.int32),
        names=list(names),
        start=start,
        end=start + _nanoseconds(length_us),
        category=np.array(codes, dtype=np.int8),
        thread=np.array([threads.setdefault((event.pid, event.tid), len(threads)) for event in kept], dtype=np.int64),
        stream=np.array([whole(event.args.stream if event.args else None) for event in kept], dtype=np.int64),
        correlation=np.array([whole(event.args.correlation if event.args else None) for event in kept], dtype=np.int64),
        device=np.array([_device(event.args) for event in kept], dtype=np.int16),
        bytes=np.array([whole(event.args.bytes if event.args else None) for event in kept], dtype=np.int64),
        grid=np.array([_grid(event.args, grids) for event in kept], dtype=np.int32),
        graphed=np.array([event.args is not None and whole(event.args.graph_node) > 0 for event in kept], dtype=np.bool_),
        autograd=np.array([_autograd(event.args) for event in kept], dtype=np.int8),
        metadata={
            row: event.args.detached()
            for row, (event, code) in enumerate(zip(kept, codes, strict=True))
            if event.args is not None
            and (event.args.collective or (code == NOTE and str(event.name).startswith(("nccl:", *CPU_COMMUNICATION))))
        },
        gpu_names=[device.name for device in file.deviceProperties or [] if device.name],
        events=len(file.traceEvents),
        damaged=damaged,
    )


def _device(args: EventArgs | None) -> int:
    number = -1 if args is None or args.device is None else whole(args.device)
    return number if number < 2**15 else -1


def _grid(args: EventArgs | None, numbers: dict[str, int]) -> int:
    return -1 if args is None or args.grid is None else numbers.setdefault(str(args.grid), len(numbers))


def _autograd(args: EventArgs | None) -> int:
    if args is None or args.autograd_sequence is None or whole(args.autograd_sequence) < 0:
        return 0
    return BACKWARD if whole(args.forward_thread) > 0 else RECORDED


def _nanoseconds(us: NDArray[np.float64]) -> NDArray[np.int64]:
    # Whole and fraction apart: 1.7e15 us (unix time) times 1000 exceeds what a float64 holds exactly.
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _groups(distributed: Distributed) -> dict[str, tuple[int, ...]]:
    return {
        str(group.pg_name): tuple(group.ranks)
        for group in distributed.pg_config or []
        if group.pg_name is not None and group.ranks
    }


_RANK_IN_NAME: Final[tuple[re.Pattern[str], ...]] = (
    re.compile(r"(?:rank|worker|trainer)[-_.\[]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"(?:^|[-_.])r?(\d{1,7})(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$", re.IGNORECASE),
)


def _rank_in_name(name: str) -> int | None:
    for pattern in _RANK_IN_NAME:
        if found := pattern.search(name):
            return int(found.group(1))
    return None


def _device_kind(file: TraceFile, codes: Sequence[int], kept: Sequence[Event]) -> DeviceKind:
    if not any(code <= COPY for code in codes):
        return "cpu"
    said = " ".join(device.name or "" for device in file.deviceProperties or []).lower()
    categories = {str(event.cat) for event in kept}
    if (
        "amd" in said
        or "instinct" in said
        or any(str(event.name).startswith("hip") for event in kept if event.cat == "cuda_runtime")
    ):
        return "rocm"
    if any(category.startswith("xpu_") for category in categories):
        return "xpu"
    if any(category.startswith(("mtia_", "privateuse1_")) for category in categories):
        return "other"
    return "cuda"
