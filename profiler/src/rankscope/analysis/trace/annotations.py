"""What the host thread did, by its annotations: phases of a step, and activities that interrupt training.

torch annotates its data loader, ``Optimizer.step`` and ``Optimizer.zero_grad`` (torch/utils/data/dataloader.py,
torch/optim/optimizer.py), DDP and FSDP their forward passes, pipelines their micro-batches. All else is what scripts name with
``record_function``. Traces ``with_stack=True`` have Python functions, too; see ``classify.FUNCTIONS``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.categories import NOTE
from rankscope.analysis.trace.classify import Activity, activity_of_function
from rankscope.analysis.trace.columns import Trace
from rankscope.analysis.trace.intervals import Spans, clip, covered, intersect, join, measure, subtract, union
from rankscope.analysis.trace.work import COMMUNICATION, Steps, WorkEvents, annotated_steps, within
from rankscope.runs.records import Phase, StepBreakdown

HostKind = Phase | Activity
HostTimes = Mapping[HostKind, Mapping[int, float]]
"""Microseconds that a host kept its device waiting, by phase or activity, and by step."""

_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

_CHECKPOINT: Final = frozenset({"checkpoint", "checkpoints", "checkpointing", "ckpt", "save", "saving"})
_NOT_SAVING: Final = frozenset(
    # Activation checkpointing, tensors kept for backward, and reading.
    {"activation", "recompute", "recomputation", "forward", "backward", "function", "block", "layer", "tensor", "tensors"}
    | {"load", "loading", "restore", "resume", "read"}
)
_EVALUATION: Final = frozenset({"eval", "evaluate", "evaluating", "evaluation", "validate", "validating", "validation"})
_LOADER: Final = frozenset({"dataloader", "dataloading", "dataload"})
_BATCH: Final = frozenset({"data", "batch", "batches"})
_FETCH: Final = frozenset({"load", "loader", "loading", "fetch", "next", "get"})


@lru_cache(maxsize=4096)
def kind_of_annotation(name: str) -> HostKind | None:
    """Return what an annotation of the host thread marks, by the words of its name; ``None`` for anything else."""
    if (called := activity_of_function(name)) is not None:
        return called
    words = {word.lower() for word in _WORD.findall(name[:200])}
    kind: HostKind | None = None
    if "gc" in words or "garbage" in words:
        kind = "gc"
    elif words & _CHECKPOINT and not words & _NOT_SAVING:
        kind = "checkpoint"
    elif words & _EVALUATION:
        kind = "evaluation"
    elif words & _LOADER or (words & _BATCH and words & _FETCH):
        kind = "data"
    elif "optimizer" in words:
        kind = "optimizer"
    elif words & {"backward", "bwd"}:
        kind = "backward"
    elif words & {"forward", "fwd"}:
        kind = "forward"
    return kind


def host_times(trace: Trace, events: WorkEvents, windows: Sequence[StepBreakdown]) -> HostTimes | None:
    """Return the time that the host kept the device waiting in each phase and activity, by step, from its annotations.

    Phases count while the device is idle: what the host does while work is queued costs nothing. Activities count with the work
    that they launch, such as copies of a checkpoint, but without communication. Annotations inside an activity are no phases: an
    evaluation has forward passes, too. Checkpoints and evaluations outside all phases are ``between_steps``.

    ``windows``: those of the steps on the device. ``None`` without annotations of the thread that trains.
    """
    steps = annotated_steps(trace)
    is_note = (trace.category == NOTE) & (trace.thread == (-1 if steps is None else steps.thread))
    if steps is None or not is_note.any():
        return None
    kinds = np.array([kind_of_annotation(name) or "" for name in trace.names])[trace.name]
    rows: dict[HostKind, NDArray[np.intp]] = {
        kind: rows_of_kind
        for kind in get_args(Phase) + get_args(Activity)
        if len(rows_of_kind := np.flatnonzero(is_note & (kinds == kind)))
    }
    activities = [kind for kind in get_args(Activity) if kind in rows]
    interrupting = np.concatenate([np.empty(0, dtype=np.intp), *(rows[kind] for kind in activities)])
    notes: dict[HostKind, Spans] = {}
    for kind, rows_of_kind in rows.items():
        kept_rows = rows_of_kind if kind in activities else rows_of_kind[~within(trace, rows_of_kind, interrupting)]
        notes[kind] = union(trace.start[kept_rows], trace.end[kept_rows])
    if _runs_closure(trace, events, steps, notes):
        del notes["optimizer"]
    phases = [kind for kind in notes if kind not in activities]
    busy = events.work.busy()
    waited = {kind: subtract(notes[kind], busy) for kind in phases}
    waited |= {kind: _interruption(trace, events, rows[kind]) for kind in activities}
    between = [waited[kind] for kind in activities if kind != "gc"]
    if between:
        waited["between_steps"] = subtract(join(*between), join(*(notes[kind] for kind in phases)))
    begin, end = _bounds(steps, windows)
    numbers = [row.step for row in windows]
    return {kind: dict(zip(numbers, (covered(begin, end, spans) / 1000).tolist(), strict=True)) for kind, spans in waited.items()}


def _interruption(trace: Trace, events: WorkEvents, frames: NDArray[np.intp]) -> Spans:
    """Return the time of the annotations ``frames`` and the work launched in them, without other work and communication."""
    launched = events.launch_row >= 0
    launched[launched] = within(trace, events.launch_row[launched], frames)
    launched &= events.kind != COMMUNICATION
    inside = union(events.start[launched], events.end[launched])
    others = union(events.start[~launched], events.end[~launched])
    return subtract(join(union(trace.start[frames], trace.end[frames]), inside), others)


def _runs_closure(trace: Trace, events: WorkEvents, steps: Steps, notes: Mapping[HostKind, Spans]) -> bool:
    """Return whether ``Optimizer.step`` runs a closure with forward and backward, so that its annotation is no phase."""
    if "optimizer" not in notes:
        return False
    updates = notes["optimizer"]
    calls = events.launch_row[events.launch_row >= 0]
    autograd = trace.start[calls[trace.thread[calls] != steps.thread]]
    passes = [notes[kind] for kind in ("forward", "backward") if kind in notes]
    return bool(covered(autograd, autograd + 1, updates).any()) or len(intersect(updates, join(*passes))) > 0


def _bounds(steps: Steps, windows: Sequence[StepBreakdown]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and end of each window. What delays the first work of the first step counts to that step."""
    begin = np.array([row.start_unix_ns for row in windows], dtype=np.int64)
    end = begin + np.array([row.window_us * 1000 for row in windows]).astype(np.int64)
    first = [position for position, row in enumerate(windows) if position == 0 or row.step != windows[position - 1].step + 1]
    begin[first] = np.minimum(begin[first], steps.start[first])
    return begin, end


_LOADER_NOTE: Final = "enumerate(DataLoader)"
"""Prefix of the annotation that torch's DataLoader records."""


def input_wait_us(trace: Trace, events: WorkEvents) -> float | None:
    """Return the device's idle time during data loading, in microseconds.

    ``None`` for traces without device work (CPU builds) and traces without data loader annotations.
    """
    rows = trace.rows(NOTE, _LOADER_NOTE)
    work = events.work
    extent = work.extent()
    if extent is None or not len(rows) or not trace.has_device_work:
        return None
    loading = clip(union(trace.start[rows], trace.end[rows]), *extent)
    return measure(subtract(loading, work.busy())) / 1000
