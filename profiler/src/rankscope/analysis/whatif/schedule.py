"""Dependencies between the operations of a traced step: the schedule of a pipeline-parallel, data-parallel training step.

The order of the operations on one replica in one step, taken from the trace, is the program of all steps and replicas. The
dependencies are those of the paper (Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025) and of
its published analyser, whose results this module reproduces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from rankscope.analysis.whatif.graph import Graph, build_graph
from rankscope.analysis.whatif.traced_operations import (
    BACKWARD,
    CLIP,
    CODES,
    COLLECTION,
    EMBEDDING,
    FORWARD,
    GATHER,
    LAYERNORM,
    OPTIMIZER,
    REDUCE,
    SEPARATE,
    Operations,
)

_TOLERANCE_SECONDS: Final = 5e-5
"""Difference below which two times count as equal."""

_TRANSFERS: Final = {
    # direction: (compute type, step of the data along the chunks of the model)
    "forward": (FORWARD, 1),
    "backward": (BACKWARD, -1),
}


class ScheduleError(ValueError):
    """The operations are no step of such a job; the message names the stage."""


class _Program:
    """Operations of the first replica in the first step, and the edges and groups found among them so far."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.start = operations.start[:, 0, 0].tolist()
        self.end = operations.end[:, 0, 0].tolist()
        self.seq = operations.seq.tolist()
        self.stages = int(operations.stage.max()) + 1
        self.chunks = max(1, int(operations.chunk.max()) + 1)
        self.edges: list[tuple[int, int]] = []
        self.groups: list[list[int]] = []
        self.across_replicas: list[bool] = []
        self._nodes: dict[tuple[int, int], list[int]] = {}
        for node, place in enumerate(zip(operations.kind.tolist(), operations.stage.tolist(), strict=True)):
            self._nodes.setdefault(place, []).append(node)

    def of(self, stage: int, *names: str) -> list[int]:
        """Return the nodes of these types on a stage, each type in the order of ``seq``."""
        return [node for name in names for node in self._nodes.get((CODES[name], stage), ())]

    def in_time(self, nodes: Iterable[int]) -> list[int]:
        """Return ``nodes`` in the order of their starts."""
        return sorted(nodes, key=lambda node: (self.start[node], self.seq[node], node))

    def chain(self, nodes: Sequence[int]) -> None:
        """Add edges so that each node waits for the one before it."""
        self.edges += pairwise(nodes)

    def couple(self, nodes: list[int], *, across_replicas: bool = False) -> None:
        """Add a group of nodes that begin together."""
        if nodes:
            self.groups.append(nodes)
            self.across_replicas.append(across_replicas)


def build_schedule(operations: Operations) -> Graph:
    """Build the graph of one step. Raises ``ScheduleError``, or ``CycleError`` where operations wait for each other."""
    program = _Program(operations)
    missing = set(range(program.stages)) - set(operations.stage.tolist())
    if missing:
        raise ScheduleError(f"there is a stage {program.stages - 1}, but nothing of stage {min(missing)}")
    transfers = {
        direction: [_transfers(program, stage, direction) for stage in range(program.stages)] for direction in _TRANSFERS
    }
    for direction, stages in transfers.items():
        _pair(program, direction, stages)
    for stage in range(program.stages):
        compute = program.in_time(program.of(stage, FORWARD, BACKWARD))
        if not compute:
            raise ScheduleError(f"nothing is computed on stage {stage}")
        program.chain(compute)
        _first_backward(program, stage, compute)
        _data_parallel(program, stage)
        _after_compute(program, stage, compute)
    outer = sorted({0, program.stages - 1})
    program.couple([node for stage in outer for node in program.of(stage, EMBEDDING)[:1]])
    program.couple([node for stage in range(program.stages) for node in program.of(stage, CLIP)[:1]], across_replicas=True)
    return build_graph(len(operations.kind), program.edges, program.groups, program.across_replicas)


