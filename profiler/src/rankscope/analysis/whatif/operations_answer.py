"""Answer of the what-if analysis from traced operations.

The time of an operation itself is its duration if it waits for no rank, else its transfer: its end minus the last start of the
operations that begin together. The ideal time is the mean over all operations of the type if it computes, and the median if it
communicates.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from rankscope.analysis.result.text import first_of
from rankscope.analysis.whatif.graph import CycleError, Graph, Mask, NodeDurations, Times, play, with_and_without
from rankscope.analysis.whatif.operations_file import read_columns, read_layout
from rankscope.analysis.whatif.outcome import MAX_RANKS, CostTerms, JobPart, Outcome, answer, parts, slowest_count
from rankscope.analysis.whatif.schedule import ScheduleError, build_schedule
from rankscope.analysis.whatif.traced_operations import TYPES, ColumnsError, Operations, arrange
from rankscope.analysis.whatif.whatif_result import WhatIf, WhatIfSource
from rankscope.base.errors import InputError

_SHOWN: Final = 4


def whatif_of_operations(path: Path, terms: CostTerms) -> WhatIf:
    """Answer from a file of traced operations; hours count the world size of its metadata. Raises ``InputError``."""
    layout = read_layout(path)
    try:
        operations = arrange(read_columns(path))
        graph = build_schedule(operations)
    except ColumnsError as error:
        raise InputError(path, str(error), place=None if error.row is None else f"row {error.row}") from error
    except ScheduleError as error:
        raise InputError(path, str(error)) from error
    except CycleError as error:
        names = [operations.name(node) for node in error.nodes]
        raise InputError(path, f"operations wait for each other in a circle: {first_of(names, _SHOWN)}") from error
    ranks = len(set(operations.stage.tolist())) * len(operations.replicas)
    world_size = None if layout is None else layout.world_size
    if world_size is not None and world_size < ranks:
        raise InputError(path, f"its metadata say that the job has {world_size} GPUs, but there are {ranks} ranks in it")
    warnings = []
    if world_size is None:
        warnings.append(f"no metadata beside it say how many GPUs the job has; hours are those of the {ranks} ranks in the trace")
    if operations.steps_left_out:
        left_out = operations.steps_left_out
        warnings.append(
            f"{left_out} of {left_out + len(operations.steps)} steps left out: an operation is missing, or one too many there"
        )
    source = WhatIfSource(
        kind="operations",
        path=os.fspath(path),
        name=None if layout is None else layout.name,
        evidence="operations",
        ranks=ranks,
        world_size=world_size,
        steps=len(operations.steps),
        steps_left_out=operations.steps_left_out,
        warnings=warnings,
    )
    return answer(play_operations(operations, graph), source, replace(terms, accelerated=True, world_size=world_size or ranks))


def play_operations(operations: Operations, graph: Graph) -> Outcome:
    """Play every part of the job twice: as it was with all else ideal, and ideal with all else as it was."""
    real = own_durations(operations, graph)
    durations = NodeDurations(real, ideal_durations(operations, real))
    nodes, replicas = operations.ranks.shape
    everything = np.ones((nodes, replicas), dtype=bool)
    kinds = np.array([TYPES[code].reported_as for code in operations.kind])
    names, stages = sorted(set(kinds.tolist())), sorted(set(operations.stage.tolist()))
    masks = chain(
        [everything, ~everything, ~_of_node(operations, operations.stage == stages[-1])],
        with_and_without(_of_node(operations, kinds == name) for name in names),
        with_and_without(_of_node(operations, operations.stage == stage) for stage in stages),
        with_and_without(np.broadcast_to(np.arange(replicas) == at, (nodes, replicas)) for at in range(replicas)),
    )
    played = iter(play(graph, durations, masks))
    actual, ideal, without_last = islice(played, 3)
    by_op = parts(({"op": name} for name in names), played)
    by_stage = parts(({"stage": stage} for stage in stages), played)
    by_replica = parts(({"dp_rank": int(number)} for number in operations.replicas), played)
    keys = _worst_ranks(operations, by_stage, by_replica)
    slowest = [key["rank"] for key in keys[: slowest_count(len(keys))]]
    of_ranks = with_and_without(operations.ranks == key["rank"] for key in keys[:MAX_RANKS])
    played = iter(play(graph, durations, chain([~np.isin(operations.ranks, slowest)], of_ranks)))
    without_slowest = next(played)
    return Outcome(
        steps=operations.steps,
        measured=operations.end.max(axis=(0, 1)),
        actual=actual,
        ideal=ideal,
        ranks=parts(keys[:MAX_RANKS], played),
        slowest=slowest,
        without_slowest=without_slowest,
        replicas=by_replica if replicas > 1 else [],
        stages=by_stage if len(stages) > 1 else [],
        ops=by_op,
        without_last_stage=without_last if len(stages) > 1 else None,
    )


def _of_node(operations: Operations, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Mask:
    return np.broadcast_to(chosen[:, None], operations.ranks.shape)


def _worst_ranks(operations: Operations, by_stage: list[JobPart], by_replica: list[JobPart]) -> list[dict[str, Any]]:
    """Return the ranks by the paper's estimate, worst first: a rank is at most as slow as its stage, and as its replica.

    Of equal ranks the lowest comes first.
    """
    stage = {part.key["stage"]: part.only.mean() for part in by_stage}
    replica = np.array([part.only.mean() for part in by_replica])
    worst: dict[int, tuple[float, dict[str, Any]]] = {}
    for node in np.unique(operations.stage, return_index=True)[1]:
        own = int(operations.stage[node])
        for at, rank in enumerate(operations.ranks[node].tolist()):
            key = {"rank": rank, "dp_rank": int(operations.replicas[at]), "stage": own}
            worst[rank] = (min(stage[own], replica[at]), key)
    return [key for _, key in sorted(worst.values(), key=lambda entry: (-entry[0], entry[1]["rank"]))]


def own_durations(operations: Operations, graph: Graph) -> Times:
    """Return the durations [nodes, replicas, steps] without the wait for operations that begin together; at least 0."""
    took = operations.duration.copy()
    for event in graph.events:
        if len(event.nodes) > 1 or event.across_replicas:
            nodes = list(event.nodes)
            began = operations.start[nodes].max(axis=(0, 1) if event.across_replicas else 0)
            # Clocks of ranks differ: a transfer may seem to end before it began.
            took[nodes] = np.maximum(operations.start[nodes] + operations.duration[nodes] - began, 0.0)
    return took


def ideal_durations(operations: Operations, real: Times) -> Times:
    """Return the ideal durations [nodes]: one value per type, over all ranks and steps."""
    ideal = np.empty(len(operations.kind))
    for code in set(operations.kind.tolist()):
        own = operations.kind == code
        values = real[own]
        # Mean of the differences from the minimum: exact for equal durations.
        low = values.min()
        ideal[own] = np.median(values) if TYPES[code].communicates else low + (values - low).mean()
    return ideal
