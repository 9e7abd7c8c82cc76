"""Types of the operations of a traced training step, and the operations of a job as dense arrays.

Every kept step has every operation on every replica. The types are named as in the sample format; to add one, add a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Meets = Literal["nobody", "neighbour", "replicas", "outer_stages", "everybody"]
"""Ranks that an operation waits for: none; the rank of the stage before or after; the same stage of all data-parallel
replicas; the first and the last stage of its own replica; every rank.
"""


@dataclass(frozen=True, slots=True)
class OperationType:
    """Type of operations.

    Its ideal duration is the median of the transfers if it ``communicates``, else the mean of the durations. ``part`` is its name
    in ``by_op`` if it differs from ``name``.
    """

    name: str
    communicates: bool = False
    meets: Meets = "nobody"
    part: str = ""

    @property
    def reported_as(self) -> str:
        """Name of the type in ``by_op``."""
        return self.part or self.name


FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
GATHER: Final = "params-all-gather"
REDUCE: Final = "grads-reduce-scatter"
SEPARATE: Final = "separate-grads-all-reduce"
COLLECTION: Final = "gc"
LAYERNORM: Final = "layernorm-grads-all-reduce"
EMBEDDING: Final = "embedding-grads-all-reduce"
CLIP: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"

_FORWARD_TRANSFERS: Final = "forward-pp-comm"
_BACKWARD_TRANSFERS: Final = "backward-pp-comm"

TYPES: Final[tuple[OperationType, ...]] = (
    OperationType(FORWARD),
    OperationType(BACKWARD),
    OperationType("forward-send", communicates=True, meets="neighbour", part=_FORWARD_TRANSFERS),
    OperationType("forward-recv", communicates=True, meets="neighbour", part=_FORWARD_TRANSFERS),
    OperationType("backward-send", communicates=True, meets="neighbour", part=_BACKWARD_TRANSFERS),
    OperationType("backward-recv", communicates=True, meets="neighbour", part=_BACKWARD_TRANSFERS),
    OperationType(GATHER, communicates=True, meets="replicas"),
    OperationType(REDUCE, communicates=True, meets="replicas"),
    OperationType(SEPARATE, communicates=True, meets="replicas"),
    OperationType(COLLECTION),
    # Among tensor-parallel ranks, of which the format traces only one: the trace has no other rank to wait for.
    OperationType(LAYERNORM, communicates=True),
    OperationType(EMBEDDING, communicates=True, meets="outer_stages"),
    OperationType(CLIP, communicates=True, meets="everybody"),
    OperationType(OPTIMIZER),
)

CODES: Final[dict[str, int]] = {row.name: code for code, row in enumerate(TYPES)}
"""Name of a type to its row in ``TYPES``."""

LIMITS: Final[dict[str, int]] = {"step": 2**38, "dp_rank": 2**20, "stage": 2**16, "seq_id": 2**31, "rank": 2**31}
"""Exclusive bound of each column: larger values are damage, and keys would not fit into 64 bits."""

MAX_SECONDS: Final = 366 * 86_400.0
"""Maximum duration of an operation: a year."""

MAX_NODES: Final = 100_000
"""Maximum operations of one replica in one step, which are played one by one; hundreds to thousands are typical."""

LATEST_SECONDS: Final = 2.0**53
"""Largest absolute time; a start beyond it is damage."""

NO_CHUNK: Final = -1
"""Value of ``mc`` and ``gmc`` for an operation that belongs to no chunk of the model."""

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float64]


class ColumnsError(ValueError):
    """Rows are invalid; ``row`` is the first such row, counted from 0, or ``None``."""

    def __init__(self, reason: str, *, row: int | None = None) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True, slots=True)
class Operations:
    """Nodes of one replica's step, and their times in each step on each replica.

    Per node: ``kind`` (row of ``TYPES``), ``stage``, ``seq`` (index among operations of its type on its rank), ``chunk`` and
    ``global_chunk`` of the model (-1: none). Ascending by (kind, stage, seq).
    """

    kind: Numbers
    stage: Numbers
    seq: Numbers
    chunk: Numbers
    global_chunk: Numbers
    steps: Numbers
    replicas: Numbers
    ranks: Numbers
    """Global rank that ran the node, [nodes, replicas]."""
    start: Seconds
    """Start since the beginning of the step, [nodes, replicas, steps]."""
    duration: Seconds
    """Duration, [nodes, replicas, steps]."""
    steps_left_out: int
    """Number of steps in which some replica lacks an operation, or has an extra one."""

    @property
    def end(self) -> Seconds:
        """End since the beginning of the step, [nodes, replicas, steps]."""
        return self.start + self.duration

    def name(self, node: int) -> str:
        """Return the display name of a node: ``forward-compute 3 of stage 0``."""
        return f"{TYPES[self.kind[node]].name} {self.seq[node]} of stage {self.stage[node]}"


def arrange(columns: Mapping[str, NDArray[np.generic]]) -> Operations:
    """Arrange rows, in any order, as dense arrays.

    ``columns``: ``kind`` (rows of ``TYPES``), ``step``, ``dp_rank``, ``stage``, ``rank``, ``seq_id`` and, where known, ``mc`` and
    ``gmc``, all int64; ``start_ts`` and ``duration`` float64 seconds. The program is the set of operations that most pairs of
    step and replica have; steps in which any replica ran other operations are left out. Raises ``ColumnsError``.
    """
    integers = {name: columns[name].astype(np.int64) for name in ("kind", *LIMITS)}
    with np.errstate(invalid="ignore"):  # `_check` rejects any NaN
        times = {name: columns[name].astype(np.float64) for name in ("start_ts", "duration")}
    _check(integers, times)
    lane = integers["step"] * LIMITS["dp_rank"] + integers["dp_rank"]
    key = (integers["kind"] * LIMITS["stage"] + integers["stage"]) * LIMITS["seq_id"] + integers["seq_id"]
    order = np.lexsort((key, lane))
    lane, key = lane[order], key[order]
    twice = np.flatnonzero((np.diff(lane) == 0) & (np.diff(key) == 0))
    if twice.size:
        raise ColumnsError(
            "the same operation twice in a step: equal step, dp_rank, stage, optype and seq_id", row=int(order[twice[0] + 1])
        )
    first = np.flatnonzero(np.diff(lane, prepend=lane[0] - 1))
    size = np.diff(first, append=len(lane))
    complete_rows = _complete(lane[first], size, first, key)
    step, replica = np.divmod(lane[complete_rows], LIMITS["dp_rank"])
    replicas = replica[step == step[0]]
    steps = step[:: len(replicas)]
    count = int(size[np.searchsorted(first, complete_rows[0])])
    if count > MAX_NODES:
        raise ColumnsError(f"a step of {count:,} operations on one replica; at most {MAX_NODES:,} are played")
    rows = order[complete_rows[:, None] + np.arange(count)].reshape(len(steps), len(replicas), count)
    rows = np.ascontiguousarray(rows.transpose(2, 1, 0))
    firsts = rows[:, 0, 0]
    start = times["start_ts"][rows]
    ranks = integers["rank"][rows]
    if (ranks != ranks[:, :, :1]).any():
        raise ColumnsError("a stage of a replica changes its rank from step to step")
    places = {
        (stage, replica, rank)
        for stage, row in zip(integers["stage"][firsts].tolist(), ranks[:, :, 0].tolist(), strict=True)
        for replica, rank in enumerate(row)
    }
    if not len(places) == len({place[:2] for place in places}) == len({place[2] for place in places}):
        raise ColumnsError("each stage of a replica needs a rank of its own: some has two, or two have the same")
    none = np.full(len(lane), NO_CHUNK)
    return Operations(
        kind=integers["kind"][firsts],
        stage=integers["stage"][firsts],
        seq=integers["seq_id"][firsts],
        chunk=columns.get("mc", none)[firsts].astype(np.int64),
        global_chunk=columns.get("gmc", none)[firsts].astype(np.int64),
        steps=steps,
        replicas=replicas,
        ranks=ranks[:, :, 0],
        start=start - start.min(axis=(0, 1)),
        duration=times["duration"][rows],
        steps_left_out=len(set((lane[first] // LIMITS["dp_rank"]).tolist())) - len(steps),
    )


def _check(integers: Mapping[str, Numbers], times: Mapping[str, Seconds]) -> None:
    if not len(integers["step"]):
        raise ColumnsError("no operations in it")
    for name, limit in LIMITS.items():
        wrong = (integers[name] < 0) | (integers[name] >= limit)
        if wrong.any():
            row = int(wrong.argmax())
            raise ColumnsError(f"{name} is {integers[name][row]}, which no job has", row=row)
    for name, values in times.items():
        wrong = ~np.isfinite(values) | (np.abs(values) > LATEST_SECONDS)
        if wrong.any():
            row = int(wrong.argmax())
            raise ColumnsError(f"{name} is {values[row]:g}, which is no time in seconds", row=row)
    duration = times["duration"]
    wrong = (duration < 0) | (duration > MAX_SECONDS)
    if wrong.any():
        row = int(wrong.argmax())
        why = "below 0" if duration[row] < 0 else "more than a year"
        raise ColumnsError(f"duration is {duration[row]:g} seconds, {why}", row=row)


def _complete(lanes: Numbers, size: Numbers, first: Numbers, key: Numbers) -> Numbers:
    """Return the first row of each lane of the complete steps, ordered by (step, replica).

    Raises ``ColumnsError`` when no step is complete.
    """
    counts = np.bincount(size)
    usual = int(counts.argmax())
    same_size = first[size == usual]
    program = key[same_size[0] : same_size[0] + usual]
    fits = np.zeros(len(lanes), dtype=bool)
    fits[size == usual] = (key[same_size[:, None] + np.arange(usual)] == program).all(axis=1)
    step, replica = np.divmod(lanes, LIMITS["dp_rank"])
    replicas = len(set(replica[fits].tolist()))
    numbers, at = np.unique(step, return_inverse=True)
    complete = (np.bincount(at, weights=fits, minlength=len(numbers)) == replicas) & (
        np.bincount(at, minlength=len(numbers)) == replicas
    )
    if not complete.any():
        raise ColumnsError("in no step have all replicas the same operations")
    begin: Numbers = first[complete[at]]
    return begin