def _transfers(program: _Program, stage: int, direction: str) -> dict[str, list[int]]:
    """Link the sends and receives of one stage to its compute; a recorded transfer that moved no data is a group of its own.

    Returns the transfers that moved data, in the order of time, by ``send`` and ``recv``.
    """
    kind, delta = _TRANSFERS[direction]
    compute = program.of(stage, kind)
    chunk_of = program.operations.global_chunk.tolist()
    last_chunk = program.chunks * program.stages - 1
    real: dict[str, list[int]] = {}
    for direction_op in ("send", "recv"):
        nodes = program.in_time(program.of(stage, f"{direction}-{direction_op}"))
        program.chain(nodes)
        used = _belonging(program, nodes, compute, direction_op)
        # The very first receive waits for no operation and may be missing.
        skipped = 1 if direction_op == "recv" and len(used) + 1 == len(compute) else 0
        outermost = stage in (0, program.stages - 1)
        if len(used) != len(compute) and not (outermost and (not used or len(used) + 1 == len(compute))):
            raise ScheduleError(
                f"stage {stage} has {len(compute)} {kind} and {len(used)} {direction}-{direction_op} that belong to them"
            )
        moving: list[int] = []
        for place, node in enumerate(used, start=skipped):
            served = compute[place]
            if direction_op == "send":
                program.edges.append((served, node))
            else:
                program.edges.append((node, served))
                if place:
                    program.edges.append((compute[place - 1], node))
            chunk = chunk_of[served] if chunk_of[served] >= 0 else stage
            if 0 <= chunk + (delta if direction_op == "send" else -delta) <= last_chunk:
                moving.append(node)
        for node in sorted(set(nodes) - set(moving)):
            program.couple([node])
        real[direction_op] = moving
    return real


def _belonging(program: _Program, nodes: Sequence[int], compute: Sequence[int], direction_op: str) -> list[int]:
    """Return the transfers of ``compute``, without sends that end before its first end and receives that start after its last."""
    if not compute:
        return []
    if direction_op == "recv":
        latest = max(program.start[number] for number in compute) + _TOLERANCE_SECONDS
        return [node for node in nodes if program.start[node] <= latest]
    earliest = min(program.end[number] for number in compute) - _TOLERANCE_SECONDS
    return [node for node in nodes if program.end[node] >= earliest]


def _pair(program: _Program, direction: str, stages: list[dict[str, list[int]]]) -> None:
    """Couple the n-th send of each stage with the n-th receive of the next: they are the same transfer."""
    _, delta = _TRANSFERS[direction]
    for stage, real in enumerate(stages):
        peer = (stage + delta) % program.stages
        received = stages[peer]["recv"]
        if len(real["send"]) != len(received):
            raise ScheduleError(
                f"stage {stage} has {len(real['send'])} {direction}-send, but stage {peer} {len(received)} {direction}-recv"
            )
        for pair in zip(real["send"], received, strict=True):
            program.couple(list(pair))


def _first_backward(program: _Program, stage: int, compute: list[int]) -> None:
    """Let the first backward transfers wait for the second-to-last forward before the first backward."""
    backwards = set(program.of(stage, BACKWARD))
    first = next((place for place, node in enumerate(compute) if node in backwards), 0)
    if first >= 2:
        program.edges += [
            (compute[first - 2], program.of(stage, name)[0])
            for name in ("backward-recv", "backward-send")
            if program.of(stage, name)
        ]


def _data_parallel(program: _Program, stage: int) -> None:
    """Order data-parallel collectives: gathers of parameters come before the first forward of their chunk.

    Where the reduction of gradients overlaps the backward, it comes after the last backward of its chunk.
    """
    gathers, reductions = program.of(stage, GATHER), program.of(stage, REDUCE)
    program.chain(program.in_time([*gathers, *reductions]))
    for node in (*gathers, *reductions, *program.of(stage, SEPARATE)):
        program.couple([node], across_replicas=True)
    chunk = program.operations.chunk.tolist()
    # A dict keeps the last entry per chunk: the earliest forward here.
    forwards = sorted(program.of(stage, FORWARD), key=program.start.__getitem__, reverse=True)
    first_forward = {chunk[node]: node for node in forwards}
    for number, gather in {chunk[node]: node for node in gathers}.items():
        if number in first_forward:
            program.edges.append((gather, first_forward[number]))
    if program.of(stage, SEPARATE):
        last_backward = {chunk[node]: node for node in sorted(program.of(stage, BACKWARD), key=program.end.__getitem__)}
        for number, reduction in {chunk[node]: node for node in reversed(reductions)}.items():
            if number in last_backward:
                program.edges.append((last_backward[number], reduction))


def _after_compute(program: _Program, stage: int, compute: list[int]) -> None:
    """Chain the operations after the last compute, one after the other up to the optimizer."""
    overlapped = program.of(stage, SEPARATE)[:1]
    reductions = program.of(stage, REDUCE)
    collection = program.of(stage, COLLECTION)[:1]
    program.chain([max(compute, key=program.end.__getitem__), *collection])
    tail = [
        *program.of(stage, LAYERNORM)[:1],
        *program.of(stage, EMBEDDING)[:1],
        *(overlapped or reductions),
        *program.of(stage, CLIP)[:1],
        *program.of(stage, OPTIMIZER)[:1],
    ]
    before = collection or [max(compute, key=program.end.__getitem__)]
    program.chain([*before, *tail])
    if overlapped and reductions and tail:
        program.edges.append((reductions[-1], tail[0]))
